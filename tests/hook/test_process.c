/*
 * fork, and a slot that is taken away under a living process.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/hook/lost_slot.h"
#include "tests/hook/scenario.h"

/* Runs body in a child; its value, or 128 + signal. */
static int in_child(int (*body)(void))
{
    int status;
    pid_t pid = fork();

    if (pid == 0)
        _exit(body());
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int ten_mebibytes(void)
{
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 10 * MIB));
    SAME(ledger_charged_by(self.ledger, 0, getpid()), 10 * MIB);
    return 0;
}

static int children_forked_before_the_first_call_have_slots_of_their_own(void)
{
    for (int i = 0; i < 3; i++)
        SAME(in_child(ten_mebibytes), 0);
    OK(ten_mebibytes());
    SAME(charged(0), 10 * MIB); /* the children's went with them */
    SAME(ledger_processes(self.ledger), 1);
    return 0;
}

static int uninitialised_in_a_child(void)
{
    CUdeviceptr pointer = 0x77;
    size_t free_bytes;

    GIVES(api.cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
    GIVES(api.cuMemAlloc_v2(&pointer, MIB), CUDA_ERROR_NOT_INITIALIZED);
    GIVES(api.cuMemGetInfo_v2(&free_bytes, NULL), CUDA_ERROR_NOT_INITIALIZED);
    api.cuMemFree_v2(0x1000);
    SAME(pointer, 0x77);
    SAME(charged(0), 600 * MIB);
    return 0;
}

static int a_child_forked_after_inherits_no_charge(void)
{
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 600 * MIB));
    for (int i = 0; i < 4; i++)
        SAME(in_child(uninitialised_in_a_child), 0);
    SAME(charged(0), 600 * MIB);
    SAME(ledger_charged_by(self.ledger, 0, getpid()), 600 * MIB);
    REFUSED(api.cuMemAlloc_v2(&pointer, 500 * MIB));
    OK(api.cuMemFree_v2(pointer));
    SAME(charged(0), 0);
    return 0;
}

static CUdeviceptr inherited;

static int free_the_parents(void)
{
    api.cuMemFree_v2(inherited);
    return 0;
}

static int a_childs_free_takes_nothing_off_the_parent(void)
{
    OK(begin(0));
    OK(api.cuMemAlloc_v2(&inherited, 600 * MIB));
    SAME(in_child(free_the_parents), 0);
    SAME(charged(0), 600 * MIB);
    return 0;
}

static int exec_self_again(void)
{
    char *const argv[] = {(char *)(uintptr_t) "test", (char *)(uintptr_t) "--scenario",
                          (char *)(uintptr_t) "ten_mebibytes", NULL};
    CUdeviceptr pointer;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&pointer, 900 * MIB));
    setenv("EXECED", "1", 1);
    execv("/proc/self/exe", argv);
    return 1;
}

/* ---- slots ---- */

/* another: whose it is from then on, by kind PID; 0: nobody's. */
static int loses_its_slot_to(uint64_t word, pid_t another)
{
    CUdeviceptr first, second, third;
    int32_t slot;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&first, 300 * MIB));
    OK(api.cuMemAlloc_v2(&second, 100 * MIB));
    SAME(charged(0), 450 * MIB); /* a context of 50 */
    slot = my_slot();
    CHECK(slot >= 0);
    CHECK(forget_charges(slot));
    CHECK(another == 0 || write_owner(slot, (uint32_t)another));
    CHECK(write_state(slot, word));
    OK(api.cuMemAlloc_v2(&third, 200 * MIB));
    SAME(charged(0), 650 * MIB);
    SAME(ledger_charged_by(self.ledger, 0, getpid()), 650 * MIB);
    SAME(gpu_row(0).overhead_bytes, 50 * MIB);
    REFUSED(api.cuMemAlloc_v2(&third, 400 * MIB));
    OK(api.cuMemFree_v2(first));
    SAME(charged(0), 350 * MIB);
    OK(api.cuMemFree_v2(second));
    SAME(charged(0), 250 * MIB);
    if (another != 0)
        SAME(read_state(slot), word);
    return 0;
}

