/*
 * Prints docs/options.md from enforcer/config.def.  `cmake --build B --target update_options_doc`
 * writes the file, the test options_doc_is_current compares it.
 */
#include <stdio.h>
#include <string.h>

static const char head[] =
    "# Options\n"
    "\n"
    "<!-- Generated from enforcer/config.def by docs/gen_options.c; do not edit. -->\n"
    "\n"
    "vramcap is configured by environment variables. Blanks around a value are no part of it. A "
    "value\n"
    "that does not parse is an error: one line on stderr, and `VRAMCAP_ON_ERROR` decides what\n"
    "allocation calls do. It never widens a ceiling. A variable that is empty counts as not set, "
    "except\n"
    "`VRAMCAP_MEMORY_MIB`, where that is an error.\n"
    "\n"
    "| variable | values | default | meaning |\n"
    "| --- | --- | --- | --- |\n";

static const char tail[] =
    "\n"
    "## Sizes\n"
    "\n"
    "A `SIZE` is digits and, at once, an optional unit, in any case: `K M G T`, `Ki Mi Gi Ti`,\n"
    "`KB MB GB TB`, `KiB MiB GiB TiB`. All are binary (`4Gi` = `4G` = `4GB` = 4096 MiB), and a "
    "number\n"
    "without a unit is MiB. Leading zeros are accepted. A sign, a fraction, an exponent, `%`, "
    "quotes\n"
    "(typographic ones too) and sizes of 8 TiB and more are errors: the last is no GPU's memory "
    "but,\n"
    "as a rule, bytes written where MiB are meant.\n"
    "\n"
    "## Devices\n"
    "\n"
    "A `DEVICE` is an ordinal, which counts the devices that the process sees (after\n"
    "`CUDA_VISIBLE_DEVICES`), or a UUID as `nvidia-smi -L` shows it: `GPU-` or `MIG-` and "
    "8-4-4-4-12\n"
    "hex digits in any case. Where two entries name one device the lower one holds; an entry for "
    "a\n"
    "device that the process does not see is ignored there. A visible device that no entry names "
    "has\n"
    "no ceiling from that source, which is said and an event; where no source has one for any "
    "visible\n"
    "device, nothing would be enforced, and that is an error. A size without a device stands "
    "alone:\n"
    "`4096,1=2048` is an error. At most 64 entries. [limit-strings.md](limit-strings.md) has a "
    "table "
    "of\n"
    "odd and malformed strings with the answer to each.\n"
    "\n"
    "## The MPS variable\n"
    "\n"
    "`CUDA_MPS_PINNED_DEVICE_MEM_LIMIT` belongs to NVIDIA's MPS; vramcap only reads it. Every "
    "entry\n"
    "needs a device and every size a unit there, `K`, `M` or `G`, with or without `B`\n"
    "(`0=1000M`, `GPU-8932f937=1GB`); a UUID may be cut to its first digits. Anything else is an "
    "error\n"
    "here, whatever MPS makes of it: a limit that MPS does not understand is no limit.\n"
    "\n"
    "## The host's file\n"
    "\n"
    "`/etc/vramcap/container.conf`, owned by root and writable by root alone (its folder too), has "
    "the\n"
    "variables above (not the MPS one), one `KEY=VALUE` a line; blank lines and lines that begin "
    "with `#`\n"
    "say nothing. An unknown key, a key twice, a line without `=`, a file that somebody else may "
    "write, or\n"
    "more than 8192 bytes deny device memory. What the host says there, or in a ledger of "
    "`vramcap\n"
    "create` at `/run/vramcap/ledger`, the environment can only tighten; see \"The host's word\" "
    "in\n"
    "[design.md](design.md).\n";

static int has_literal_values(const char *kind)
{
    return strcmp(kind, "CHOICE") == 0 || strcmp(kind, "SIZE") == 0;
}

/* "<uuid>" is no tag */
static void print_prose(const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '<')
            fputs("&lt;", stdout);
        else if (*text == '>')
            fputs("&gt;", stdout);
        else
            putchar(*text);
    }
}

/* The words of a CHOICE, each marked as code; prose otherwise. */
static void print_values(const char *kind, const char *values)
{
    if (strcmp(kind, "CHOICE") != 0) {
        print_prose(values);
        return;
    }
    for (const char *word = values; *word != '\0';) {
        size_t length = strcspn(word, " ");

        printf("%s`%.*s`", word == values ? "" : ", ", (int)length, word);
        word += length + (word[length] == ' ');
    }
}

static void print_row(const char *name, const char *kind, const char *fallback, const char *values,
                      const char *help)
{
    printf("| `%s` | ", name);
    print_values(kind, values);
    fputs(" | ", stdout);
    if (has_literal_values(kind))
        printf("`%s`", fallback);
    else
        print_prose(fallback);
    fputs(" | ", stdout);
    print_prose(help);
    fputs(" |\n", stdout);
}

int main(void)
{
    fputs(head, stdout);
#define OPTION(name, kind, field, fallback, if_bad, values, help)                                  \
    print_row(#name, #kind, fallback, values, help);
#include "enforcer/config.def"
    fputs(tail, stdout);
    return fflush(stdout) == 0 ? 0 : 2;
}
