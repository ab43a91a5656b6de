/*
 * What the worker's own files share.
 */
#ifndef VRAMCAP_TESTS_PROPERTY_WORKER_H
#define VRAMCAP_TESTS_PROPERTY_WORKER_H

#include "tests/property/property.h"

#define THREADS_MOST 8
extern struct actor actors[THREADS_MOST];

bool failures_find(void);
void trace(struct actor *a, uint64_t ledger, uint64_t model, unsigned card);
uint64_t model_slack(struct world *w, unsigned card);
uint64_t limits_model(const struct context *c);

#endif
