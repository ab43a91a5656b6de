/*
 * An unmet precondition of one test: a skip that says why, and a failure where VRAMCAP_MUST_WORK=1 says
 * that nothing may be missing.  Include after cmocka.h.
 */
#ifndef VRAMCAP_TESTS_SUPPORT_SKIP_H
#define VRAMCAP_TESTS_SUPPORT_SKIP_H

#include <stdlib.h>
#include <string.h>

#define SKIP_BECAUSE(...)                                                                          \
    do {                                                                                           \
        const char *must_work = getenv("VRAMCAP_MUST_WORK");                                       \
                                                                                                   \
        if (must_work != NULL && strcmp(must_work, "1") == 0)                                      \
            fail_msg(__VA_ARGS__);                                                                 \
        print_message("SKIPPED: " __VA_ARGS__);                                                    \
        print_message("\n");                                                                       \
        skip();                                                                                    \
    } while (0)

#endif
