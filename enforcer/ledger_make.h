/*
 * What opening a ledger (ledger_file.c) and the host's side (ledger_host.c) need of its making.  Callers
 * hold the init byte exclusively, or are alone, where they change a file.
 */
#ifndef VRAMCAP_ENFORCER_LEDGER_MAKE_H
#define VRAMCAP_ENFORCER_LEDGER_MAKE_H

#include <stdbool.h>

#include "enforcer/ledger.h"

/* Is there a slot whose owner is not known to be gone?  fd: of this file, for its locks. */
bool vcap_ledger_anybody_lives(const unsigned char *base, const struct vcap_lf_header *h, int fd,
                               uint64_t pidns);

/*
 * Everything but the header back to zero.  keep_ceilings: the GPU rows that have a ceiling of the host's
 * keep it, and what they are.
 */
void vcap_ledger_renew_in_place(unsigned char *base, struct vcap_lf_header *h, bool keep_ceilings);

#endif
