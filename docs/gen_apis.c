/*
 * Prints docs/apis.md from the two tables, preload/cuda_api.def and
 * preload/nvml_api.def: what vramcap does about each entry point of the driver.
 *
 *   gen_apis                  the document on stdout
 *   gen_apis --check FILE     0 if FILE is that document, 1 if not, 2 on errors
 *
 * Needs no CUDA header: names are only ever turned into strings. The words for a
 * RULE stand here and nowhere else; a rule of the tables without words, or words
 * without a rule, is an error.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { KIND_HOOK, KIND_PASS, KIND_GAP };

struct row {
    enum kind kind;
    int since;          /* CUDA version as in PFN_<base>_v<since>; 0 for NVML */
    const char *base;   /* NVML: the whole name */
    const char *suffix; /* ABI suffix, may be empty */
    const char *twin;   /* suffix of the per-thread twin, may be empty */
    const char *note;   /* HOOK: the rule's name; PASS, GAP: a phrase */
};

static const struct row cuda_rows[] = {
#define HOOK(base, since, suffix, rule) {KIND_HOOK, since, #base, #suffix, "", #rule},
#define HOOK_STREAM(base, since, suffix, rule) {KIND_HOOK, since, #base, #suffix, "_ptsz", #rule},
#define PASS(base, since, suffix, why) {KIND_PASS, since, #base, #suffix, "", why},
#define PASS_STREAM(base, since, suffix, why) {KIND_PASS, since, #base, #suffix, "_ptsz", why},
#define PASS_PTDS(base, since, suffix, why) {KIND_PASS, since, #base, #suffix, "_ptds", why},
#define GAP(base, since, suffix, lost) {KIND_GAP, since, #base, #suffix, "", lost},
#define GAP_STREAM(base, since, suffix, lost) {KIND_GAP, since, #base, #suffix, "_ptsz", lost},
#include "../preload/cuda_api.def"
};

