/*
 * Reads the loader's structures as the ELF gABI and the GNU hash section lay them down.
 * Freestanding: compiled without builtins and sanitizers.
 */
#include "preload/elf.h"

#include <elf.h>
#include <stddef.h>

static bool same(const char *a, const char *b)
{
    while (*a != 0 && *a == *b) {
        a++;
        b++;
    }
    return *a == *b;
}

/* glibc relocates d_ptr in place on the architectures that it maps .dynamic writable for; others
 * not */
static const void *pointer(const struct link_map *module, ElfW(Addr) value)
{
    return (const void *)(value < module->l_addr ? module->l_addr + value : value);
}

bool vcap_elf_read(const struct link_map *module, struct vcap_elf_tables *t)
{
    ElfW(Xword) soname = 0;
    bool named = false;

    t->base = module->l_addr;
    t->strings = NULL;
    t->symbols = NULL;
    t->gnu_hash = t->sysv_hash = NULL;
    t->soname = NULL;
    if (module->l_ld == NULL)
        return false;
    for (const ElfW(Dyn) *d = module->l_ld; d->d_tag != DT_NULL; d++) {
        switch (d->d_tag) {
        case DT_STRTAB:
            t->strings = pointer(module, d->d_un.d_ptr);
            break;
        case DT_SYMTAB:
            t->symbols = pointer(module, d->d_un.d_ptr);
            break;
        case DT_GNU_HASH:
            t->gnu_hash = pointer(module, d->d_un.d_ptr);
            break;
        case DT_HASH:
            t->sysv_hash = pointer(module, d->d_un.d_ptr);
            break;
        case DT_SONAME:
            soname = d->d_un.d_val;
            named = true;
            break;
        default:
            break;
        }
    }
    if (named && t->strings != NULL)
        t->soname = t->strings + soname;
    return t->strings != NULL && t->symbols != NULL;
}

struct link_map *vcap_elf_find(const char *soname)
{
    for (struct link_map *m = _r_debug.r_map; m != NULL; m = m->l_next) {
        struct vcap_elf_tables t;

        if (vcap_elf_read(m, &t) && t.soname != NULL && same(t.soname, soname))
            return m;
    }
    return NULL;
}

struct looking {
    const char *soname;
    struct link_map *found;
};

static int look(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct looking *looking = arg;
    struct link_map m;
    struct vcap_elf_tables t;

    (void)size;
    m.l_addr = info->dlpi_addr;
    for (unsigned i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC)
            continue;
        m.l_ld = (ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
        if (vcap_elf_read(&m, &t) && t.soname != NULL && same(t.soname, looking->soname)) {
            looking->found->l_addr = m.l_addr;
            looking->found->l_ld = m.l_ld;
            return 1;
        }
    }
    return 0;
}

bool vcap_elf_find_shared(void *iterate, const char *soname, struct link_map *found)
{
    // cppcheck-suppress ctuuninitvar ; it is what this function fills
    struct looking looking = {soname, found};

    return iterate != NULL && ((int (*)(int (*)(struct dl_phdr_info *, size_t, void *),
                                        void *))iterate)(look, &looking) == 1;
}

static void *defined(const struct vcap_elf_tables *t, uint32_t index, const char *name)
{
    const ElfW(Sym) *symbol = &t->symbols[index];
    unsigned type = symbol->st_info & 0xf;

    if (symbol->st_shndx == SHN_UNDEF || symbol->st_value == 0 ||
        (type != STT_FUNC && type != STT_OBJECT && type != STT_NOTYPE) ||
        !same(t->strings + symbol->st_name, name))
        return NULL;
    return (void *)(t->base + symbol->st_value);
}

static void *find_gnu(const struct vcap_elf_tables *t, const char *name)
{
    const uint32_t *h = t->gnu_hash;
    uint32_t buckets = h[0], first = h[1], bloom_words = h[2], shift = h[3], hash = 5381, index;
    const ElfW(Addr) *bloom = (const ElfW(Addr) *)(const void *)(h + 4);
    const uint32_t *bucket = (const uint32_t *)(const void *)(bloom + bloom_words);
    const uint32_t *chain = bucket + buckets;
    const uint32_t bits = sizeof(ElfW(Addr)) * 8;
    ElfW(Addr) word;

    for (const char *c = name; *c != 0; c++)
        hash = hash * 33 + (unsigned char)*c;
    word = bloom[hash / bits % bloom_words];
    if (((word >> hash % bits) & (word >> (hash >> shift) % bits) & 1) == 0)
        return NULL;
    index = buckets == 0 ? 0 : bucket[hash % buckets];
    if (index < first)
        return NULL;
    for (;; index++) {
        uint32_t link = chain[index - first];
        void *found = (link | 1) == (hash | 1) ? defined(t, index, name) : NULL;

        if (found != NULL || (link & 1) != 0)
            return found;
    }
}

void *vcap_elf_lookup(const struct vcap_elf_tables *t, const char *name)
{
    if (t->gnu_hash != NULL)
        return find_gnu(t, name);
    if (t->sysv_hash == NULL)
        return NULL;
    for (uint32_t i = 1; i < t->sysv_hash[1];
         i++) { /* old libraries; the count of symbols is nchain */
        void *found = defined(t, i, name);

        if (found != NULL)
            return found;
    }
    return NULL;
}

void *vcap_elf_symbol(const struct link_map *module, const char *name)
{
    struct vcap_elf_tables t;

    return vcap_elf_read(module, &t) ? vcap_elf_lookup(&t, name) : NULL;
}

void vcap_elf_span(const struct link_map *module, uintptr_t *low, uintptr_t *high)
{
    /* a shared object's first segment starts with its ELF header and is linked at 0 */
    const ElfW(Ehdr) *header = (const ElfW(Ehdr) *)module->l_addr;
    const ElfW(Phdr) *segment =
        (const ElfW(Phdr) *)(const void *)((const char *)header + header->e_phoff);

    *low = module->l_addr;
    *high = module->l_addr;
    for (unsigned i = 0; i < header->e_phnum; i++) {
        uintptr_t end = module->l_addr + segment[i].p_vaddr + segment[i].p_memsz;

        if (segment[i].p_type == PT_LOAD && end > *high)
            *high = end;
    }
}
