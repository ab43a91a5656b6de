/*
 * A sub-command of `vramcap` and its options.  Each sub-command's file defines one struct
 * vcap_command; main.c lists them.  Help and parsing both come from the option table, so that they
 * cannot differ.
 */
#ifndef VRAMCAP_ENFORCER_CLI_COMMAND_H
#define VRAMCAP_ENFORCER_CLI_COMMAND_H

#include <stdbool.h>
#include <stdio.h>

/* Exit statuses; a promise (product.md, rule 13). */
enum vcap_exit { VCAP_EXIT_DONE = 0, VCAP_EXIT_FINDING = 1, VCAP_EXIT_FAILED = 2 };

struct vcap_option {
    const char *name;     /* long name without dashes; NULL ends the table */
    int letter;           /* short option, 0 = none */
    const char *argument; /* what the value is, for help; NULL = takes none */
    bool optional;        /* the value may be left out (--name=VALUE only) */
    const char *help;     /* one sentence; lines are broken at '\n' */
};

struct vcap_command {
    const char *program; /* of a program that has no sub-commands; NULL: one of vramcap's */
    const char *name;
    const char *summary;  /* half a line, for `vramcap --help` */
    const char *operands; /* what follows the options, for the usage line */
    const char *details;  /* a paragraph after the options; may be NULL */
    bool options_first;   /* the first operand ends the options (run: the rest is the command's) */
    const struct vcap_option *options;
    int (*run)(int argc,
               char **argv); /* argv[0] is the sub-command's name; returns an exit status */
};

extern const struct vcap_command vcap_command_run, vcap_command_create, vcap_command_resize,
    vcap_command_reset, vcap_command_check, vcap_command_dump, vcap_command_events,
    vcap_command_cdi, vcap_command_report, vcap_command_top, vcap_command_version;

/*
 * First of all in main(): a standard descriptor that the caller closed would be given to the next open()
 * and then written to.  Stand-ins fail on use (stdout: read-only, so that output is an error) and vanish
 * on exec.
 */
void vcap_command_reserve_descriptors(void);

void vcap_command_help(const struct vcap_command *command, FILE *to);

/*
 * Parses argv by the command's table; take(position in the table, value or NULL, state) is called
 * for each option and returns 0, or an exit status after it has said why.  Returns -1 to go on with
 * the operands at argv[*first], or the exit status to leave with (--help, or a mistake that was
 * reported).
 */
int vcap_command_parse(const struct vcap_command *command, int argc, char **argv,
                       int (*take)(int option, const char *value, void *state), void *state,
                       int *first);

/* One line on stderr: "vramcap: ...".  Returns VCAP_EXIT_FAILED. */
int vcap_command_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same for a finding.  Returns VCAP_EXIT_FINDING. */
int vcap_command_find(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