static const struct row nvml_rows[] = {
#define NVML_HOOK(name, rule) {KIND_HOOK, 0, #name, "", "", #rule},
#define NVML_PASS(name, why) {KIND_PASS, 0, #name, "", "", why},
#define NVML_GAP(name, lost) {KIND_GAP, 0, #name, "", "", lost},
#include "../preload/nvml_api.def"
};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static const struct {
    const char *rule;
    const char *words;
} rule_words[] = {
    {"INIT", "forwarded; when the driver is up, its devices are matched with the ceilings"},
    {"RESOLVER",
     "the driver answers first; an answer that is a hooked entry point becomes our hook"},
    {"CHARGE_LINEAR",
     "charged before the call at the size the driver takes, given back if the call fails"},
    {"CHARGE_PITCHED", "as linear memory, for the pitch that the driver chose times the height"},
    {"CHARGE_MANAGED", "charged in full wherever its pages are, unless managed memory is ignored"},
    {"RELEASE", "the pointer's charge is released once the driver has freed it"},
    {"CHARGE_POOL", "the pool is charged what it has reserved of its device: the size is charged "
                    "before the call, unless "
                    "the pool holds it idle, and the driver's figure after it; a captured call "
                    "makes a node and costs "
                    "nothing; host pools cost nothing, managed ones as managed memory does"},
    {"RELEASE_ASYNC",
     "the charge of a pointer that no pool holds is released; a pool's pointer stays in its pool's "
     "reserve, or leaves a destroyed pool's charge"},
    {"CHARGE_PHYSICAL", "charged in full if the properties name a device, whatever context is "
                        "current; host memory costs nothing"},
    {"RELEASE_PHYSICAL",
     "one reference less; the charge ends with the last reference and the last mapping"},
    {"RETAIN_PHYSICAL", "one reference more, which keeps the charge"},
    {"MAP_PHYSICAL", "a mapping keeps the charge after the handles are released"},
    {"UNMAP_PHYSICAL",
     "all mappings in the range end together; the charge ends with the last reference and mapping"},
    {"EXPORT", "what other processes may open is put on record, so that it is charged once"},
    {"IMPORT_PHYSICAL",
     "at its first mapping: on record in this container, it is shown as imported; if not, charged"},
    {"IMPORT_OPEN", "on record in this container, it is shown as imported; if not, charged"},
    {"IMPORT_CLOSE", "the last close ends what opening it showed or charged"},
    {"CHARGE_EXTERNAL",
     "memory of another API is charged at its size, on the current context's device"},
    {"RELEASE_EXTERNAL", "the charge of the import is released; it goes with its context too"},
    {"POOL_CREATE", "nothing is charged; where the pool is decides what its allocations cost"},
    {"POOL_DESTROY",
     "the pool's charge becomes the sum of its live pointers, until the last is freed"},
    {"POOL_SETTLE", "the pool is charged what it has reserved afterwards"},
    {"POOL_IMPORT", "nothing is charged: the exporting process is"},
    {"POOL_EXPORT", "the pointer is put on record, so that it is charged once"},
    {"POOL_IMPORT_POINTER", "shown as imported until it is freed and not charged where its export "
                            "is on record, else charged "
                            "like linear memory"},
    {"POOL_NAMED",
     "nothing is charged; whether the pool is of the host, of managed memory or of a device "
     "is remembered"},
    {"CHARGE_GRAPH",
     "the device's graph pool is charged what it has reserved afterwards, with room or without; "
     "refused "
     "beforehand if the largest allocation node exceeds the room and the pool's unused reserve"},
    {"GRAPH_INSTANTIATE", "looks once for allocation nodes; costs nothing, but with the upload "
                          "flag what an upload costs"},
    {"GRAPH_SETTLE", "the device's graph pool is charged what it has reserved afterwards"},
    {"SYNCHRONIZE", "if this process freed to a pool since, its pools are charged what they have "
                    "reserved afterwards"},
    {"CHARGE_ARRAY",
     "charged before the call at an upper bound by format, dimensions, layers and levels"},
    {"CHARGE_LIMIT",
     "the increase over the context's own value is charged before the call and settled "
     "by what the driver set; growth of stacks at a launch is not seen"},
    {"RELEASE_ARRAY", "the charge of the array and all its levels is released once it is freed"},
    {"CONTEXT_CREATE", "the context's own device memory is overhead, charged or measured as "
                       "`VRAMCAP_CONTEXT_MIB` says"},
    {"CONTEXT_DESTROY",
     "what was allocated in the context is released with it, if the driver destroyed it"},
    {"PRIMARY_RETAIN", "as a created context, the first time the primary context comes up"},
    {"PRIMARY_RELEASE",
     "if it was the last release, what was allocated in the primary context is released"},
    {"PRIMARY_RESET", "what was allocated in the primary context is released"},
    {"GREEN_CREATE",
     "if it brings the primary context up, that one's overhead is charged; nothing more"},
    {"GREEN_CONTEXT", "known from then on as a handle of the primary context, at no cost"},
    {"GREEN_DESTROY",
     "if it held the primary context last, what was allocated in that one is released"},
    {"VIEW_INFO",
     "total is at most the ceiling, free at most what the ceiling leaves; under an MPS limit "
     "the driver's answer also measures overhead"},
    {"VIEW_TOTAL", "total is at most the ceiling"},
    {"VIEW_NVML",
     "under a ceiling below the card's size, total is the ceiling, free what it leaves, "
     "used their difference; otherwise NVML's own figures"},
};

static const char *words_of(const char *rule)
{
    for (size_t i = 0; i < COUNT(rule_words); i++) {
        if (strcmp(rule_words[i].rule, rule) == 0) {
            return rule_words[i].words;
        }
    }
    return NULL;
}

