/*
 * Runs this very program again for each scenario (/proc/self/exe), preloaded.
 */
#include "tests/hook/scenario.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct test_api api;
struct fixture self;

static const struct scenario *all;
static size_t all_count;

static const struct scenario *find(const char *name)
{
    for (size_t i = 0; i < all_count; i++)
        if (strcmp(all[i].name, name) == 0)
            return &all[i];
    return NULL;
}

/* ---- inside ---- */

CUresult begin(CUdevice device)
{
    CUcontext context;
    CUresult result = api.cuInit(0);

    return result == CUDA_SUCCESS ? api.cuCtxCreate_v2(&context, 0, device) : result;
}

uint64_t charged(unsigned card)
{
    return ledger_charged(self.ledger, card);
}

struct vcap_snapshot_gpu gpu_row(unsigned card)
{
    struct vcap_snapshot_gpu gpu;

    memset(&gpu, 0, sizeof(gpu));
    ledger_gpu(self.ledger, card, &gpu);
    return gpu;
}

uint64_t cost(uint64_t bytes)
{
    return bytes <= 1048576 ? (bytes + 511) / 512 * 512 : (bytes + 2097151) / 2097152 * 2097152;
}

const char *journal_path(void)
{
    fixture_needs_simulator();
    return fixture_path(&self, "journal");
}

unsigned journal_count(const char *symbol)
{
    char line[256], name[200];
    FILE *file = fopen(journal_path(), "r");
    unsigned count = 0;
    int pid;

    while (file != NULL && fgets(line, sizeof(line), file) != NULL)
        count += sscanf(line, "%d %199s", &pid, name) == 2 && strcmp(name, symbol) == 0;
    if (file != NULL)
        fclose(file);
    return count;
}

static int inside(const char *name)
{
    const struct scenario *scenario = find(name);
    const char *how = getenv("SCENARIO_BY"), *ledger = getenv("VRAMCAP_TEST_LEDGER"),
               *sim = getenv("VRAMCAP_SIM_STATE");

    if (scenario == NULL || ledger == NULL || sim == NULL)
        return 2;
    snprintf(self.ledger, sizeof(self.ledger), "%s", ledger);
    snprintf(self.sim, sizeof(self.sim), "%s", sim);
    snprintf(self.directory, sizeof(self.directory), "%.*s",
             (int)(strlen(ledger) - strlen("/ledger")), ledger);
    if (how != NULL && strcmp(how, "none") != 0 && !test_api_bind(&api, how))
        return 3;
    return scenario->run();
}

/* ---- outside ---- */

struct words {
    const char *list[64];
    unsigned count;
    char text[4096];
    size_t used;
};

/* "A=1;B=@/x" into the list; "@" stands for the test's directory. */
static void add(struct words *w, const char *environment, const struct fixture *f)
{
    const char *at = environment;

    while (at != NULL && *at != 0) {
        w->list[w->count++] = w->text + w->used;
        for (; *at != 0 && *at != ';'; at++) {
            if (*at == '@')
                w->used += (size_t)snprintf(w->text + w->used, sizeof(w->text) - w->used, "%s",
                                            f->directory);
            else
                w->text[w->used++] = *at;
        }
        w->text[w->used++] = 0;
        at += *at == ';';
    }
    w->list[w->count] = NULL;
}

static void gather(struct words *w, const struct fixture *f, const char *name, const char *more)
{
#ifdef TEST_LINKED
    static const char *const ways[] = {"link", "dlsym", "getproc"};
#else
    static const char *const ways[] = {"dlsym", "getproc"};
#endif
    const struct scenario *scenario = find(name);
    char fixed[256];

    memset(w, 0, sizeof(*w));
    snprintf(fixed, sizeof(fixed),
             "VRAMCAP_ENABLE=1;VRAMCAP_MEMORY_MIB=1024;VRAMCAP_TEST_LEDGER=@/ledger;SCENARIO_BY=%s",
             ways[(fixture_draw()->seed + (uint32_t)(scenario - all)) %
                  (sizeof(ways) / sizeof(ways[0]))]);
    add(w, fixed, f);
    add(w, scenario->environment, f);
    add(w, more, f);
}

/* Read once: after a test has taken a mount namespace of its own in a chroot, the link names the file as
 * it is seen from outside. */
static const char *program(void)
{
    static char path[512];

    if (path[0] == 0 && readlink("/proc/self/exe", path, sizeof(path) - 1) < 0)
        path[0] = 0;
    return path;
}

void scenario_run(const struct fixture *f, const char *name, const char *more,
                  struct child_output *output)
{
    const char *argv[] = {program(), "--scenario", name, NULL};
    struct words w;

    gather(&w, f, name, more);
    child_run(f, argv, w.list, output);
}

bool scenario_start(const struct fixture *f, const char *name, const char *more,
                    struct child *child)
{
    const char *argv[] = {program(), "--scenario", name, NULL};
    struct words w;

    gather(&w, f, name, more);
    return child_start(child, f, argv, w.list);
}

static void one_scenario(void **state)
{
    const struct fixture *f = *state;
    const struct scenario *scenario = f->data;
    static struct child_output output;

    scenario_run(f, scenario->name, NULL, &output);
    if (output.status == 77 && fixture_driver() != NULL)
        skip();
    if (output.status != 0)
        fprintf(stderr, "---- %s\n%s%s----\n", scenario->name, output.out, output.err);
    assert_int_equal(output.status, 0);
}

/* What the simulator has to be told is not for another driver, nor what needs a second card. */
static bool runs_here(const struct scenario *scenario)
{
    return fixture_driver() == NULL || scenario->environment == NULL ||
           (strstr(scenario->environment, "VRAMCAP_SIM_") == NULL &&
            strstr(scenario->environment, "CUDA_VISIBLE_DEVICES") == NULL);
}

int scenario_main(int argc, char **argv, const struct scenario *list, size_t count,
                  const struct CMUnitTest *tests, size_t test_count)
{
    struct CMUnitTest *run = calloc(count + test_count + 1, sizeof(*run));
    size_t used = 0;
    int rc;

    all = list;
    all_count = count;
    if (argc == 3 && strcmp(argv[1], "--scenario") == 0) {
        free(run);
        return inside(argv[2]);
    }
    if (run == NULL)
        return 1;
    for (size_t i = 0; i < count; i++)
        if (!list[i].hidden && runs_here(&list[i]))
            run[used++] = (struct CMUnitTest){.name = list[i].name,
                                              .test_func = one_scenario,
                                              .setup_func = fixture_setup,
                                              .teardown_func = fixture_teardown,
                                              .initial_state = (void *)(uintptr_t)&list[i]};
    for (size_t i = 0; i < test_count && fixture_driver() == NULL; i++) {
        run[used] = tests[i];
        run[used].setup_func = fixture_setup;
        run[used++].teardown_func = fixture_teardown;
    }
    if (argc == 2)
        cmocka_set_test_filter(argv[1]);
    rc = _cmocka_run_group_tests(argv[0], run, used, NULL, NULL);
    free(run);
    return rc == 0 ? 0 : 1;
}
