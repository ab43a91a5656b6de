/*
 * The loader's list of modules and their symbol tables, read directly: no libc call but the one that is
 * handed in.
 */
#ifndef VRAMCAP_PRELOAD_ELF_H
#define VRAMCAP_PRELOAD_ELF_H

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

/* The first module of the main namespace with this DT_SONAME; NULL: none.  Only for modules that were
 * there at start and stay (libc): another thread may unmap any other while it is looked at. */
struct link_map *vcap_elf_find(const char *soname);

/* The same for any module: iterate is libc's dl_iterate_phdr, which holds the loader's list still.  Fills
 * l_addr and l_ld of *found; false: none. */
bool vcap_elf_find_shared(void *iterate, const char *soname, struct link_map *found);

/* A module's symbol table, read once for many look-ups; false: it has none that can be searched. */
struct vcap_elf_tables {
    uintptr_t base;
    const char *strings;
    const ElfW(Sym) * symbols;
    const uint32_t *gnu_hash;
    const uint32_t *sysv_hash;
    const char *soname;
};
bool vcap_elf_read(const struct link_map *module, struct vcap_elf_tables *tables);

/* The address of a defined function or object; NULL: not defined there.  Versions are ignored (no
 * symbol asked for here has two of different meaning). */
void *vcap_elf_lookup(const struct vcap_elf_tables *tables, const char *name);

/* Both, for one symbol. */
void *vcap_elf_symbol(const struct link_map *module, const char *name);

/* The module's span in memory, from its program headers. */
void vcap_elf_span(const struct link_map *module, uintptr_t *low, uintptr_t *high);

#endif
