/*
 * The compute ceiling: MPS's own percentage, set or lowered before the driver initialises, what the
 * driver then reports, and what the program cannot raise any more. The simulated card has 132
 * multiprocessors, MPS grants them in steps of two, rounded down.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "tests/hook/scenario.h"

#define PERCENTAGE "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
#define MPS "VRAMCAP_SIM_MPS=/run/mps-ecs;CUDA_MPS_PIPE_DIRECTORY=/run/mps-ecs"
#define PARTITIONED "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING=1"

static int attribute(CUdevice_attribute which)
{
    int value = -1;

    return api.cuDeviceGetAttribute(&value, which, 0) == CUDA_SUCCESS ? value : -1;
}

static unsigned affinity(void)
{
    CUexecAffinityParam param;

    memset(&param, 0, sizeof(param));
    if (api.cuCtxGetExecAffinity(&param, CU_EXEC_AFFINITY_TYPE_SM_COUNT) != CUDA_SUCCESS)
        return 0;
    return param.param.smCount.val;
}

static bool percentage_is(const char *text)
{
    const char *now = getenv(PERCENTAGE);

    return text == NULL ? now == NULL : now != NULL && strcmp(now, text) == 0;
}

static CUresult allocate(void)
{
    CUdeviceptr pointer;

    return api.cuMemAlloc_v2(&pointer, 2 * MIB);
}

/* state, granted, percent of card 0's row */
#define ROW(state, granted, asked)                                                                 \
    do {                                                                                           \
        struct vcap_snapshot_gpu row_ = gpu_row(0);                                                \
        SAME(row_.compute_state, state);                                                           \
        SAME(row_.sm_granted, granted);                                                            \
        SAME(row_.compute_percent, asked);                                                         \
    } while (0)

static int it_is_set_where_it_was_not(void)
{
    CHECK(percentage_is(NULL));
    OK(begin(0));
    CHECK(percentage_is("30"));
    OK(allocate());
    SAME(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), 38);
    ROW(VCAP_LF_COMPUTE_FORCE, 38, 30);
    SAME(ledger_events(self.ledger, VCAP_LF_EVENT_COMPUTE), 1);
    return 0;
}

static int one_that_is_higher_or_no_percentage_is_lowered(void)
{
    OK(begin(0));
    CHECK(percentage_is("30"));
    OK(allocate());
    ROW(VCAP_LF_COMPUTE_FORCE, 38, 30);
    return 0;
}

static int one_that_is_lower_stays_as_it_is(void)
{
    char before[32];

    snprintf(before, sizeof(before), "%s", getenv(PERCENTAGE));
    OK(begin(0));
    CHECK(percentage_is(before));
    OK(allocate());
    CHECK(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT) <= 38);
    ROW(VCAP_LF_COMPUTE_FORCE, attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), 30);
    return 0;
}

static int without_a_ceiling_the_variable_is_left_alone(void)
{
    char before[32] = "";

    if (getenv(PERCENTAGE) != NULL)
        snprintf(before, sizeof(before), "%s", getenv(PERCENTAGE));
    OK(begin(0));
    OK(allocate());
    CHECK(percentage_is(before[0] == 0 ? NULL : before));
    ROW(VCAP_LF_COMPUTE_NONE, 0, 0);
    SAME(ledger_events(self.ledger, VCAP_LF_EVENT_COMPUTE), 0);
    return 0;
}

static int passive_and_audit_leave_the_variable_alone(void)
{
    OK(begin(0));
    OK(allocate());
    CHECK(percentage_is(NULL));
    SAME(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), 132);
    return 0;
}

static int without_mps_it_is_not_in_force_and_said_once(void)
{
    CUcontext context;

    OK(begin(0));
    OK(allocate());
    OK(api.cuCtxCreate_v2(&context, 0, 0));
    OK(allocate());
    ROW(VCAP_LF_COMPUTE_NO_MPS, 132, 30);
    SAME(ledger_events(self.ledger, VCAP_LF_EVENT_COMPUTE), 1);
    return 0;
}

static CUresult with_affinity(int abi, unsigned sms, CUcontext *context)
{
    CUexecAffinityParam param[2];
    CUctxCreateParams params;

    memset(param, 0, sizeof(param));
    memset(&params, 0, sizeof(params));
    param[0].type = CU_EXEC_AFFINITY_TYPE_SM_COUNT;
    param[0].param.smCount.val = sms;
    params.execAffinityParams = param;
    params.numExecAffinityParams = 1;
    if (abi == 3)
        return api.cuCtxCreate_v3(context, param, 1, 0, 0);
    return api.cuCtxCreate_v4(context, &params, 0, 0);
}

static int a_driver_that_read_it_earlier_is_found_out(void)
{
    struct vcap_snapshot_gpu row;
    CUcontext context;

    OK(begin(0));
    OK(allocate());
    SAME(attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), 132);
    OK(with_affinity(3, 132, &context));
    SAME(affinity(), 40); /* 39, which MPS rounds up */
    OK(with_affinity(4, 132, &context));
    SAME(affinity(), 40);
    row = gpu_row(0);
    SAME(row.sm_granted, 132);
    /* a process without the ceiling has said before how many there are */
    SAME(row.sm_total, 132);
    SAME(row.compute_state, VCAP_LF_COMPUTE_IGNORED);
    return 0;
}

