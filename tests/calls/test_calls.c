/*
 * Each HOOK row in each frame, a process each; above the ceiling; with a device fault for
 * an answer; releases made twice; and while another thread captures.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/support/fixture.h"

static const char *const symbols[] = {
#define CALL(symbol) #symbol,
#include "calls_names.inc"
};
static const char *const frames[] = {"main",    "thread", "constructor", "child",        "refused",
                                     "faulted", "twice",  "captured",    "captured_full"};
#define SYMBOLS (sizeof(symbols) / sizeof(symbols[0]))
#define FRAMES (sizeof(frames) / sizeof(frames[0]))

static void the_ledger_changes_as_the_rule_says(void **state)
{
    const struct fixture *f = *state;
    size_t number = (size_t)(uintptr_t)f->data;
    const char *symbol = symbols[number / FRAMES], *frame = frames[number % FRAMES];
    const char *argv[] = {TEST_CALLS, symbol, frame, NULL};
    const char *extra[] = {"VRAMCAP_ENABLE=1", "VRAMCAP_MEMORY_MIB=1024", "VRAMCAP_CONTEXT_MIB=16",
                           NULL, NULL};
    static struct child_output output;
    char call[160];

    snprintf(call, sizeof(call), "CALLS=%s", symbol);
    if (number % FRAMES == 2)
        extra[3] = call;
    child_run(f, argv, extra, &output);
    if (output.status != 0)
        fprintf(stderr, "%s\n", output.err);
    assert_int_equal(output.status, 0);
    assert_int_equal(output.out_length, 0);
}

int main(void)
{
    static struct CMUnitTest tests[SYMBOLS * FRAMES];
    static char names[SYMBOLS * FRAMES][160];

    for (size_t i = 0; i < SYMBOLS * FRAMES; i++) {
        snprintf(names[i], sizeof(names[i]), "%s_in_%s", symbols[i / FRAMES], frames[i % FRAMES]);
        tests[i] = (struct CMUnitTest){.name = names[i],
                                       .test_func = the_ledger_changes_as_the_rule_says,
                                       .setup_func = fixture_setup,
                                       .teardown_func = fixture_teardown,
                                       .initial_state = (void *)(uintptr_t)i};
    }
    return _cmocka_run_group_tests("calls", tests, SYMBOLS * FRAMES, NULL, NULL) == 0 ? 0 : 1;
}
