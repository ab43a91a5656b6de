/*
 * `vramcap check`: what it says of the ledger, of ceilings and where they come from, of the compute ceiling, MPS and the
 * driver's own limits, each made to say both that something is so and that it is not; and the self-test.
 */
#include "tests/multi/check_box.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/skip.h"

/* ---- ledger and ceilings ---- */

static void the_ledger(void **state)
{
    const struct fixture *f = *state;
    static const char *const good[] = {ENABLED, NULL};
    static const char *const none[] = {ENABLED, ALONE, NULL};

    needs_bwrap(f);
    IS(check(f, none), 1);
    SAYS("finding", "ledger", "does not exist: no process of this container is under a ceiling");
    IS(check(f, good), 0);
    SAYS("ok", "ledger", "format 1, made by the container, writable");
    write_file(f->ledger, "something else\n");
    IS(check(f, good), 1);
    SAYS("finding", "ledger", f->ledger); /* and why it is none */
}

static void ceilings_with_all_their_sources(void **state)
{
    const struct fixture *f = *state;
    static const char *const conflicting[] = {"VRAMCAP_ENABLE=1",
                                              "VRAMCAP_MEMORY_MIB=4096",
                                              LIMIT("0=1000M"),
                                              "NVIDIA_GPU_MEMORY_LIMIT=2000",
                                              MPS,
                                              NULL};
    static const char *const partly[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=0=1000",
                                         "VRAMCAP_SIM_CARDS=2x24576", NULL};
    static const char *const audit[] = {"VRAMCAP_ENABLE=audit", "VRAMCAP_MEMORY_MIB=100", NULL};

    needs_bwrap(f);
    (void)check(f, conflicting);
    SAYS("ok", "ceiling", "1000.0 MiB, from mps;");
    SAYS("ok", "ceiling", "sources in MiB: env 4096.0, mps 1000.0, toolkit 2000.0, card 24576.0");
    assert_int_equal(unlink(f->ledger), 0);
    IS(check(f, partly), 1);
    SAYS("ok", "ceiling", "1000.0 MiB, from env;");
    SAYS("finding", "ceiling", "none in force: no source has one for this GPU");
    assert_int_equal(unlink(f->ledger), 0);
    IS(check_with(f, audit, BESIDE_DOING("", "init\\nctx create 0\\nalloc 200m\\n", "3")), 1);
    SAYS("finding", "ceiling", "held 200.0 MiB, which is over: nothing more is granted");
}

static void a_gpu_that_nobody_has_used_yet_shows_what_a_process_would_get(void **state)
{
    const struct fixture *f = *state;
    static const char *const alone[] = {ENABLED, ALONE, NULL};

    needs_bwrap(f);
    IS(check(f, alone), 1);
    SAYS("note", "ceiling", "1000.0 MiB by configuration; no process is under it yet");
}

static void the_compute_ceiling(void **state)
{
    const struct fixture *f = *state;
    static const char *const not_asked[] = {ENABLED, NULL};
    static const char *const in_force[] = {ENABLED, MPS, "VRAMCAP_COMPUTE_PERCENT=30", NULL};
    static const char *const no_mps[] = {ENABLED, "VRAMCAP_COMPUTE_PERCENT=30", NULL};
    static const char *const early[] = {ENABLED, MPS, "VRAMCAP_COMPUTE_PERCENT=30",
                                        "VRAMCAP_SIM_MPS_READ=start", NULL};
    static const char *const partitioned[] = {
        ENABLED, MPS, "VRAMCAP_COMPUTE_PERCENT=30",
        "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING=1", NULL};

    needs_bwrap(f);
    IS(check(f, not_asked), 0);
    assert_false(speaks_of("compute"));
    /* a percentage that comes too late, and somebody who has seen the whole; then nobody */
    IS(check_with(f, early, BESIDE("env -u VRAMCAP_COMPUTE_PERCENT")), 1);
    SAYS("finding", "compute",
         "30 % is not in force: the driver reports 132 multiprocessors of 132");
    assert_int_equal(unlink(f->ledger), 0);
    (void)check(f, early);
    SAYS("unknown", "compute",
         "132 multiprocessors of a total that is not known; whether it is in force cannot be told");
    assert_int_equal(unlink(f->ledger), 0);
    IS(check_with(f, in_force, WITH_PIPE CHECK), 0);
    SAYS("ok", "compute", "30 % in force: the driver reports 38 multiprocessors of 132");
    IS(check(f, no_mps), 1);
    SAYS("finding", "compute", "30 % is not in force: the process is no client of MPS");
    assert_int_equal(unlink(f->ledger), 0);
    IS(check_with(f, partitioned, WITH_PIPE CHECK), 0); /* the driver reports all 132 */
    SAYS("ok", "compute",
         "30 % in force for each context: 39 multiprocessors of 132, reckoned by the percentage");
    assert_null(strstr(output.out, "the driver reports 39"));
}

