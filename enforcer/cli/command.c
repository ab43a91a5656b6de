/*
 * Command line by getopt_long, driven by the option tables.  Every mistake is one line on stderr
 * that says what was wrong and where help is.
 */
#include "enforcer/cli/command.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define OPTIONS_MAX 24
#define KEY_HELP 255 /* above every letter, below the keys of options without one */
#define KEY_FIRST 256
#define LINE_MAX_BYTES 2048

static const char *program = "vramcap"; /* set once, before anything is said */

void vcap_command_reserve_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF &&
            open("/dev/null", (fd == STDOUT_FILENO ? O_RDONLY : O_WRONLY) | O_CLOEXEC) < 0)
            return;
}

static void write_line(const char *format, va_list arguments)
{
    char line[LINE_MAX_BYTES];
    size_t at = strlen(program);
    memcpy(line, program, at);
    memcpy(line + at, ": ", 2);
    at += 2;
    int n = vsnprintf(line + at, sizeof line - at - 1, format, arguments);
    if (n > 0)
        at += (size_t)n < sizeof line - at - 1 ? (size_t)n : sizeof line - at - 2;
    for (size_t i = 0; i < at; i++) /* one line, whatever a path has in it */
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = '?';
    line[at++] = '\n';
    (void)fflush(stdout);
    if (write(STDERR_FILENO, line, at) < 0)
        return; /* nowhere left to say it */
}

int vcap_command_fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    write_line(format, arguments);
    va_end(arguments);
    return VCAP_EXIT_FAILED;
}

int vcap_command_find(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    write_line(format, arguments);
    va_end(arguments);
    return VCAP_EXIT_FINDING;
}

static void print_option(const struct vcap_option *o, FILE *to)
{
    char left[64], letter[8] = "    ";
    if (o->letter)
        (void)snprintf(letter, sizeof letter, "-%c, ", o->letter);
    if (!o->argument)
        (void)snprintf(left, sizeof left, "%s--%s", letter, o->name);
    else if (o->optional)
        (void)snprintf(left, sizeof left, "%s--%s[=%s]", letter, o->name, o->argument);
    else
        (void)snprintf(left, sizeof left, "%s--%s %s", letter, o->name, o->argument);
    const char *text = o->help;
    for (;;) {
        size_t length = strcspn(text, "\n");
        (void)fprintf(to, "  %-26s  %.*s\n", left, (int)length, text);
        if (!text[length])
            break;
        text += length + 1;
        left[0] = '\0';
    }
}

void vcap_command_help(const struct vcap_command *command, FILE *to)
{
    static const struct vcap_option help = {"help", 'h', NULL, false, "show this and exit"};
    (void)fprintf(to, "usage: %s%s [OPTION]...%s%s\n\n%s\n\n", command->program ? "" : "vramcap ",
                  command->program ? command->program : command->name,
                  *command->operands ? " " : "", command->operands, command->summary);
    for (const struct vcap_option *o = command->options; o->name; o++)
        print_option(o, to);
    print_option(&help, to);
    if (command->details)
        (void)fprintf(to, "\n%s\n", command->details);
}

static int mistake(const struct vcap_command *command, const char *problem, char **argv)
{
    char letter[3] = {'-', (char)optopt, '\0'};
    /* a bundle of letters or a long option: what the user wrote; else the letter */
    const char *written = argv[optind - 1];
    bool is_letter = optopt > 0 && optopt < KEY_HELP && strncmp(written, "--", 2) != 0;
    if (command->program)
        return vcap_command_fail("%s '%s'; see: %s --help", problem, is_letter ? letter : written,
                                 command->program);
    return vcap_command_fail("%s: %s '%s'; see: vramcap help %s", command->name, problem,
                             is_letter ? letter : written, command->name);
}

int vcap_command_parse(const struct vcap_command *command, int argc, char **argv,
                       int (*take)(int option, const char *value, void *state), void *state,
                       int *first)
{
    struct option longs[OPTIONS_MAX + 2];
    char letters[2 + OPTIONS_MAX * 3 + 2];
    size_t n = 0, at = 0;
    if (command->program)
        program = command->program;
    letters[at++] = command->options_first ? '+' : ':';
    if (command->options_first)
        letters[at++] = ':';
    for (; n < OPTIONS_MAX && command->options[n].name; n++) {
        const struct vcap_option *o = &command->options[n];
        int argument = !o->argument  ? no_argument
                       : o->optional ? optional_argument
                                     : required_argument;
        longs[n] = (struct option){o->name, argument, NULL, KEY_FIRST + (int)n};
        if (!o->letter)
            continue;
        letters[at++] = (char)o->letter;
        for (int i = 0; i < argument; i++) /* "x:" takes a value, "x::" may take one */
            letters[at++] = ':';
    }
    longs[n] = (struct option){"help", no_argument, NULL, KEY_HELP};
    longs[n + 1] = (struct option){0};
    letters[at++] = 'h';
    letters[at] = '\0';

    opterr = 0;
    optind = 0; /* glibc: start afresh, and look at the first letter of letters again */
    for (;;) {
        int key = getopt_long(argc, argv, letters, longs, NULL);
        if (key == -1)
            break;
        if (key == KEY_HELP || key == 'h') {
            vcap_command_help(command, stdout);
            return VCAP_EXIT_DONE;
        }
        if (key == ':')
            return mistake(command, "a value is missing after", argv);
        if (key == '?')
            return mistake(command, "no such option, or one that takes no value:", argv);
        int option = key - KEY_FIRST;
        for (int i = 0; option < 0 && command->options[i].name; i++)
            if (command->options[i].letter == key)
                option = i;
        int status = take(option, optarg, state);
        if (status)
            return status;
    }
    *first = optind;
    return -1;
}
