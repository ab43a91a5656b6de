/*
 * Ledgers that `vramcap run` makes for itself outside containers:
 * FOLDER/vramcap-run-UID-PID-RANDOM.  PID is that of `vramcap run` and, because it executes the
 * command in its own place, of the command.
 */
#ifndef VRAMCAP_ENFORCER_CLI_RUN_LEDGER_H
#define VRAMCAP_ENFORCER_CLI_RUN_LEDGER_H

#include <stddef.h>
#include <stdint.h>

#define VCAP_RUN_LEDGER_FOLDER "/dev/shm"
#define VCAP_RUN_LEDGER_AGE_S 60

/* Makes one; its path is stored.  0 or -errno. */
int vcap_run_ledger_make(const char *folder, char *path, size_t path_size);

/*
 * Deletes this user's run ledgers that are at least age_s old, in which nobody lives, and whose PID
 * does not run (its command may not have come to CUDA yet).  Anything doubtful stays.  Returns how
 * many went.
 */
unsigned vcap_run_ledger_clean(const char *folder, int64_t age_s);

/*
 * Paths of the run ledgers (root: of all users; others: their own) in which somebody lives: an
 * array to be given back with vcap_run_ledger_free_list().  0 or -errno.
 */
int vcap_run_ledger_list(const char *folder, char ***paths, size_t *count);
void vcap_run_ledger_free_list(char **paths, size_t count);

#endif