/* ---- MPS ---- */

static void mps_and_its_settings(void **state)
{
    const struct fixture *f = *state;
    static const char *const unused[] = {ENABLED, NULL};
    static const char *const client[] = {ENABLED, LIMIT("0=1000M"), MPS, NULL};
    static const char *const down[] = {ENABLED, LIMIT("0=1000M"), NULL};
    static const char *const no_limit[] = {ENABLED, MPS, NULL};
    static const char *const invisible[] = {ENABLED, LIMIT("0=1000M,1=1000M"), MPS, NULL};
    static const char *const raised[] = {"VRAMCAP_ENABLE=1", LIMIT("0=4000M"), MPS, NULL};
    static const char *const above[] = {ENABLED, LIMIT("0=4000M"), MPS, NULL};

    needs_bwrap(f);
    IS(check(f, unused), 0);
    SAYS("note", "mps", "not in use, by the driver's word");
    assert_false(speaks_of("mps-settings"));
    IS(check_with(f, client, WITH_PIPE CHECK), 0);
    SAYS("ok", "mps", "client of MPS, by the driver's word; limit 0=1000M");
    assert_false(speaks_of("mps-settings"));
    IS(check(f, client), 1);
    SAYS("finding", "mps-settings", "pipe_directory_missing");
    assert_false(speaks_of("mps-events"));
    IS(check(f, down), 1);
    SAYS("finding", "mps-events", "limit set, but no MPS client: found by 1 process of this");
    SAYS("finding", "mps", "no client of MPS, by the driver's word, although");
    IS(check_with(f, no_limit, WITH_PIPE CHECK), 0);
    SAYS("ok", "mps", "limit of the server, or none");
    SAYS("note", "mps-settings", "no_limit");
    IS(check_with(f, invisible, WITH_PIPE CHECK), 1);
    SAYS("finding", "mps-settings", "entry_for_invisible_gpu");
    IS(check_with(f, above, WITH_PIPE CHECK), 1);
    SAYS("finding", "mps-settings", "limit_above_ceiling");
    assert_int_equal(unlink(f->ledger), 0);
    IS(check_with(f, raised, WITH_PIPE BESIDE("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=1000M")), 1);
    SAYS("finding", "mps-events", "limit unset or raised in this process");
    SAYS("ok", "ceiling", "1000.0 MiB, from mps");
}

static void a_driver_that_does_not_know_of_mps(void **state)
{
    const struct fixture *f = *state;
    static const char *const newer[] = {ENABLED, MPS, "VRAMCAP_SIM_VERSION=12020", NULL};
    static const char *const older[] = {ENABLED, MPS, "VRAMCAP_SIM_VERSION=12010", NULL};

    needs_bwrap(f);
    IS(check_with(f, newer, WITH_PIPE CHECK), 0);
    SAYS("ok", "mps", "client of MPS, by the driver's word");
    assert_int_equal(unlink(f->ledger), 0);
    IS(check_with(f, older, WITH_PIPE CHECK), 0);
    SAYS("unknown", "mps", "the driver does not say (attribute 133 came with CUDA 12.2)");
    assert_int_equal(count_said("mps"), 1);
}

/* ---- GPUs that share the host's memory ---- */

static void integrated_gpus(void **state)
{
    const struct fixture *f = *state;
    static const char *const discrete[] = {ENABLED, "VRAMCAP_SIM_CARDS=2x24576", NULL};
    static const char *const integrated[] = {ENABLED, "VRAMCAP_SIM_CARDS=2x24576",
                                             "VRAMCAP_SIM_INTEGRATED=1", NULL};
    static const char *const silent[] = {ENABLED, "VRAMCAP_SIM_FAIL=cuDeviceGetAttribute:0:1",
                                         "VRAMCAP_SIM_INTEGRATED=1", NULL};
    char words[200], uuid[48];

    needs_bwrap(f);
    IS(check(f, discrete), 0);
    assert_false(speaks_of("integrated"));
    IS(check(f, integrated), 0);
    assert_int_equal(count_said("integrated"), 2);
    for (unsigned i = 0; i < 2; i++) {
        card_uuid_text(i, uuid);
        snprintf(words, sizeof(words),
                 "%s: GPU and host share one memory: pinned host memory is the same DRAM and is "
                 "not charged",
                 uuid);
        SAYS("note", "integrated", words);
    }
    (void)check(f, silent); /* who does not say is not called one */
    assert_false(speaks_of("integrated"));
}

/* ---- the driver's limits of cgroups, by NVML ---- */

