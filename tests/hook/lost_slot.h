/*
 * Takes this process's slot away from it, by writing into the ledger as a host that resets it would.
 */
#ifndef VRAMCAP_TESTS_HOOK_LOST_SLOT_H
#define VRAMCAP_TESTS_HOOK_LOST_SLOT_H

#include <stdbool.h>
#include <stdint.h>

int32_t my_slot(void);                        /* by this process's pid; -1: none */
bool write_owner(int32_t slot, uint32_t pid); /* to be judged by that pid alone */
bool write_state(int32_t slot, uint64_t word);
uint64_t read_state(int32_t slot); /* UINT64_MAX: cannot be had */

/* The whole file's tables as they were before anybody charged. */
bool forget_charges(int32_t slot);

/* All of it: the slot is free and nothing is charged. */
bool lose_slot(void);

#endif
