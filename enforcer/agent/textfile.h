/*
 * A file that others read while it is replaced (node_exporter's textfile collector): whole, or the
 * old one.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_TEXTFILE_H
#define VRAMCAP_ENFORCER_AGENT_TEXTFILE_H

#include <stddef.h>

/* Writes PATH by way of a temporary file in the same directory and rename(2); mode 0644.  0 or
 * -errno, and then the old file is as it was. */
int vcap_textfile_write(const char *path, const char *text, size_t length);

#endif
