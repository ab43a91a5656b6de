/*
 * `vramcap check`: what is enforced here, by what, shown by which evidence.  check.c has the order and
 * the output; each other file finds one kind of fact and says it with vcap_check_say.
 */
#ifndef VRAMCAP_ENFORCER_CLI_CHECK_H
#define VRAMCAP_ENFORCER_CLI_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "enforcer/config.h"
#include "enforcer/ledger_read.h"

/* NOTE: true and worth knowing, and nothing is wrong; UNKNOWN: could not be found out. */
enum vcap_check_state { VCAP_CHECK_OK, VCAP_CHECK_FINDING, VCAP_CHECK_NOTE, VCAP_CHECK_UNKNOWN };

#define VCAP_CHECK_TEXT 480
#define VCAP_CHECK_LINES 160

struct vcap_check_line {
    const char *id;            /* one word: library, driver, ledger, ceiling, ... (docs/check.md) */
    char uuid[VCAP_UUID_TEXT]; /* empty: about no single GPU */
    enum vcap_check_state state;
    char text[VCAP_CHECK_TEXT]; /* printable ASCII */
};

#define VCAP_CHECK_DEVICES 32

struct vcap_check_device {
    uint8_t uuid[16];
    int32_t mig;
    int32_t mps;        /* 1 client, 0 not, -1 the driver does not say */
    int32_t sm_count;   /* 0: unknown */
    int32_t integrated; /* 1 yes, 0 no, -1 unknown */
    uint64_t total_bytes;
    char pci[24]; /* empty: unknown */
};

/* What a child that loaded the driver reported; plain data, for it comes through a pipe. */
struct vcap_check_driver {
    int32_t loaded; /* libcuda.so.1 could be loaded */
    char path[256]; /* of it, or the loader's words if it could not */
    int32_t version, init_result, device_count;
    struct vcap_check_device device[VCAP_CHECK_DEVICES];
    /* --self-test, on the first device */
    int32_t tested, context_result, over_result, under_result;
    uint64_t free_bytes, over_bytes, under_bytes;
};

struct vcap_check {
    pid_t pid; /* whose state is looked at */
    bool self; /* it is this process's: the driver may be asked, the environment is ours */
    bool self_test;
    struct vcap_config config; /* of that process's environment */
    int config_error;
    char config_why[300];
    bool have_ledger;
    char ledger[VCAP_CONFIG_PATH_MAX];
    struct vcap_snapshot snapshot; /* valid with have_ledger */
    bool asked_alone;              /* vcap_check_sm_total has asked */
    struct vcap_check_driver alone;
    bool have_driver; /* the child answered in time */
    pid_t driver_pid; /* the child's number */
    struct vcap_check_driver driver;
    uint32_t count; /* lines that were said; those above VCAP_CHECK_LINES are lost and counted */
    struct vcap_check_line line[VCAP_CHECK_LINES];
};

/* Says one line; what is not printable ASCII becomes '?'.  uuid: NULL or a GPU's. */
void vcap_check_say(struct vcap_check *check, const char *id, const char *uuid,
                    enum vcap_check_state state, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* The value of a variable in the environment of the process that is looked at; false: not set, or not
 * to be had. */
bool vcap_check_variable(const struct vcap_check *check, const char *name, char *value,
                         size_t size);

/* check_process.c: the library and how it came in, other enforcers, other processes of the container. */
void vcap_check_library(struct vcap_check *check);
void vcap_check_others(struct vcap_check *check);

#define VCAP_CHECK_LIMIT_MS 10000

/*
 * check_child.c: calls ask(wish, answer) in a child, which has VCAP_CHECK_LIMIT_MS, and brings its answer
 * (size bytes without pointers, zeroed before) back.  False: it did not answer.  *child (may be NULL): its
 * number.
 */
bool vcap_check_child(void (*ask)(const void *wish, void *answer), const void *wish, void *answer,
                      size_t size, pid_t *child);

/* check_driver.c: asks the driver in a child of its own; then says what was found. */
void vcap_check_ask_driver(struct vcap_check *check);
void vcap_check_driver_lines(struct vcap_check *check);
void vcap_check_self_test(struct vcap_check *check);

/* check_driver.c: all multiprocessors of a GPU, as a process sees them that is no client of MPS; 0: unknown.
 * Asks the driver once more, with the variables of MPS that take some away changed for the child. */
unsigned vcap_check_sm_total(struct vcap_check *check, const char *uuid);

/* check_ledger.c: the ledger, ceilings with all their sources, the compute ceiling. */
void vcap_check_find_ledger(struct vcap_check *check);
void vcap_check_ledger_lines(struct vcap_check *check);

/* check_nvml.c: hard limits that the driver keeps for this cgroup, by NVML. */
void vcap_check_nvml(struct vcap_check *check);

/* check_mps.c: MPS's settings as this process has them. */
void vcap_check_mps(struct vcap_check *check);

#endif
