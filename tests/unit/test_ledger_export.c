/*
 * The table of exports: on record while the owner lives and has not taken it off, for others only.
 */
#include "tests/unit/test_ledger_box.h"

#include "enforcer/ledger_export.h"

static void join(struct vcap_ledger *l)
{
    assert_int_equal(vcap_ledger_open(l, box_path, NULL, VCAP_OPEN_CLAIM | VCAP_OPEN_MAKE,
                                      VCAP_LF_MODE_ENFORCE, box_why, sizeof(box_why)),
                     0);
}

static bool sees(const struct vcap_ledger *l, uint64_t size, uint64_t hash, uint32_t gpu)
{
    return vcap_ledger_exported(l, vcap_ledger_mine(l), size, hash, &gpu);
}

static uint32_t export(struct vcap_ledger *l, uint32_t gpu, uint64_t size, uint64_t hash)
{
    uint32_t entry = UINT32_MAX;

    assert_int_equal(vcap_ledger_export(l, vcap_ledger_mine(l), gpu, size, hash, &entry), 0);
    return entry;
}

static void descriptors_match_by_size_and_gpu_and_handles_by_hash(void **state)
{
    struct vcap_ledger mine, other;
    uint32_t entry, gpu = 0;

    (void)state;
    join(&mine);
    join(&other);
    entry = export(&mine, 1, 4096, 0);
    assert_true(sees(&other, 4096, 0, 1));
    assert_false(sees(&other, 4096, 0, 0));
    assert_false(sees(&other, 8192, 0, 1));
    assert_false(sees(&mine, 4096, 0, 1)); /* one's own is not another's */
    export(&mine, 2, 512, 77);
    assert_true(vcap_ledger_exported(&other, vcap_ledger_mine(&other), 1, 77, &gpu));
    assert_int_equal(gpu, 2);
    assert_false(sees(&other, 512, 78, 2));
    assert_false(sees(&other, 512, 0, 2));
    vcap_ledger_unexport(&other, vcap_ledger_mine(&other), entry);
    assert_true(sees(&other, 4096, 0, 1)); /* not its to take off */
    vcap_ledger_unexport(&mine, vcap_ledger_mine(&mine), entry);
    assert_false(sees(&other, 4096, 0, 1));
    vcap_ledger_close(&mine);
    vcap_ledger_close(&other);
}

static void a_full_table_is_said_and_the_dead_make_room(void **state)
{
    struct vcap_ledger mine, other;
    uint32_t entry;

    (void)state;
    join(&mine);
    join(&other);
    for (uint32_t i = 0; i < VCAP_LF_EXPORTS; i++)
        export(&mine, 0, 512 + i, 0);
    assert_int_equal(vcap_ledger_export(&other, vcap_ledger_mine(&other), 0, 4096, 9, &entry),
                     -ENOSPC);
    vcap_ledger_close(&mine); /* leaves a dead slot */
    entry = export(&other, 0, 4096, 9);
    assert_true(entry < VCAP_LF_EXPORTS);
    assert_false(sees(&other, 600, 0, 0));
    vcap_ledger_close(&other);
}

static void an_entry_half_written_by_the_dead_is_nobodys(void **state)
{
    struct vcap_ledger mine, other;
    struct vcap_lf_export *e;

    (void)state;
    join(&mine);
    join(&other);
    e = &mine.exports[export(&mine, 0, 4096, 0)];
    e->sequence++; /* as if killed while writing */
    assert_false(sees(&other, 4096, 0, 0));
    vcap_ledger_close(&mine);
    assert_int_not_equal(vcap_ledger_reap_all(&other), 0);
    join(&mine);
    assert_ptr_equal(&mine.exports[export(&mine, 0, 8192, 0)],
                     &mine.exports[0]); /* the first that is free */
    assert_true(sees(&other, 8192, 0, 0));
    assert_false(sees(&other, 4096, 0, 0));
    vcap_ledger_close(&mine);
    vcap_ledger_close(&other);
}

static void an_owner_that_has_not_written_yet_vouches_for_nothing(void **state)
{
    struct vcap_ledger mine, other;
    struct vcap_lf_export *e;

    (void)state;
    join(&mine);
    join(&other);
    e = &mine.exports[export(&mine, 0, 4096, 0)];
    e->owner = vcap_lf_owner(vcap_ledger_mine(&other) >> 16, (uint32_t)other.slot);
    assert_false(sees(&mine, 4096, 0, 0)); /* taken, the fields still the last owner's */
    vcap_ledger_close(&mine);
    vcap_ledger_close(&other);
}

static void of_a_place_that_is_gone_nothing_can_be_exported(void **state)
{
    struct vcap_ledger mine;
    uint32_t entry;

    (void)state;
    join(&mine);
    assert_int_equal(
        vcap_ledger_export(&mine, vcap_ledger_mine(&mine) + (1 << 16), 0, 4096, 0, &entry),
        -ESTALE);
    vcap_ledger_close(&mine);
}

static void imported_bytes_go_up_and_down_and_never_below_nothing(void **state)
{
    struct vcap_ledger mine;
    uint64_t place;

    (void)state;
    join(&mine);
    place = vcap_ledger_mine(&mine);
    vcap_ledger_note_imported(&mine, place, 3, 4096);
    vcap_ledger_note_imported(&mine, place, 3, 512);
    assert_int_equal(vcap_ledger_cell(&mine, (uint32_t)mine.slot, 3)->imported_bytes, 4608);
    vcap_ledger_note_imported(&mine, place + (1 << 16), 3, 512);
    vcap_ledger_note_imported(&mine, place, 3, -8192);
    assert_int_equal(vcap_ledger_cell(&mine, (uint32_t)mine.slot, 3)->imported_bytes, 0);
    vcap_ledger_close(&mine);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, box_set_up, box_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(descriptors_match_by_size_and_gpu_and_handles_by_hash),
        TEST(a_full_table_is_said_and_the_dead_make_room),
        TEST(an_entry_half_written_by_the_dead_is_nobodys),
        TEST(an_owner_that_has_not_written_yet_vouches_for_nothing),
        TEST(of_a_place_that_is_gone_nothing_can_be_exported),
        TEST(imported_bytes_go_up_and_down_and_never_below_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