static bool has_rule(const struct row *rows, size_t count, const char *rule)
{
    for (size_t i = 0; i < count; i++) {
        if (rows[i].kind == KIND_HOOK && strcmp(rows[i].note, rule) == 0) {
            return true;
        }
    }
    return false;
}

static bool rules_have_words(const struct row *rows, size_t count)
{
    bool ok = true;

    for (size_t i = 0; i < count; i++) {
        if (rows[i].kind == KIND_HOOK && words_of(rows[i].note) == NULL) {
            fprintf(stderr, "gen_apis: rule %s of %s has no words\n", rows[i].note, rows[i].base);
            ok = false;
        }
    }
    return ok;
}

static bool words_have_rules(void)
{
    bool ok = true;

    for (size_t i = 0; i < COUNT(rule_words); i++) {
        if (!has_rule(cuda_rows, COUNT(cuda_rows), rule_words[i].rule) &&
            !has_rule(nvml_rows, COUNT(nvml_rows), rule_words[i].rule)) {
            fprintf(stderr, "gen_apis: no row has the rule %s\n", rule_words[i].rule);
            ok = false;
        }
    }
    return ok;
}

static unsigned count_kind(const struct row *rows, size_t count, enum kind kind)
{
    unsigned n = 0;

    for (size_t i = 0; i < count; i++) {
        n += rows[i].kind == kind;
    }
    return n;
}

static unsigned count_bases(const struct row *rows, size_t count)
{
    unsigned n = 0;

    for (size_t i = 0; i < count; i++) {
        size_t j = 0;

        while (strcmp(rows[j].base, rows[i].base) != 0) {
            j++;
        }
        n += j == i;
    }
    return n;
}

static unsigned count_twins(const struct row *rows, size_t count)
{
    unsigned n = 0;

    for (size_t i = 0; i < count; i++) {
        n += rows[i].twin[0] != '\0';
    }
    return n;
}

static void print_cuda_rows(FILE *out, enum kind kind, const char *note_title)
{
    fprintf(out, "| Entry point | CUDA | Per-thread twin | %s |\n| --- | --- | --- | --- |\n",
            note_title);
    for (size_t i = 0; i < COUNT(cuda_rows); i++) {
        const struct row *row = &cuda_rows[i];

        if (row->kind != kind) {
            continue;
        }
        fprintf(out, "| `%s%s` | %d.%d | ", row->base, row->suffix, row->since / 1000,
                row->since % 1000 / 10);
        if (row->twin[0] != '\0') {
            fprintf(out, "`%s` ", row->twin);
        }
        fprintf(out, "| %s |\n", kind == KIND_HOOK ? words_of(row->note) : row->note);
    }
}

static void print_nvml_rows(FILE *out)
{
    static const char *const kind_words[] = {"handled", "passes", "gap"};

    fputs("| Entry point | | Rule, reason or loss |\n| --- | --- | --- |\n", out);
    for (size_t i = 0; i < COUNT(nvml_rows); i++) {
        const struct row *row = &nvml_rows[i];

        fprintf(out, "| `%s` | %s | %s |\n", row->base, kind_words[row->kind],
                row->kind == KIND_HOOK ? words_of(row->note) : row->note);
    }
}

