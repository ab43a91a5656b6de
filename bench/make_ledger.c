/*
 * make_ledger PATH SLOTS: a ledger with room for that many processes, as a host would make it for a large
 * container, but without a ceiling of its own.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "enforcer/ledger.h"

int main(int argc, char **argv)
{
    struct vcap_ledger_size size = {0};
    int rc;

    if (argc != 3)
        return 2;
    size.slots = (uint32_t)strtoul(argv[2], NULL, 10);
    rc = vcap_ledger_create(argv[1], &size, 0, NULL, NULL);
    if (rc != 0)
        fprintf(stderr, "make_ledger: %s: %s\n", argv[1], strerror(-rc));
    return rc == 0 ? 0 : 2;
}