static int a_slot_taken_away_is_replaced_and_its_charges_booked_again(void)
{
    return loses_its_slot_to(vcap_lf_state(77, VCAP_LF_KIND_NONE, VCAP_LF_FREE), 0);
}

static int a_slot_that_somebody_else_lives_in_is_left_to_it(void)
{
    /* our parent, which lives as long as we are watched */
    return loses_its_slot_to(vcap_lf_state(99, VCAP_LF_KIND_PID, VCAP_LF_LIVE), getppid());
}

static int a_free_after_the_slot_is_gone_takes_nothing_off_others(void)
{
    CUdeviceptr first, second, third;
    int32_t slot;

    OK(begin(0));
    OK(api.cuMemAlloc_v2(&first, 300 * MIB));
    OK(api.cuMemAlloc_v2(&second, 100 * MIB));
    slot = my_slot();
    CHECK(slot >= 0);
    CHECK(forget_charges(slot));
    CHECK(write_state(slot, vcap_lf_state(77, VCAP_LF_KIND_NONE, VCAP_LF_FREE)));
    OK(api.cuMemFree_v2(first)); /* its charge went with the slot */
    OK(api.cuMemAlloc_v2(&third, 10 * MIB));
    SAME(charged(0), 160 * MIB);
    OK(api.cuMemFree_v2(second));
    OK(api.cuMemFree_v2(third));
    SAME(charged(0), 50 * MIB);
    return 0;
}

/* Where no other slot can be had the process is denied, from this very call on. */
static int without_a_slot_a_pool_grants_nothing(void)
{
    CUdeviceptr pointer;
    uint64_t before;

    OK(begin(0));
    OK(api.cuMemAllocAsync(&pointer, 2 * MIB, NULL));
    before = sim_alloc_bytes(&self, 0);
    CHECK(lose_slot());
    OK(unlink(self.ledger));
    OK(mkdir(self.ledger, 0700)); /* at its place there is no ledger, and none can be made */
    pointer = 0x77;
    for (int i = 0; i < 2; i++)
        REFUSED(api.cuMemAllocAsync(&pointer, 2048 * MIB, NULL));
    SAME(pointer, 0x77);
    SAME(sim_alloc_bytes(&self, 0), before);
    OK(rmdir(self.ledger));
    return 0;
}

/* ---- several ---- */

static void an_exec_gives_the_charges_back_and_starts_anew(void **state)
{
    static struct child_output output;

    scenario_run(*state, "exec_self_again", NULL, &output);
    if (output.status != 0)
        fprintf(stderr, "%s", output.err);
    assert_int_equal(output.status, 0);
    scenario_run(*state, "ten_mebibytes", NULL, &output);
    assert_int_equal(output.status, 0);
}

static void a_lost_slot_is_said_once(void **state)
{
    static struct child_output output;

    scenario_run(*state, "a_slot_taken_away_is_replaced_and_its_charges_booked_again", NULL,
                 &output);
    assert_int_equal(output.status, 0);
    assert_int_equal(count_lines(output.err, "slot"), 1);
}

#define FIXED "VRAMCAP_CONTEXT_MIB=50"

static const struct scenario scenarios[] = {
    SCENARIO(ten_mebibytes, NULL),
    SCENARIO(children_forked_before_the_first_call_have_slots_of_their_own, NULL),
    SCENARIO(a_child_forked_after_inherits_no_charge, NULL),
    SCENARIO(a_childs_free_takes_nothing_off_the_parent, NULL),
    HIDDEN(exec_self_again, NULL),
    SCENARIO(a_slot_taken_away_is_replaced_and_its_charges_booked_again, FIXED),
    SCENARIO(a_slot_that_somebody_else_lives_in_is_left_to_it, FIXED),
    SCENARIO(a_free_after_the_slot_is_gone_takes_nothing_off_others, FIXED),
    SCENARIO(without_a_slot_a_pool_grants_nothing, NULL),
};

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(an_exec_gives_the_charges_back_and_starts_anew),
    cmocka_unit_test(a_lost_slot_is_said_once),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, tests, sizeof(tests) / sizeof(tests[0]));
}
