/*
 * Where libvramcap.so is, and how it gets into LD_PRELOAD.
 */
#ifndef VRAMCAP_ENFORCER_CLI_LIBRARY_PATH_H
#define VRAMCAP_ENFORCER_CLI_LIBRARY_PATH_H

#include <stddef.h>

/* Where a container finds the library that CDI or a bind mount brings in. */
#define VCAP_CONTAINER_LIBRARY "/opt/vramcap/libvramcap.so"

/*
 * The library's canonical path: the one named, else the one installed with this executable, else
 * (only if this executable is still where it was built) the one in the build tree.  0, or -ENOENT
 * and the like with one line in why.
 */
int vcap_library_find(const char *named, char *path, size_t path_size, char *why, size_t why_size);

/* The same for another file of the installation (name: below the library's folder), or of the build. */
int vcap_library_find_file(const char *name, char *path, size_t path_size, char *why,
                           size_t why_size);

/*
 * A value for LD_PRELOAD: library first, then what was there (old, may be NULL) without entries
 * that are the same file.  malloc'd.  -EINVAL: the loader would split the path; -ENOMEM.
 */
int vcap_library_preload(const char *library, const char *old, char **preload);

#endif