static void limits_that_the_driver_keeps_for_the_cgroup(void **state)
{
    const struct fixture *f = *state;
    char path[300], says_file[300], uuid[48], text[400];
    const char *const extra[] = {ENABLED, path, says_file, NULL};

    needs_bwrap(f);
    write_file(fixture_path(f, "cgroup"), "1:name=systemd:/other\n0::/pod/ctr\n");
    assert_int_equal(mkdir(fixture_path(f, "nvml"), 0755), 0);
    assert_int_equal(symlink(FAKE_NVML, fixture_path(f, "nvml/libnvidia-ml.so.1")), 0);
    snprintf(path, sizeof(path), "LD_LIBRARY_PATH=%s/nvml:" TEST_SIM, f->directory);
    snprintf(says_file, sizeof(says_file), "FAKE_NVML=%s/says", f->directory);
    card_uuid_text(0, uuid);

    snprintf(text, sizeof(text), "gpu %s 25769803776 0\n", uuid);
    write_file(fixture_path(f, "says"), text);
    IS(check(f, extra), 0); /* it knows of limits, and there is none */
    assert_false(speaks_of("nvml-limit"));

    snprintf(text, sizeof(text),
             "gpu %s 25769803776 0\nlimit /sys/fs/cgroup/pod/ctr 0 2147483648\n"
             "limit /sys/fs/cgroup/other 0 1\n",
             uuid);
    write_file(fixture_path(f, "says"), text);
    IS(check(f, extra), 0);
    SAYS("ok", "nvml-limit", "hard limit of 2048.0 MiB for cgroup /sys/fs/cgroup/pod/ctr (NVML;");
    SAYS("ok", "nvml-limit", "1024.0 MiB used); vramcap's ceiling is not above it");

    snprintf(text, sizeof(text),
             "gpu %s 25769803776 0\nlimit /sys/fs/cgroup/pod/ctr 0 2147483648\n"
             "limit /sys/fs/cgroup/pod 0 524288000\nlimit /sys/fs/cgroup 0 2147483648\n",
             uuid);
    write_file(fixture_path(f, "says"), text); /* one of a cgroup above is lower */
    IS(check(f, extra), 1);
    SAYS("finding", "nvml-limit", "hard limit of 500.0 MiB for cgroup /sys/fs/cgroup/pod (");
    SAYS("finding", "nvml-limit", "below vramcap's ceiling (1000.0 MiB)");

    snprintf(text, sizeof(text), "gpu %s 25769803776 0\nfail limits 999\n", uuid);
    write_file(fixture_path(f, "says"), text);
    IS(check(f, extra), 0);
    SAYS("unknown", "nvml-limit", "gives none for this GPU (result 999)");

    snprintf(text, sizeof(text), "gpu %s 25769803776 0\nhang\n", uuid);
    write_file(fixture_path(f, "says"), text);
    IS(check(f, extra), 0);
    SAYS("unknown", "nvml-limit", "NVML did not answer within 10 s");
}

/* ---- the self-test ---- */

#define SELF_TEST "exec \"$0\" check --self-test"

