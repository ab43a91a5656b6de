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

#include "enforcer/agent/process.h"
#include "enforcer/config.h"
#include "enforcer/ledger_read.h"

/* NOTE: true and worth knowing, and nothing is wrong; UNKNOWN: could not be found out. */
enum vcap_check_state { VCAP_CHECK_OK, VCAP_CHECK_FINDING, VCAP_CHECK_NOTE, VCAP_CHECK_UNKNOWN };

#define VCAP_CHECK_TEXT 480
#define VCAP_CHECK_LINES 256

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

/* What the memory map of the process shows that is looked at; plain data, for it comes through a pipe. */
struct vcap_check_map {
    int32_t error; /* 0; or -errno, and the rest is not known */
    struct vcap_process process;
    char library[256],
        other[256]; /* mapped files of vramcap's and of another enforcer; empty: none */
};

#define VCAP_CHECK_ENVIRONMENT (256u << 10)

/* What a child that loaded the driver reported; plain data, for it comes through a pipe. */
struct vcap_check_driver {
    int32_t loaded; /* libcuda.so.1 could be loaded */
    char path[256]; /* of it, or the loader's words if it could not */
    int32_t version, init_result, device_count;
    struct vcap_check_device device[VCAP_CHECK_DEVICES];
};

struct vcap_check {
    pid_t pid; /* whose state is looked at */
    bool self; /* it is this process's: the driver may be asked, the environment is ours */
    bool self_test;
    bool unseen; /* something of another process could not be looked at; said */
    struct vcap_check_map map;
    int environment_error; /* another's environment cannot be had; nor its configuration */
    size_t environment_length;
    char environment[VCAP_CHECK_ENVIRONMENT];
    struct vcap_config config; /* of that process's environment */
    int config_error;
    char config_why[300];
    bool have_ledger;
    char ledger[VCAP_CONFIG_PATH_MAX];
    struct vcap_snapshot snapshot; /* valid with have_ledger */
    bool asked_alone;              /* vcap_check_sm_total has asked */
    struct vcap_check_driver alone;
    bool have_driver; /* the child answered in time */
    int driver_error; /* else: of check_child.c */
    struct vcap_check_driver driver;
    uint32_t count; /* lines that were said; those above VCAP_CHECK_LINES are lost and counted */
    struct vcap_check_line line[VCAP_CHECK_LINES];
};

/* Says one line; what is not printable ASCII becomes '?'.  uuid: NULL or a GPU's. */
void vcap_check_say(struct vcap_check *check, const char *id, const char *uuid,
                    enum vcap_check_state state, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* check_look.c: the memory map and the environment of the process; says what cannot be looked at. */
void vcap_check_look(struct vcap_check *check);

/* The value of a variable in the environment of the process that is looked at; false: not set, or not
 * to be had. */
bool vcap_check_variable(const struct vcap_check *check, const char *name, char *value,
                         size_t size);

/* The beginning of /etc/ld.so.preload as the process sees it; false: none, or not to be had.  Another's is a
 * stranger's file: it is opened only if it is a regular one and behind no link. */
bool vcap_check_preload_file(struct vcap_check *check, char *text, size_t size);

/* Whether the process has a file of that name: 1, 0; -1: not known. */
int vcap_check_exists(struct vcap_check *check, const char *path);

/* check_process.c: the library and how it came in, other enforcers, other processes of the container. */
void vcap_check_library(struct vcap_check *check);
void vcap_check_others(struct vcap_check *check);

#define VCAP_CHECK_LIMIT_MS 10000 /* for somebody else's library */

struct vcap_check_question {
    void (*ask)(const void *wish, void *answer);
    int limit_ms;
    bool quiet; /* the child has nothing to print, and its end may have to be left to itself */
};

/*
 * check_child.c: asks in a child, which has a time limit, and brings its answer (size bytes without pointers,
 * zeroed before) back.  0; -ETIMEDOUT: no answer in time; -ECHILD: it ended without one; another -errno: there
 * could be no child.  Then the answer is all zero.
 */
int vcap_check_child(const struct vcap_check_question *question, const void *wish, void *answer,
                     size_t size);

#define VCAP_CHECK_WHY 160

/* What whoever was asked did, in words for that error: "did not answer within 10 s". */
const char *vcap_check_child_why(const struct vcap_check_question *question, int error,
                                 char text[VCAP_CHECK_WHY]);

/* check_driver.c: asks the driver in a child of its own; then says what was found. */
void vcap_check_ask_driver(struct vcap_check *check);
void vcap_check_driver_lines(struct vcap_check *check);

/* The driver's functions, in a child; NULL, and why: there is no driver. */
struct driver;
void *vcap_check_driver_load(struct driver *driver, char *why, size_t size);

/* check_self_test.c: on each visible GPU that has a ceiling. */
void vcap_check_self_test(struct vcap_check *check);

/* check_driver.c: all multiprocessors of a GPU, as a process sees them that is no client of MPS; 0: unknown.
 * Asks the driver once more, with the variables of MPS that take some away changed for the child. */
unsigned vcap_check_sm_total(struct vcap_check *check, const char *uuid);

/* check_ledger.c: the ledger, ceilings with all their sources, the compute ceiling. */
void vcap_check_find_ledger(struct vcap_check *check);
void vcap_check_ledger_lines(struct vcap_check *check);

/* Has the visible GPU of that number a ceiling, by the ledger or else by the configuration? */
bool vcap_check_has_ceiling(const struct vcap_check *check, int32_t ordinal);

/* check_nvml.c: hard limits that the driver keeps for this cgroup, by NVML. */
void vcap_check_nvml(struct vcap_check *check);

/* check_mps.c: MPS's settings as this process has them. */
void vcap_check_mps(struct vcap_check *check);

#endif
