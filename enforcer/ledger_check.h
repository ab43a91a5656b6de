/*
 * Is this a ledger?  The one validation of a header, used by the library, the tools and the agent.
 * Takes untrusted bytes and trusts none of them.
 */
#ifndef VRAMCAP_ENFORCER_LEDGER_CHECK_H
#define VRAMCAP_ENFORCER_LEDGER_CHECK_H

#include <stddef.h>
#include <stdint.h>

#include "enforcer/ledger_format.h"

/*
 * header: a private copy of the first bytes of a file of file_size bytes.  writer: demand the
 * layout that this build writes, not only one that it can read.  Returns 0, or -EINVAL with one
 * phrase in why.
 */
int vcap_ledger_check_header(const struct vcap_lf_header *header, uint64_t file_size, int writer,
                             char *why, size_t why_size);

#endif
