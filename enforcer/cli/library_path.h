/*
 * Where libvramcap.so is, and how it gets into LD_PRELOAD.
 */
#ifndef VRAMCAP_ENFORCER_CLI_LIBRARY_PATH_H
#define VRAMCAP_ENFORCER_CLI_LIBRARY_PATH_H

#include <stddef.h>

/*
 * The library's canonical path: the one named, else the one installed with this executable, else
 * (only if this executable is still where it was built) the one in the build tree.  0, or -ENOENT
 * and the like with one line in why.
 */
int vcap_library_find(const char *named, char *path, size_t path_size, char *why, size_t why_size);

/*
 * A value for LD_PRELOAD: library first, then what was there (old, may be NULL) without entries
 * that are the same file.  malloc'd.  -EINVAL: the loader would split the path; -ENOMEM.
 */
int vcap_library_preload(const char *library, const char *old, char **preload);

#endif
