/*
 * Two processes in one scenario: the other one is forked before the driver is initialised, so that each
 * has a driver and a slot of its own.  They talk over a socket pair, never by time.
 */
#ifndef VRAMCAP_TESTS_HOOK_PAIR_H
#define VRAMCAP_TESTS_HOOK_PAIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Starts body in the other process, which exits with its value and dies with this one. */
bool pair_start(int (*body)(void));
pid_t pair_other(void);

/* A message with a descriptor unless fd is negative; fd may be NULL where none is expected. */
bool pair_send(const void *data, size_t size, int fd);
bool pair_receive(void *data, size_t size, int *fd);

#define TELL() CHECK(pair_send("x", 1, -1))
#define AWAIT()                                                                                    \
    do {                                                                                           \
        char awaited_;                                                                             \
        CHECK(pair_receive(&awaited_, 1, NULL));                                                   \
    } while (0)

/* Lets it end by itself, or kills it; its status, 128 + signal. */
int pair_wait(void);
void pair_kill(void);

/* Bytes that this process shows as imported on a card. */
uint64_t imported(unsigned card);

#endif
