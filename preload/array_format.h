/*
 * What a CUarray_format means for the rule of arrays (enforcer/rules_array.h).
 */
#ifndef VRAMCAP_PRELOAD_ARRAY_FORMAT_H
#define VRAMCAP_PRELOAD_ARRAY_FORMAT_H

#include "enforcer/rules_array.h"
#include "preload/cuda_abi.h"

/* Never fails: a format that this version does not know is taken for the widest that there is. */
struct vcap_array_format vcap_array_format(CUarray_format format, unsigned int channels);

/* Bytes that an array or a mipmap of this description is charged; 0 only for one that owns no memory
 * (sparse, deferred mapping).  levels: 1 for an array. */
uint64_t vcap_array_cost(const CUDA_ARRAY3D_DESCRIPTOR *description, unsigned int levels);

#endif