static void the_self_test(void **state)
{
    const struct fixture *f = *state;
    static const char *const enforced[] = {ENABLED, CONFIGURED, NULL};
    static const char *const passive[] = {"VRAMCAP_MEMORY_MIB=1000", NULL};
    static const char *const no_context[] = {ENABLED, "VRAMCAP_SIM_FAIL=cuCtxCreate_v2:0:46", NULL};
    static const char *const small_card[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1000",
                                             "VRAMCAP_SIM_CARDS=500", NULL};
    static const char *const full[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=0", NULL};
    static const char *const audit[] = {"VRAMCAP_ENABLE=audit", "VRAMCAP_MEMORY_MIB=1000", NULL};

    needs_bwrap(f);
    IS(check_with(f, enforced, SELF_TEST), 0);
    SAYS("ok", "self-test",
         "1064.0 MiB refused by vramcap with CUDA_ERROR_OUT_OF_MEMORY where 1000.0 MiB are free "
         "(counted in the ledger); 2.0 MiB were granted and given back");
    assert_int_equal(ledger_charged(f->ledger, 0), 0);
    IS(check(f, enforced), 0);
    assert_false(speaks_of("self-test"));
    IS(check_with(f, no_context, SELF_TEST), 0);
    SAYS("unknown", "self-test", "not made: no context could be had (result 46)");
    IS(check_with(f, passive, SELF_TEST), 1);
    SAYS("finding", "self-test", "not refused by vramcap");
    assert_int_equal(unlink(f->ledger), 0);
    IS(check_with(f, audit, SELF_TEST), 1);
    SAYS("finding", "self-test", "not refused by vramcap");
    assert_int_equal(unlink(f->ledger), 0);
    IS(check_with(f, full, SELF_TEST), 0);
    SAYS("ok", "self-test", "64.0 MiB refused by vramcap");
    SAYS("ok", "self-test", "2.0 MiB had no room");
    assert_int_equal(unlink(f->ledger), 0);
    assert_int_equal(unlink(f->sim), 0);
    IS(check_with(f, small_card, SELF_TEST), 1);
    SAYS("finding", "self-test", "no refusal was counted in a ledger: not refused by vramcap");
}

static void the_self_test_names_each_gpu_that_has_a_ceiling(void **state)
{
    const struct fixture *f = *state;
    static const char *const both[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=0=1000,1=500",
                                       CONFIGURED, "VRAMCAP_SIM_CARDS=3x24576", NULL};
    static const char *const second[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1=500", CONFIGURED,
                                         "VRAMCAP_SIM_CARDS=3x24576", NULL};
    static const char *const none[] = {"VRAMCAP_SIM_CARDS=3x24576", NULL};
    static const char *const hangs[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1000",
                                        "VRAMCAP_SIM_CARDS=3x24576",
                                        "VRAMCAP_SIM_DELAY_US=cuCtxCreate_v2:1000000000", NULL};
    static const char *const no_answer[] = {ENABLED, "VRAMCAP_SIM_FAIL=cuMemGetInfo_v2:0:999",
                                            "VRAMCAP_SIM_CARDS=3x24576", NULL};
    char words[2][200], uuid[2][48];

    needs_bwrap(f);
    for (unsigned i = 0; i < 2; i++)
        card_uuid_text(i, uuid[i]);
    (void)check_with(f, both, SELF_TEST); /* the third has no ceiling, which is a finding */
    snprintf(words[0], sizeof(words[0]), "%s: 1064.0 MiB refused by vramcap with ", uuid[0]);
    snprintf(words[1], sizeof(words[1]), "%s: 564.0 MiB refused by vramcap with ", uuid[1]);
    SAYS("ok", "self-test", words[0]);
    SAYS("ok", "self-test", words[1]);
    assert_int_equal(count_said("self-test"), 2);
    assert_int_equal(unlink(f->ledger), 0);
    (void)check_with(f, second, SELF_TEST);
    SAYS("ok", "self-test", words[1]);
    assert_int_equal(count_said("self-test"), 1);
    assert_int_equal(unlink(f->ledger), 0);
    IS(check_with(f, none, SELF_TEST), 1);
    SAYS("finding", "self-test", "not made: no visible GPU has a ceiling");
    assert_int_equal(count_said("self-test"), 1);
    (void)check_with(f, no_answer, SELF_TEST);
    SAYS("unknown", "self-test", "not made: the driver does not say what is free (result 999)");
    IS(check_with(f, hangs, SELF_TEST), 0);
    snprintf(words[0], sizeof(words[0]), "%s: not made: the driver did not answer within 10 s",
             uuid[0]);
    SAYS("unknown", "self-test", words[0]);
    SAYS("unknown", "self-test",
         "GPUs with a ceiling that were not tested: 2, for lack of an answer");
    assert_int_equal(count_said("self-test"), 2);
}

/* Each sandbox numbers its processes anew: the second test's process has the number of the first's, whose refusal
 * is in the ledger.  The second, without the library, is refused by the card. */
static void a_refusal_of_another_process_of_that_number_is_not_taken_for_its_own(void **state)
{
    const struct fixture *f = *state;
    static const char *const enforced[] = {ENABLED, CONFIGURED, NULL};
    static const char *const refused[] = {ENABLED, ALONE, "VRAMCAP_SIM_FAIL=cuMemAlloc_v2:0:2",
                                          NULL};
    const char *const client[] = {CLIENT, "--by=dlsym", NULL};
    struct child living; /* a ledger in which nobody lives is begun anew */

    needs_bwrap(f);
    if (fixture_only_own_programs())
        SKIP_BECAUSE("the client runs here only with the library");
    assert_true(child_start(&living, f, client, enforced));
    assert_int_equal(client_result(&living, "init"), 0);
    assert_int_equal(client_result(&living, "ctx create 0"), 0);
    IS(check_with(f, enforced, SELF_TEST), 0);
    SAYS("ok", "self-test", "1064.0 MiB refused by vramcap");
    IS(check_with(f, refused, SELF_TEST), 1);
    SAYS("finding", "self-test", "no refusal was counted in a ledger: not refused by vramcap");
    child_kill(&living, SIGKILL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        TEST(the_ledger),
        TEST(ceilings_with_all_their_sources),
        TEST(a_gpu_that_nobody_has_used_yet_shows_what_a_process_would_get),
        TEST(the_compute_ceiling),
        TEST(mps_and_its_settings),
        TEST(a_driver_that_does_not_know_of_mps),
        TEST(integrated_gpus),
        TEST(limits_that_the_driver_keeps_for_the_cgroup),
        TEST(the_self_test),
        TEST(the_self_test_names_each_gpu_that_has_a_ceiling),
        TEST(a_refusal_of_another_process_of_that_number_is_not_taken_for_its_own),
    };

    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
