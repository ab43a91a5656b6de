/*
 * Arrays and mipmapped arrays, between sim_array_format.c (what a description means and how large
 * it is), sim_array.c (records), sim_array_query.c, sim_array_copy.c and sim_external.c.
 *
 * The driver's size of an array is this file's family's own claim: every row padded to the width of
 * VRAMCAP_SIM_ARRAY_TILE, every slice of more than one row to its rows, the sum to the page. The
 * bytes themselves are kept without padding, in host memory that is mapped at the first touch.
 */
#ifndef VRAMCAP_SIM_ARRAY_H
#define VRAMCAP_SIM_ARRAY_H

#include "sim_internal.h"

#define SIM_ARRAY_PLANES 3U

/* One plane of a format: a unit is a block of `block` x `block` elements. */
struct sim_plane {
    unsigned int unit_bytes;
    unsigned int shift_x, shift_y; /* log2 of the subsampling */
    CUarray_format format;         /* of the plane alone, as cuArrayGetPlane shows it */
    unsigned int channels;
};

struct sim_format {
    unsigned int block, planes;
    struct sim_plane plane[SIM_ARRAY_PLANES];
};

/* False for a format that 13.0 does not have, or a number of channels that it cannot have. */
bool sim_format_find(CUarray_format format, unsigned int channels, struct sim_format *found);

/* A box of bytes: rows of `row` bytes, `rows` of them in each of `slices` slices. */
struct sim_shape {
    size_t row, rows, slices;
};

/* Shape of a plane of a level. Layers are slices, and do not shrink with the level. */
struct sim_shape sim_shape_of(const CUDA_ARRAY3D_DESCRIPTOR *desc, const struct sim_format *format,
                              unsigned int plane, unsigned int level);
/* The description of one level. */
CUDA_ARRAY3D_DESCRIPTOR sim_level_of(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int level);
/* SUCCESS if the description is one that can be made (limits are those of the device attributes).
 */
CUresult sim_array_check(const CUDA_ARRAY3D_DESCRIPTOR *desc, bool mipmapped,
                         struct sim_format *format);
unsigned int sim_levels_most(const CUDA_ARRAY3D_DESCRIPTOR *desc);
/* What `levels` levels take of the card; UINT64_MAX if that is no number. */
uint64_t sim_array_card_bytes(const CUDA_ARRAY3D_DESCRIPTOR *desc, const struct sim_format *format,
                              unsigned int levels);
/* Bytes without padding. */
uint64_t sim_array_plain_bytes(const CUDA_ARRAY3D_DESCRIPTOR *desc, const struct sim_format *format,
                               unsigned int levels);

/* Where the bytes are: shared by an array, its planes, its levels and their planes. */
struct sim_storage {
    unsigned char *bytes; /* NULL: nothing touched it yet */
    uint64_t size;
    uint64_t before; /* bytes of the mapping in front of `bytes` (external memory) */
    bool unbacked;   /* sparse or deferred: no bytes at all */
};

/* An array, or a view of one (a plane, a level), which has a parent and costs nothing. */
struct sim_array {
    struct sim_resource resource; /* first; not in the context's list for a view */
    CUDA_ARRAY3D_DESCRIPTOR desc;
    struct sim_format format;
    struct sim_storage *storage;
    uint64_t offset; /* in the storage */
    struct sim_shape shape;
    int64_t cost;
    unsigned int card;
    bool view, of_level;
    struct sim_array *plane[SIM_ARRAY_PLANES]; /* views made so far */
    struct sim_pages *mapped;                  /* tile-pool memory behind it */
    struct sim_storage own;
};

struct sim_mipmap {
    struct sim_resource resource;
    CUDA_ARRAY3D_DESCRIPTOR desc;
    struct sim_format format;
    unsigned int levels, card;
    int64_t cost;
    struct sim_array **level; /* views made so far */
    struct sim_pages *mapped;
    struct sim_storage own;
};

/* With sim_lock held. NULL unless the handle is alive. */
struct sim_array *sim_array_of(CUarray handle);
struct sim_mipmap *sim_mipmap_of(CUmipmappedArray handle);
/* A mipmap over a mapping that becomes its own (external memory): its bytes are the mapping's from
 * `before` on, and cost nothing more. With sim_lock held. */
CUresult sim_mipmap_over(struct sim_context *context, const CUDA_ARRAY3D_DESCRIPTOR *desc,
                         unsigned int levels, unsigned char *map, size_t before,
                         CUmipmappedArray *handle);

/* A view of another array's bytes. With sim_lock held; NULL without memory. */
struct sim_array *sim_array_view(const CUDA_ARRAY3D_DESCRIPTOR *desc,
                                 const struct sim_format *format, struct sim_storage *storage,
                                 uint64_t offset, bool of_level);

/* For copies; take sim_lock. The byte (x, y, z) of the array, from which `rows` rows of `width`
 * bytes in `layers` slices can be touched; the array's own pitch and height. NULL out of bounds. */
unsigned char *sim_array_bytes(CUarray handle, const size_t at[3], const size_t extent[3],
                               size_t *pitch, size_t *height);

/* sim_array_query.c: gives back the tile-pool memory of a list. */
struct sim_pages;
void sim_pages_clear(struct sim_pages **list);

#endif
