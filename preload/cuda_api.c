/*
 * The rows as data: names packed in one block without pointers (no relocations), found by hash.  All tables
 * are made at build time (docs/gen_rows.c) but for the index by address, which vcap_rows_index fills once.
 */
#include "preload/cuda_api.h"

#include "preload/row_hash.h"
#include "preload/rows.h"
#include "preload/unknown.h"

struct vcap_real vcap_real;
struct vcap_own vcap_own;

/* Every symbol with its NUL, one after the other; offsets come from the members. */
struct names {
#define NAME(symbol, text) char symbol[sizeof(text)];
#define HOOK(base, since, suffix, rule) NAME(base##suffix, #base #suffix)
#define HOOK_STREAM(base, since, suffix, rule)                                                     \
    NAME(base##suffix, #base #suffix) NAME(base##suffix##_ptsz, #base #suffix "_ptsz")
#define PASS HOOK
#define PASS_STREAM HOOK_STREAM
#define PASS_PTDS(base, since, suffix, why)                                                        \
    NAME(base##suffix, #base #suffix) NAME(base##suffix##_ptds, #base #suffix "_ptds")
#define GAP HOOK
#define GAP_STREAM HOOK_STREAM
#include "preload/cuda_api.def"
#undef NAME
};

static const struct names names = {
#define NAME(symbol, text) .symbol = text,
#define HOOK(base, since, suffix, rule) NAME(base##suffix, #base #suffix)
#define HOOK_STREAM(base, since, suffix, rule)                                                     \
    NAME(base##suffix, #base #suffix) NAME(base##suffix##_ptsz, #base #suffix "_ptsz")
#define PASS HOOK
#define PASS_STREAM HOOK_STREAM
#define PASS_PTDS(base, since, suffix, why)                                                        \
    NAME(base##suffix, #base #suffix) NAME(base##suffix##_ptds, #base #suffix "_ptds")
#define GAP HOOK
#define GAP_STREAM HOOK_STREAM
#include "preload/cuda_api.def"
#undef NAME
};

/* A twin exists from CUDA 7.0 or from its row's `since`, whichever is later. */
#define TWIN_SINCE(since) ((since) > 7000 ? (since) : 7000)

/* Where hooks[] has a row's function: one after the other, those that pass have none. */
enum {
    NO_HOOK,
#define HOOK(base, since, suffix, rule) AT_##base##suffix,
#define HOOK_STREAM(base, since, suffix, rule) AT_##base##suffix, AT_##base##suffix##_ptsz,
#define GAP HOOK
#define GAP_STREAM HOOK_STREAM
#include "preload/cuda_api.def"
    HOOKS
};
_Static_assert(HOOKS <= UINT8_MAX, "struct row has 8 bits for it");

struct row {
    uint16_t name; /* offset in names */
    uint16_t since;
    uint8_t base_length;
    uint8_t kind;
    uint8_t twin; /* 1: the per-thread variant */
    uint8_t hook; /* in hooks[] */
};

#define ROW(symbol, base, since, kind, twin, hook)                                                 \
    {__builtin_offsetof(struct names, symbol), since, sizeof(#base) - 1, kind, twin, hook},
#define ONE(base, since, suffix, kind) ROW(base##suffix, base, since, kind, 0, AT_##base##suffix)
#define PAIR(base, since, suffix, kind)                                                            \
    ONE(base, since, suffix, kind)                                                                 \
    ROW(base##suffix##_ptsz, base, TWIN_SINCE(since), kind, 1, AT_##base##suffix##_ptsz)
#define PASSES(base, since, suffix, end)                                                           \
    ROW(base##suffix, base, since, VCAP_KIND_PASS, 0, NO_HOOK)                                     \
    ROW(base##suffix##end, base, TWIN_SINCE(since), VCAP_KIND_PASS, 1, NO_HOOK)
static const struct row rows[VCAP_ROWS] = {
#define HOOK(base, since, suffix, rule) ONE(base, since, suffix, VCAP_KIND_HOOK)
#define HOOK_STREAM(base, since, suffix, rule) PAIR(base, since, suffix, VCAP_KIND_HOOK)
#define PASS(base, since, suffix, why) ROW(base##suffix, base, since, VCAP_KIND_PASS, 0, NO_HOOK)
#define PASS_STREAM(base, since, suffix, why) PASSES(base, since, suffix, _ptsz)
#define PASS_PTDS(base, since, suffix, why) PASSES(base, since, suffix, _ptds)
#define GAP(base, since, suffix, lost) ONE(base, since, suffix, VCAP_KIND_GAP)
#define GAP_STREAM(base, since, suffix, lost) PAIR(base, since, suffix, VCAP_KIND_GAP)
#include "preload/cuda_api.def"
};
_Static_assert(sizeof(names) < UINT16_MAX, "offsets fit 16 bits");

/* The counting stubs of gap_*.S. */
#define STUB(symbol) extern char vcap_stub_##symbol[] __attribute__((visibility("hidden")));
#define GAP(base, since, suffix, lost) STUB(base##suffix)
#define GAP_STREAM(base, since, suffix, lost) STUB(base##suffix) STUB(base##suffix##_ptsz)
#include "preload/cuda_api.def"
#undef STUB

/*
 * What to hand out for a row.  The library is linked with -Bsymbolic, so these are our own
 * functions even if another module defines the same names in front of us: two interposers never
 * call each other in turns.  Dense, because every program pays at its start for the pages that hold
 * addresses: with what else is written once (RELRO) they are one.
 */
static void *const hooks[HOOKS] = {
#define HOOK(base, since, suffix, rule) [AT_##base##suffix] = (void *)base##suffix,
#define HOOK_STREAM(base, since, suffix, rule)                                                     \
    [AT_##base##suffix] = (void *)base##suffix,                                                    \
    [AT_##base##suffix##_ptsz] = (void *)base##suffix##_ptsz,
#define GAP(base, since, suffix, lost) [AT_##base##suffix] = vcap_stub_##base##suffix,
#define GAP_STREAM(base, since, suffix, lost)                                                      \
    [AT_##base##suffix] = vcap_stub_##base##suffix,                                                \
    [AT_##base##suffix##_ptsz] = vcap_stub_##base##suffix##_ptsz,
#include "preload/cuda_api.def"
};

static const uint16_t gap_rows[] = {
#define GAP(base, since, suffix, lost) VCAP_ROW_##base##suffix,
#define GAP_STREAM(base, since, suffix, lost)                                                      \
    VCAP_ROW_##base##suffix, VCAP_ROW_##base##suffix##_ptsz,
#include "preload/cuda_api.def"
};

#include "row_index.inc" /* by_symbol, by_base, next_base */
_Static_assert(sizeof(next_base) == VCAP_ROWS * sizeof(uint16_t), "made from this table");

static uint16_t by_address[VCAP_INDEX_SIZE]; /* row + 1; 0 = empty */

static const char *text(unsigned row)
{
    return (const char *)&names + rows[row].name;
}

static uint32_t hash_address(const void *address)
{
    uint64_t mixed = (uint64_t)(uintptr_t)address * UINT64_C(0x9e3779b97f4a7c15);

    return (uint32_t)(mixed >> 40);
}

static unsigned length_of(const char *name)
{
    unsigned length = 0;

    while (name[length] != 0)
        length++;
    return length;
}

static bool starts(const char *name, const char *with, unsigned length)
{
    for (unsigned i = 0; i < length; i++)
        if (name[i] != with[i])
            return false;
    return true;
}

static bool has_base(unsigned row, const char *base, unsigned length)
{
    return rows[row].base_length == length && starts(text(row), base, length);
}

enum vcap_row_kind vcap_row_kind(unsigned row)
{
    return (enum vcap_row_kind)rows[row].kind;
}

const char *vcap_row_symbol(unsigned row)
{
    return text(row);
}

void *vcap_row_hook(unsigned row)
{
    return hooks[rows[row].hook];
}

unsigned vcap_gap_row(uint32_t gap)
{
    return gap_rows[gap];
}

void **vcap_row_real(unsigned row)
{
    return (void **)(void *)&vcap_real + row;
}

void vcap_rows_index(void)
{
    for (unsigned row = 0; row < VCAP_ROWS; row++) {
        const void *address = *vcap_row_real(row);
        uint32_t at;

        if (address == NULL)
            continue;
        for (at = hash_address(address); by_address[at % VCAP_INDEX_SIZE] != 0; at++)
            ;
        by_address[at % VCAP_INDEX_SIZE] = (uint16_t)(row + 1);
    }
}

int vcap_row_by_symbol(const char *name)
{
    unsigned length;

    for (uint32_t at = vcap_row_hash(name, &length); by_symbol[at % VCAP_INDEX_SIZE] != 0; at++) {
        unsigned row = by_symbol[at % VCAP_INDEX_SIZE] - 1u;

        if (starts(text(row), name, length + 1))
            return (int)row;
    }
    return -1;
}

int vcap_row_by_address(const char *base, const void *address)
{
    unsigned length = 0;
    int found = -1;

    for (uint32_t at = hash_address(address); by_address[at % VCAP_INDEX_SIZE] != 0; at++) {
        unsigned row = by_address[at % VCAP_INDEX_SIZE] - 1u;

        if (*vcap_row_real(row) != address)
            continue;
        found = (int)row;
        length = length != 0 ? length : length_of(base);
        /* two names of one function: the one that was asked for */
        if (has_base(row, base, length))
            break;
    }
    return found;
}

/* The first row of a base name; -1: there is none. */
static int first_of_base(const char *base)
{
    unsigned length;

    for (uint32_t at = vcap_row_hash(base, &length); by_base[at % VCAP_INDEX_SIZE] != 0; at++)
        if (has_base(by_base[at % VCAP_INDEX_SIZE] - 1u, base, length))
            return by_base[at % VCAP_INDEX_SIZE] - 1;
    return -1;
}

int vcap_row_by_version(const char *base, int version, bool per_thread)
{
    int found = -1;

    for (int row = first_of_base(base); row >= 0; row = next_base[row] - 1) {
        const struct row *r = &rows[row];

        if (r->twin == 0 && r->since <= version && (found < 0 || r->since > rows[found].since))
            found = row;
    }
    /* a twin stands right behind its row; who asks for it with a version older than twins means it too */
    if (found >= 0 && per_thread && found + 1 < VCAP_ROWS && rows[found + 1].twin != 0)
        found++;
    return found;
}

bool vcap_base_is_known(const char *base)
{
    return first_of_base(base) >= 0;
}

bool vcap_base_is_accounted(const char *base)
{
    for (int row = first_of_base(base); row >= 0; row = next_base[row] - 1)
        if (rows[row].kind != VCAP_KIND_PASS)
            return true;
    return false;
}

/* ---- names without a row (unknown.h): here, where nothing is instrumented ---- */

/* What begins like this is memory, a context, or a graph's memory; the rest of the driver's names copy, set,
 * launch or ask.  Text in place: no pointers, no relocations. */
struct prefix {
    char text[23];
    uint8_t length;
};
#define PREFIX(text)                                                                               \
    {                                                                                              \
        text, sizeof(text) - 1                                                                     \
    }
static const struct prefix families[] = {PREFIX("cuMem"),
                                         PREFIX("cuArray"),
                                         PREFIX("cuMipmappedArray"),
                                         PREFIX("cuIpc"),
                                         PREFIX("cuMulticast"),
                                         PREFIX("cuImportExternal"),
                                         PREFIX("cuExternalMemory"),
                                         PREFIX("cuCtxCreate"),
                                         PREFIX("cuCtxDestroy"),
                                         PREFIX("cuCtxSetLimit"),
                                         PREFIX("cuDevicePrimaryCtx"),
                                         PREFIX("cuGreenCtxCreate"),
                                         PREFIX("cuGLCtx"),
                                         PREFIX("cuVDPAUCtx"),
                                         PREFIX("cuGraphInstantiate"),
                                         PREFIX("cuGraphLaunch"),
                                         PREFIX("cuGraphUpload"),
                                         PREFIX("cuGraphAddMem"),
                                         PREFIX("cuGraphAddNode")};
static const struct prefix others[] = {PREFIX("cuMemcpy"), PREFIX("cuMemset")};

static bool begins_like_one(const char *name, const struct prefix *all, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (all[i].text[2] == name[2] && starts(name, all[i].text, all[i].length))
            return true;
    return false;
}

bool vcap_unknown_may_allocate(const char *name)
{
    return name[0] == 'c' && name[1] == 'u' && name[2] != '\0' &&
           begins_like_one(name, families, sizeof(families) / sizeof(families[0])) &&
           !begins_like_one(name, others, sizeof(others) / sizeof(others[0]));
}
