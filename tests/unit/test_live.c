/*
 * The live map against a model: a plain array that is searched from one end to the other.  Keys are drawn so
 * that many share a home in the index, at its end too, where probing goes round.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <pthread.h>

#include "preload/live.h"

#define KEYS 3000

static struct vcap_live model[KEYS]; /* key 0: not in it */
static uint64_t keys[KEYS];
static uint64_t dice;

static uint64_t draw(uint64_t below)
{
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return (dice >> 11) % below;
}

/* The key whose hash (live.c) is this one: the multiplication undone. */
static uint64_t key_of_hash(uint32_t hash, uint32_t low)
{
    uint64_t odd = UINT64_C(0x9e3779b97f4a7c15), inverse = odd;

    for (int i = 0; i < 6; i++)
        inverse *= 2 - odd * inverse;
    return ((uint64_t)hash << 32 | low) * inverse;
}

static int new_seed(void **state)
{
    const char *given = getenv("VRAMCAP_TEST_SEED");

    (void)state;
    dice = given != NULL ? strtoull(given, NULL, 10) : (uint64_t)time(NULL) * 2654435761u;
    dice |= 1;
    print_message("VRAMCAP_TEST_SEED=%llu\n", (unsigned long long)dice);
    for (unsigned i = 0; i < KEYS; i++) {
        uint32_t shard = (uint32_t)draw(3) * 7, low = (uint32_t)draw(UINT32_MAX);

        switch (draw(4)) {
        case 0: /* as addresses come */
            keys[i] = UINT64_C(0x7f0000000000) + (uint64_t)i * 4096;
            break;
        case 1: /* one hash, and so one home, in whatever size of index */
            keys[i] = key_of_hash(shard << 28 | 0x0123456, low);
            break;
        case 2: /* the index's last slots */
            keys[i] = key_of_hash(shard << 28 | 0x0ffffff0 | (uint32_t)draw(16), low);
            break;
        default:
            keys[i] = key_of_hash(shard << 28 | (uint32_t)draw(1 << 28), low);
        }
        if (keys[i] == 0)
            keys[i] = 4096;
        for (unsigned j = 0; j < i; j++)
            if (keys[j] == keys[i]) {
                keys[i]++;
                j = UINT32_MAX; /* from the first one again */
            }
    }
    memset(model, 0, sizeof(model));
    return 0;
}

static void same(const struct vcap_live *a, const struct vcap_live *b)
{
    assert_int_equal(a->key, b->key);
    assert_int_equal(a->bytes, b->bytes);
    assert_int_equal(a->mine, b->mine);
    assert_int_equal(a->birth, b->birth);
    assert_ptr_equal(a->context, b->context);
    assert_int_equal(a->imported, b->imported);
    assert_int_equal(a->device, b->device);
    assert_int_equal(a->opens, b->opens);
    assert_int_equal(a->exported, b->exported);
    assert_int_equal(a->unsure, b->unsure);
    assert_ptr_equal(a->pool, b->pool);
    assert_int_equal(a->pool_bytes, b->pool_bytes);
}

static struct vcap_live any_record(uint64_t key)
{
    struct vcap_live record;

    memset(&record, 0, sizeof(record));
    record.key = key;
    record.mine = draw(1000);
    record.imported = draw(2) * draw(1 << 20);
    record.device = (uint32_t)draw(64);
    record.opens = (uint32_t)draw(9);
    record.exported = draw(5) == 0;
    record.unsure = draw(3) == 0;
    if (draw(3) == 0) {
        record.pool = (struct vcap_pool *)(uintptr_t)(4096 * (1 + draw(4)));
        record.pool_bytes = draw(1 << 30);
    } else {
        record.bytes = draw(1 << 30);
        record.context = (void *)(uintptr_t)(16 * (1 + draw(4)));
    }
    return record;
}

static void enter(unsigned at)
{
    struct vcap_live record = any_record(keys[at]), stale;

    assert_int_equal(vcap_live_enter(&record, &stale), 0);
    if (model[at].key != 0)
        same(&stale, &model[at]);
    else
        assert_int_equal(stale.key, 0);
    model[at] = record;
    model[at].birth = vcap_live_sweep_number();
}

static void take(unsigned at)
{
    struct vcap_live record;
    bool found = vcap_live_take(keys[at], &record);

    assert_int_equal(found, model[at].key != 0);
    if (found)
        same(&record, &model[at]);
    model[at].key = 0;
}

static void change(struct vcap_live *record, void *arg)
{
    same(record, arg);
    record->mine++;
    record->opens++;
    record->exported = !record->exported;
    record->unsure = !record->unsure;
    *(struct vcap_live *)arg = *record;
}

