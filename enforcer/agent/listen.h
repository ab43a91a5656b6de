/*
 * Sockets to listen on, from what an option says.
 */
#ifndef VRAMCAP_ENFORCER_AGENT_LISTEN_H
#define VRAMCAP_ENFORCER_AGENT_LISTEN_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

/* "127.0.0.1:9478", "[::1]:9478", "unix:/run/x.sock".  0 or -EINVAL with why; no names are looked up. */
int vcap_listen_parse(const char *place, struct sockaddr_storage *address, socklen_t *length,
                      char *why, size_t why_size);

/*
 * A listening socket, close-on-exec, or -errno with why.  A Unix socket that nobody listens on any more
 * is replaced; its mode is 0660.
 */
int vcap_listen_open(const char *place, char *why, size_t why_size);

/* Removes the name of a Unix socket. */
void vcap_listen_remove(const char *place);

#endif
