/*
 * What an array or a mipmapped array costs: an upper bound, computed, because the driver tells the
 * size of no array that owns memory.  Named in preload/cuda_api.def as CHARGE_ARRAY; what a format
 * means is in preload/array_format.c, since this side knows no CUDA header.
 *
 * Sources for the tile: the block-linear layout as Mesa's nvc0 and NVK drivers lay it down (a GOB is
 * 64 bytes x 8 rows; a block is one GOB wide, up to 16 high in 2D and, for volumes, up to 16 slices
 * deep).  The driver may choose smaller blocks for small images; that it does is not documented, so
 * the largest is charged.  The last rounding is the page of linear memory.  To be measured on a GPU
 * (docs/gpu/).
 */
#ifndef VRAMCAP_ENFORCER_RULES_ARRAY_H
#define VRAMCAP_ENFORCER_RULES_ARRAY_H

#include <stdbool.h>
#include <stdint.h>

#include "enforcer/rules.h"

#define VCAP_ARRAY_PLANES 3
#define VCAP_TILE_BYTES UINT64_C(64)  /* width of a block */
#define VCAP_TILE_ROWS UINT64_C(128)  /* height of the highest block */
#define VCAP_TILE_ROWS_1D UINT64_C(8) /* an array of one row has no higher block than one GOB */
#define VCAP_TILE_SLICES UINT64_C(16) /* depth of the deepest block */
#define VCAP_ARRAY_GRAIN (UINT64_C(64) << 10)

/* One plane: elements of unit_bytes each, or blocks of block x block elements (compressed formats);
 * chrominance planes have 2^shift_x times fewer columns, 2^shift_y times fewer rows. */
struct vcap_array_plane {
    uint8_t unit_bytes, block, shift_x, shift_y;
};

struct vcap_array_format {
    uint8_t planes;
    struct vcap_array_plane plane[VCAP_ARRAY_PLANES];
};

/* height 0: one row.  depth 0: one slice; layers and cube faces are slices that do not shrink with the
 * level (layered).  levels 1 for an array. */
struct vcap_array_shape {
    uint64_t width, height, depth;
    bool layered;
    uint32_t levels;
};

/* Nearest above: a/b, no overflow. */
static inline uint64_t vcap_divide_up(uint64_t a, uint64_t b)
{
    return a / b + (a % b != 0);
}

static inline uint64_t vcap_add(uint64_t a, uint64_t b)
{
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

/* An extent at a level: halved and rounded down each time, but at least 1. */
static inline uint64_t vcap_array_extent(uint64_t extent, uint32_t level)
{
    uint64_t at = level < 64 ? extent >> level : 0;

    return at == 0 ? 1 : at;
}

/* The levels a driver makes of a number asked for: at least 1, at most 1 + log2 of the longest side. */
static inline uint32_t vcap_array_levels(const struct vcap_array_shape *shape)
{
    uint64_t longest = shape->width > shape->height ? shape->width : shape->height;
    uint32_t most = 1;

    if (!shape->layered && shape->depth > longest)
        longest = shape->depth;
    for (; longest > 1; longest /= 2)
        most++;
    return shape->levels < 1 ? 1 : shape->levels < most ? shape->levels : most;
}

static inline uint64_t vcap_array_plane_bytes(const struct vcap_array_plane *plane,
                                              const struct vcap_array_shape *shape, uint32_t level)
{
    uint64_t width = vcap_array_extent(shape->width, level),
             rows = vcap_array_extent(shape->height, level), slices = 1, deepest = 1;

    width = vcap_divide_up(vcap_divide_up(width, UINT64_C(1) << plane->shift_x), plane->block);
    rows = vcap_divide_up(vcap_divide_up(rows, UINT64_C(1) << plane->shift_y), plane->block);
    width = vcap_round_up(vcap_multiply(width, plane->unit_bytes), VCAP_TILE_BYTES);
    rows = vcap_round_up(rows, shape->height == 0 ? VCAP_TILE_ROWS_1D : VCAP_TILE_ROWS);
    if (shape->layered) {
        slices = shape->depth == 0 ? 1 : shape->depth;
    } else if (shape->depth > 1) {
        slices = vcap_array_extent(shape->depth, level);
        while (deepest < slices && deepest < VCAP_TILE_SLICES)
            deepest *= 2;
        slices = vcap_round_up(slices, deepest);
    }
    return vcap_multiply(vcap_multiply(width, rows), slices);
}

/*
 * CHARGE_ARRAY: all planes of all levels, each padded to whole blocks, in sum rounded up to 64 KiB and
 * then to whole pages of 2 MiB; never zero.  (Arrays without memory of their own, SPARSE and
 * DEFERRED_MAPPING, do not come here.)
 */
static inline uint64_t vcap_rule_array(const struct vcap_array_format *format,
                                       const struct vcap_array_shape *shape)
{
    uint32_t levels = vcap_array_levels(shape);
    uint64_t sum = 0;

    for (uint32_t level = 0; level < levels; level++)
        for (uint32_t p = 0; p < format->planes; p++)
            sum = vcap_add(sum, vcap_array_plane_bytes(&format->plane[p], shape, level));
    return vcap_round_up(vcap_round_up(sum, VCAP_ARRAY_GRAIN), VCAP_PAGE);
}

#endif
