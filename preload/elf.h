/*
 * The loader's list of modules and their symbol tables, read directly: no libc call, no lock.
 * Modules that are being loaded or unloaded by another thread at this moment may be missed; a
 * module that stays (libc, a pinned libcuda) is always found.
 */
#ifndef VRAMCAP_PRELOAD_ELF_H
#define VRAMCAP_PRELOAD_ELF_H

#include <link.h>
#include <stdbool.h>
#include <stdint.h>

/* The first module of the main namespace with this DT_SONAME; NULL: none. */
struct link_map *vcap_elf_find(const char *soname);

/* The address of a defined function or object; NULL: not defined there.  Versions are ignored (no
 * symbol asked for here has two of different meaning). */
void *vcap_elf_symbol(const struct link_map *module, const char *name);

/* The module's span in memory, from its program headers. */
void vcap_elf_span(const struct link_map *module, uintptr_t *low, uintptr_t *high);

#endif
