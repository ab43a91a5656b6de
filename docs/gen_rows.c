/*
 * Makes row_index.inc at build time, from cuda_api.def: where a name's search among the rows begins, so that
 * no process has to work that out at its start.  Three tables of row numbers:
 *     by_symbol   open addressing by the hash of the whole symbol; row + 1, 0 = empty
 *     by_base     the same by base name, of the first row that has it
 *     next_base   per row: the next row of the same base + 1, 0 = none
 */
#include <stdio.h>
#include <string.h>

#include "preload/row_hash.h"

struct row {
    const char *symbol, *base;
};

static const struct row rows[] = {
#define ONE(base, suffix) {#base #suffix, #base},
#define HOOK(base, since, suffix, rule) ONE(base, suffix)
#define HOOK_STREAM(base, since, suffix, rule) ONE(base, suffix) ONE(base, suffix##_ptsz)
#define PASS HOOK
#define PASS_STREAM HOOK_STREAM
#define PASS_PTDS(base, since, suffix, why) ONE(base, suffix) ONE(base, suffix##_ptds)
#define GAP HOOK
#define GAP_STREAM HOOK_STREAM
#include "preload/cuda_api.def"
};
#define ROWS (sizeof(rows) / sizeof(rows[0]))
_Static_assert(ROWS * 2 < VCAP_INDEX_SIZE, "the indexes are at most half full");

static unsigned by_symbol[VCAP_INDEX_SIZE], by_base[VCAP_INDEX_SIZE], next_base[ROWS];

static void print(const char *name, const unsigned *values, size_t count)
{
    printf("static const uint16_t %s[%zu] = {", name, count);
    for (size_t i = 0; i < count; i++)
        printf("%s%u,", i % 16 == 0 ? "\n    " : " ", values[i]);
    printf("\n};\n");
}

int main(void)
{
    for (unsigned row = 0; row < ROWS; row++) {
        const char *symbol = rows[row].symbol, *base = rows[row].base;
        unsigned length;
        uint32_t at = vcap_row_hash(symbol, &length);
        unsigned *link;

        while (by_symbol[at % VCAP_INDEX_SIZE] != 0)
            at++;
        by_symbol[at % VCAP_INDEX_SIZE] = row + 1;
        at = vcap_row_hash(base, &length);
        while (by_base[at % VCAP_INDEX_SIZE] != 0 &&
               strcmp(rows[by_base[at % VCAP_INDEX_SIZE] - 1].base, base) != 0)
            at++;
        for (link = &by_base[at % VCAP_INDEX_SIZE]; *link != 0; link = &next_base[*link - 1])
            ;
        *link = row + 1;
    }
    printf("/* Made by gen_rows.c from cuda_api.def. */\n");
    print("by_symbol", by_symbol, VCAP_INDEX_SIZE);
    print("by_base", by_base, VCAP_INDEX_SIZE);
    print("next_base", next_base, ROWS);
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : 1;
}