static int an_affinity_above_it_is_cut_and_one_below_it_is_kept(void)
{
    CUcontext context;

    OK(begin(0));
    for (int abi = 3; abi <= 4; abi++) {
        OK(with_affinity(abi, 132, &context));
        SAME(affinity(), 38);
        OK(with_affinity(abi, 39, &context));
        SAME(affinity(), 38);
        OK(with_affinity(abi, 20, &context));
        SAME(affinity(), 20);
    }
    return 0;
}

static int with_partitioning_a_raised_variable_is_lowered_at_each_context(void)
{
    CUcontext context;

    OK(begin(0));
    CHECK(percentage_is("30"));
    SAME(affinity(), 38);
    CHECK(setenv(PERCENTAGE, "100", 1) == 0);
    OK(api.cuCtxCreate_v2(&context, 0, 0));
    SAME(affinity(), 38);
    CHECK(unsetenv(PERCENTAGE) == 0);
    OK(api.cuDevicePrimaryCtxRetain(&context, 0));
    OK(api.cuCtxSetCurrent(context));
    SAME(affinity(), 38);
    CHECK(setenv(PERCENTAGE, "10", 1) == 0); /* its own wish below the ceiling */
    OK(api.cuCtxCreate_v2(&context, 0, 0));
    SAME(affinity(), 12);
    CHECK(percentage_is("10"));
    CHECK(setenv(PERCENTAGE, "100", 1) == 0);
    OK(with_affinity(3, 132, &context));
    SAME(affinity(), 38);
    OK(allocate());
    ROW(VCAP_LF_COMPUTE_FORCE, 39, 30);
    SAME(gpu_row(0).sm_total, 132);
    return 0;
}

#define CAPPED MPS ";VRAMCAP_COMPUTE_PERCENT=30"

static const struct scenario scenarios[] = {
    SCENARIO(it_is_set_where_it_was_not, CAPPED),
    HIDDEN(one_that_is_higher_or_no_percentage_is_lowered, CAPPED),
    HIDDEN(one_that_is_lower_stays_as_it_is, CAPPED),
    HIDDEN(without_a_ceiling_the_variable_is_left_alone, MPS),
    HIDDEN(passive_and_audit_leave_the_variable_alone, CAPPED),
    SCENARIO(without_mps_it_is_not_in_force_and_said_once, "VRAMCAP_COMPUTE_PERCENT=30"),
    HIDDEN(a_driver_that_read_it_earlier_is_found_out, CAPPED ";VRAMCAP_SIM_MPS_READ=start"),
    SCENARIO(an_affinity_above_it_is_cut_and_one_below_it_is_kept, CAPPED),
    SCENARIO(with_partitioning_a_raised_variable_is_lowered_at_each_context,
             CAPPED ";" PARTITIONED),
};

static struct child_output output;

static void passes(const struct fixture *f, const char *scenario, const char *more)
{
    scenario_run(f, scenario, more, &output);
    if (output.status != 0)
        fail_msg("%s with %s: %s", scenario, more != NULL ? more : "nothing", output.err);
}

static void whatever_the_variable_says(void **state)
{
    static const char *const lowered[] = {
        "31",  "100", "30.01", "0", "0.0",  "-1",   "abc",
        "30%", "1e1", "",      " ", "1000", " 10 ", "99999999999999999999"};
    static const char *const kept[] = {"30", "30.0", "030", "29.99", "1", "0.5"};
    char text[80];

    for (size_t i = 0; i < sizeof(lowered) / sizeof(lowered[0]); i++) {
        snprintf(text, sizeof(text), PERCENTAGE "=%s", lowered[i]);
        passes(*state, "one_that_is_higher_or_no_percentage_is_lowered", text);
    }
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
        snprintf(text, sizeof(text), PERCENTAGE "=%s", kept[i]);
        passes(*state, "one_that_is_lower_stays_as_it_is", text);
    }
}

static void nothing_is_touched_where_nothing_was_asked(void **state)
{
    passes(*state, "without_a_ceiling_the_variable_is_left_alone", NULL);
    passes(*state, "without_a_ceiling_the_variable_is_left_alone", PERCENTAGE "=80");
    passes(*state, "passive_and_audit_leave_the_variable_alone", "VRAMCAP_ENABLE=0");
    passes(*state, "passive_and_audit_leave_the_variable_alone", "VRAMCAP_ENABLE=audit");
}

static void a_percentage_that_came_too_late_is_found_out(void **state)
{
    const char *const whole[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024",
                                 "VRAMCAP_SIM_MPS=/run/mps-ecs",
                                 "CUDA_MPS_PIPE_DIRECTORY=/run/mps-ecs", NULL};
    struct child c;

    assert_true(client_start(&c, *state, "getproc", whole));
    assert_int_equal(client_result(&c, "init"), 0);
    assert_int_equal(client_result(&c, "ctx create 0"), 0);
    assert_int_equal(client_result(&c, "alloc 2m"), 0);
    passes(*state, "a_driver_that_read_it_earlier_is_found_out", NULL);
    assert_non_null(strstr(output.err, "is not in force: the driver reports 132"));
    child_kill(&c, SIGKILL);
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(whatever_the_variable_says),
    cmocka_unit_test(nothing_is_touched_where_nothing_was_asked),
    cmocka_unit_test(a_percentage_that_came_too_late_is_found_out),
};

int main(int argc, char **argv)
{
    return SCENARIO_MAIN(argc, argv, scenarios, tests, sizeof(tests) / sizeof(tests[0]));
}
