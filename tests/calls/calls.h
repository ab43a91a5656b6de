/*
 * One bare call of a hooked function in a frame ("main", "thread", "constructor", "child"); checks
 * that the ledger changed as its rule says.  0: it did; else a number, and a line on stderr.
 */
#ifndef VRAMCAP_TESTS_CALLS_CALLS_H
#define VRAMCAP_TESTS_CALLS_CALLS_H

int calls_run(const char *symbol, const char *frame);

#endif