static void change_one(unsigned at)
{
    struct vcap_live before = model[at];

    vcap_live_with(keys[at], change, &model[at]);
    assert_int_equal(model[at].mine, before.key == 0 ? before.mine : before.mine + 1);
}

static unsigned place_of(uint64_t key)
{
    unsigned at = 0;

    while (at < KEYS && keys[at] != key)
        at++;
    assert_true(at < KEYS);
    return at;
}

static void count_in(struct vcap_live *record, void *arg)
{
    same(record, &model[place_of(record->key)]);
    ++*(unsigned *)arg;
}

static unsigned in_model(void)
{
    unsigned count = 0;

    for (unsigned at = 0; at < KEYS; at++)
        count += model[at].key != 0;
    return count;
}

static bool has_context(const struct vcap_live *record, void *arg)
{
    return record->context == arg;
}

static uint64_t swept_before;

/* Comes back to the map, as a hook that releases does. */
static void swept(const struct vcap_live *record, void *arg)
{
    unsigned at = place_of(record->key);
    struct vcap_live none;

    assert_true(model[at].birth < swept_before);
    model[at].birth = record->birth; /* says nothing any more */
    same(record, &model[at]);
    assert_ptr_equal(record->context, arg);
    assert_false(vcap_live_take(record->key, &none));
    model[at].key = 0;
}

static void sweep(void)
{
    void *context = (void *)(uintptr_t)(16 * (1 + draw(4)));
    uint64_t before = vcap_live_sweep_begin();

    swept_before = before;
    for (unsigned i = 0; i < 20; i++)
        enter((unsigned)draw(KEYS)); /* younger than the sweep: spared */
    vcap_live_sweep(before, has_context, swept, context);
    for (unsigned at = 0; at < KEYS; at++)
        assert_false(model[at].key != 0 && model[at].context == context &&
                     model[at].birth < before);
}

static void the_map_does_what_the_model_does(void **state)
{
    (void)state;
    for (unsigned phase = 0; phase < 12; phase++) {
        uint64_t entering = phase % 3 == 0 ? 8 : phase % 3 == 1 ? 5 : 2; /* grows, stays, empties */
        unsigned seen = 0;

        for (unsigned step = 0; step < 6000; step++) {
            unsigned at = (unsigned)draw(KEYS);
            uint64_t what = draw(10);

            if (what < entering)
                enter(at);
            else if (what == 9 && draw(8) == 0)
                change_one(at);
            else
                take(at);
        }
        if (phase % 2 == 1)
            sweep();
        vcap_live_each(count_in, &seen);
        assert_int_equal(seen, in_model());
    }
    for (unsigned at = 0; at < KEYS; at++)
        take(at);
    assert_int_equal(in_model(), 0);
}

/* Large, empty, and again: memory that was given back is not used any more. */
static void a_shard_that_was_emptied_works_again(void **state)
{
    struct vcap_live record = {.key = 0}, stale;

    (void)state;
    for (int round = 0; round < 3; round++) {
        for (uint64_t i = 1; i <= 40000; i++) {
            record.key = i << 12;
            assert_int_equal(vcap_live_enter(&record, &stale), 0);
            assert_int_equal(stale.key, 0);
        }
        for (uint64_t i = 1; i <= 40000; i++)
            assert_true(vcap_live_take((round == 1 ? 40001 - i : i) << 12, &record));
        assert_false(vcap_live_take(UINT64_C(1) << 12, &record));
    }
}

#define THREADS 4

static void *own_keys(void *arg)
{
    uint64_t base = (uint64_t)(uintptr_t)arg << 40;
    struct vcap_live record = {.bytes = base}, stale;

    for (unsigned round = 0; round < 20; round++) {
        for (uint64_t i = 1; i <= 500; i++) {
            record.key = base + i * 512;
            if (vcap_live_enter(&record, &stale) != 0 || stale.key != 0)
                return arg;
        }
        for (uint64_t i = 1; i <= 500; i++)
            if (!vcap_live_take(base + i * 512, &record) || record.bytes != base)
                return arg;
    }
    return NULL;
}

static void threads_find_what_they_entered(void **state)
{
    pthread_t threads[THREADS];

    (void)state;
    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, own_keys, (void *)(i + 1)), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        void *failed = NULL;

        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(the_map_does_what_the_model_does, new_seed),
        cmocka_unit_test_setup(a_shard_that_was_emptied_works_again, new_seed),
        cmocka_unit_test_setup(threads_find_what_they_entered, new_seed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