static void print_document(FILE *out)
{
    const size_t cuda_count = COUNT(cuda_rows);
    const size_t nvml_count = COUNT(nvml_rows);

    fputs("<!-- Generated by docs/gen_apis.c from preload/cuda_api.def and preload/nvml_api.def; "
          "do not edit. -->\n"
          "# Entry points and what vramcap does about them\n\n"
          "Every entry point of the CUDA driver that takes, gives back, shares or reports device "
          "memory is in\n"
          "one of three tables. *Handled*: vramcap stands in front of it and accounts for it. "
          "*Gap*: it is passed\n"
          "through although something is lost by that, and the table says what. *Passes*: it is "
          "passed through,\n"
          "and the table says why nothing is lost. Calls in no table (copies, launches, textures, "
          "events and the\n"
          "like) are passed through. A contract test holds the list against NVIDIA's headers.\n\n"
          "An entry point has several ABIs where its name carries `_v2` and so on; *CUDA* is the "
          "version that\n"
          "brought that one. A per-thread twin is the same call under the name with `_ptsz` or "
          "`_ptds` added,\n"
          "and is treated alike.\n\n",
          out);

    fprintf(out, "CUDA driver: %zu entry points of %u names, and %u per-thread twins.\n\n",
            cuda_count, count_bases(cuda_rows, cuda_count), count_twins(cuda_rows, cuda_count));
    fputs("| | CUDA driver | NVML |\n| --- | --- | --- |\n", out);
    fprintf(out, "| Handled | %u | %u |\n", count_kind(cuda_rows, cuda_count, KIND_HOOK),
            count_kind(nvml_rows, nvml_count, KIND_HOOK));
    fprintf(out, "| Gaps | %u | %u |\n", count_kind(cuda_rows, cuda_count, KIND_GAP),
            count_kind(nvml_rows, nvml_count, KIND_GAP));
    fprintf(out, "| Passes | %u | %u |\n", count_kind(cuda_rows, cuda_count, KIND_PASS),
            count_kind(nvml_rows, nvml_count, KIND_PASS));

    fputs("\n## Handled\n\n", out);
    print_cuda_rows(out, KIND_HOOK, "Rule");
    fputs("\n## Gaps\n\n", out);
    print_cuda_rows(out, KIND_GAP, "What is lost");
    fputs("\n## Passes\n\n", out);
    print_cuda_rows(out, KIND_PASS, "Why nothing is lost");
    fputs("\n## NVML\n\n", out);
    print_nvml_rows(out);
}

/* 0 if the file holds exactly the document, 1 if not, 2 if it cannot be read. */
static int check_file(const char *path, const char *document, size_t bytes)
{
    FILE *file = fopen(path, "rb");
    size_t line = 1;
    size_t at = 0;
    int c;

    if (file == NULL) {
        fprintf(stderr, "gen_apis: %s: %s\n", path, strerror(errno));
        return 2;
    }
    while ((c = getc(file)) != EOF && at < bytes && c == (unsigned char)document[at]) {
        line += c == '\n';
        at++;
    }
    if (ferror(file)) {
        fprintf(stderr, "gen_apis: %s: read error\n", path);
        fclose(file);
        return 2;
    }
    fclose(file);
    if (c != EOF || at != bytes) {
        fprintf(stderr,
                "gen_apis: %s is not what the tables say, from line %zu on; write it anew with "
                "gen_apis\n",
                path, line);
        return 1;
    }
    return 0;
}

int main(int argc, char **argv)
{
    char *document = NULL;
    size_t bytes = 0;
    int rc = 0;

    if (argc != 1 && !(argc == 3 && strcmp(argv[1], "--check") == 0)) {
        fputs("usage: gen_apis [--check FILE]\n", stderr);
        return 2;
    }
    if (!rules_have_words(cuda_rows, COUNT(cuda_rows)) ||
        !rules_have_words(nvml_rows, COUNT(nvml_rows)) || !words_have_rules()) {
        return 2;
    }

    FILE *out = open_memstream(&document, &bytes);
    if (out == NULL) {
        perror("gen_apis");
        return 2;
    }
    print_document(out);
    bool failed = ferror(out) != 0;
    failed = fclose(out) != 0 || failed;
    if (failed) {
        fputs("gen_apis: out of memory\n", stderr);
        free(document);
        return 2;
    }

    if (argc == 3) {
        rc = check_file(argv[2], document, bytes);
    } else if (fwrite(document, 1, bytes, stdout) != bytes || fflush(stdout) != 0) {
        perror("gen_apis");
        rc = 2;
    }
    free(document);
    return rc;
}
