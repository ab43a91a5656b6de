/*
 * Writes libvramcap.7 from its template: the line `.\" @OPTIONS@` becomes one paragraph per row of
 * enforcer/config.def.  Arguments: TEMPLATE.  The page goes to stdout.
 */
#include <stdio.h>
#include <string.h>

struct row {
    const char *name, *fallback, *values, *help;
};

static const struct row rows[] = {
#define OPTION(name, kind, field, fallback, if_bad, values, help) {#name, fallback, values, help},
#include "enforcer/config.def"
};

/* Text for troff: no line of it begins with a control character, and hyphens are hyphens. */
static void print_text(const char *text)
{
    for (; *text; text++) {
        if (*text == '\\')
            (void)fputs("\\e", stdout);
        else if (*text == '-')
            (void)fputs("\\-", stdout);
        else
            (void)putchar(*text);
    }
}

static void print_rows(void)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        (void)printf(".TP\n.B %s\n\\&", rows[i].name);
        print_text(rows[i].help);
        (void)fputs("\n.br\nValues: ", stdout);
        print_text(rows[i].values);
        (void)fputs(". Default: ", stdout);
        print_text(rows[i].fallback);
        (void)fputs(".\n", stdout);
    }
}

int main(int argc, char **argv)
{
    char line[1024];
    int found = 0;
    FILE *template = argc == 2 ? fopen(argv[1], "r") : NULL;
    if (!template) {
        (void)fprintf(stderr, "gen_options_man: cannot read the template\n");
        return 2;
    }
    while (fgets(line, sizeof line, template)) {
        if (!strcmp(line, ".\\\" @OPTIONS@\n")) {
            print_rows();
            found = 1;
        } else {
            (void)fputs(line, stdout);
        }
    }
    (void)fclose(template);
    if (!found || fflush(stdout) != 0) {
        (void)fprintf(stderr, "gen_options_man: no @OPTIONS@ in the template, or output lost\n");
        return 2;
    }
    return 0;
}
