/*
 * Formats, dimensions and sizes of arrays: see sim_array.h.
 *
 * A description is 1D when Height is 0, 2D when Depth is 0; Depth counts layers with LAYERED, and
 * the six faces of each cube with CUBEMAP. Format table after the comments of CUarray_format in
 * cuda.h 13.0. How many channels a fixed format must be given is not documented: 1 to 4 pass.
 */
#include "sim_array.h"

#include <string.h>

#define PLAIN(id, bytes)                                                                           \
    {                                                                                              \
        CU_AD_FORMAT_##id, bytes                                                                   \
    }
/* Bytes per channel of the formats that have 1, 2 or 4 of them. */
static const struct {
    CUarray_format id;
    unsigned int bytes;
} plain[] = {
    PLAIN(UNSIGNED_INT8, 1), PLAIN(UNSIGNED_INT16, 2), PLAIN(UNSIGNED_INT32, 4),
    PLAIN(SIGNED_INT8, 1),   PLAIN(SIGNED_INT16, 2),   PLAIN(SIGNED_INT32, 4),
    PLAIN(HALF, 2),          PLAIN(FLOAT, 4),
};

#define U8 CU_AD_FORMAT_UNSIGNED_INT8
#define U16 CU_AD_FORMAT_UNSIGNED_INT16
#define PACKED(id, bytes)                                                                          \
    {                                                                                              \
        CU_AD_FORMAT_##id,                                                                         \
        {                                                                                          \
            1, 1,                                                                                  \
            {                                                                                      \
                {                                                                                  \
                    bytes, 0, 0, CU_AD_FORMAT_##id, 1                                              \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }
#define BLOCKS(id, bytes)                                                                          \
    {                                                                                              \
        CU_AD_FORMAT_##id,                                                                         \
        {                                                                                          \
            4, 1,                                                                                  \
            {                                                                                      \
                {                                                                                  \
                    bytes, 0, 0, CU_AD_FORMAT_##id, 1                                              \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }
/* Luminance, and two chrominances side by side. */
#define SEMI(id, base, bytes, x, y)                                                                \
    {                                                                                              \
        CU_AD_FORMAT_##id,                                                                         \
        {                                                                                          \
            1, 2,                                                                                  \
            {                                                                                      \
                {bytes, 0, 0, base, 1},                                                            \
                {                                                                                  \
                    2 * (bytes), x, y, base, 2                                                     \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }
#define THREE(id, base, bytes)                                                                     \
    {                                                                                              \
        CU_AD_FORMAT_##id,                                                                         \
        {                                                                                          \
            1, 3,                                                                                  \
            {                                                                                      \
                {bytes, 0, 0, base, 1}, {bytes, 0, 0, base, 1},                                    \
                {                                                                                  \
                    bytes, 0, 0, base, 1                                                           \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }
static const struct {
    CUarray_format id;
    struct sim_format format;
} fixed[] = {
    PACKED(UNORM_INT8X1, 1),
    PACKED(UNORM_INT8X2, 2),
    PACKED(UNORM_INT8X4, 4),
    PACKED(UNORM_INT16X1, 2),
    PACKED(UNORM_INT16X2, 4),
    PACKED(UNORM_INT16X4, 8),
    PACKED(SNORM_INT8X1, 1),
    PACKED(SNORM_INT8X2, 2),
    PACKED(SNORM_INT8X4, 4),
    PACKED(SNORM_INT16X1, 2),
    PACKED(SNORM_INT16X2, 4),
    PACKED(SNORM_INT16X4, 8),
    PACKED(UNORM_INT_101010_2, 4),
    PACKED(YUY2, 2),
    PACKED(Y210, 4),
    PACKED(Y216, 4),
    PACKED(AYUV, 4),
    PACKED(Y410, 4),
    PACKED(Y416, 8),
    BLOCKS(BC1_UNORM, 8),
    BLOCKS(BC1_UNORM_SRGB, 8),
    BLOCKS(BC2_UNORM, 16),
    BLOCKS(BC2_UNORM_SRGB, 16),
    BLOCKS(BC3_UNORM, 16),
    BLOCKS(BC3_UNORM_SRGB, 16),
    BLOCKS(BC4_UNORM, 8),
    BLOCKS(BC4_SNORM, 8),
    BLOCKS(BC5_UNORM, 16),
    BLOCKS(BC5_SNORM, 16),
    BLOCKS(BC6H_UF16, 16),
    BLOCKS(BC6H_SF16, 16),
    BLOCKS(BC7_UNORM, 16),
    BLOCKS(BC7_UNORM_SRGB, 16),
    SEMI(NV12, U8, 1, 1, 1),
    SEMI(P010, U16, 2, 1, 1),
    SEMI(P016, U16, 2, 1, 1),
    SEMI(NV16, U8, 1, 1, 0),
    SEMI(P210, U16, 2, 1, 0),
    SEMI(P216, U16, 2, 1, 0),
    SEMI(YUV444_8bit_SemiPlanar, U8, 1, 0, 0),
    SEMI(YUV444_16bit_SemiPlanar, U16, 2, 0, 0),
    THREE(Y444_PLANAR8, U8, 1),
    THREE(Y444_PLANAR10, U16, 2),
};

bool sim_format_find(CUarray_format format, unsigned int channels, struct sim_format *found)
{
    if (channels < 1 || channels > 4)
        return false;
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
        if (plain[i].id != format)
            continue;
        *found = (struct sim_format){1, 1, {{plain[i].bytes * channels, 0, 0, format, channels}}};
        return channels != 3;
    }
    for (size_t i = 0; i < sizeof fixed / sizeof fixed[0]; i++) {
        if (fixed[i].id == format) {
            *found = fixed[i].format;
            return true;
        }
    }
    return false;
}

static bool is_layered(const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
    return (desc->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
}

static size_t shrunk(size_t extent, unsigned int level)
{
    return extent == 0 ? 0 : (extent >> level) == 0 ? 1 : extent >> level;
}

CUDA_ARRAY3D_DESCRIPTOR sim_level_of(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int level)
{
    CUDA_ARRAY3D_DESCRIPTOR out = *desc;

    out.Width = shrunk(desc->Width, level);
    out.Height = shrunk(desc->Height, level);
    if (!is_layered(desc))
        out.Depth = shrunk(desc->Depth, level);
    return out;
}

struct sim_shape sim_shape_of(const CUDA_ARRAY3D_DESCRIPTOR *desc, const struct sim_format *format,
                              unsigned int plane, unsigned int level)
{
    CUDA_ARRAY3D_DESCRIPTOR at = sim_level_of(desc, level);
    const struct sim_plane *p = &format->plane[plane];
    size_t block = format->block, width = shrunk(at.Width, p->shift_x);
    size_t height = at.Height == 0 ? 1 : shrunk(at.Height, p->shift_y);

    return (struct sim_shape){.row = (width + block - 1) / block * p->unit_bytes,
                              .rows = (height + block - 1) / block,
                              .slices = at.Depth == 0 ? 1 : at.Depth};
}

unsigned int sim_levels_most(const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
    size_t longest = desc->Width > desc->Height ? desc->Width : desc->Height;
    unsigned int levels = 1;

    if (!is_layered(desc) && desc->Depth > longest)
        longest = desc->Depth;
    while (longest > 1) {
        longest /= 2;
        levels++;
    }
    return levels;
}

/* Width, height and depth (or layers) at most, as the device attributes say. */
static bool fits(const CUDA_ARRAY3D_DESCRIPTOR *desc, bool mipmapped)
{
    size_t width = 131072, height = 65536, depth = 0;

    if (is_layered(desc)) {
        width = height = 32768;
        depth = 2048;
    } else if (desc->Depth > 0) {
        width = height = depth = 16384;
    } else if (mipmapped) {
        width = height = 32768;
    }
    return desc->Width <= width && desc->Height <= height && desc->Depth <= depth;
}

CUresult sim_array_check(const CUDA_ARRAY3D_DESCRIPTOR *desc, bool mipmapped,
                         struct sim_format *format)
{
    const unsigned int known =
        CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP |
        CUDA_ARRAY3D_TEXTURE_GATHER | CUDA_ARRAY3D_DEPTH_TEXTURE | CUDA_ARRAY3D_COLOR_ATTACHMENT |
        CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_VIDEO_ENCODE_DECODE;
    const unsigned int unbacked = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
    bool layered = (desc->Flags & CUDA_ARRAY3D_LAYERED) != 0;
    bool cubemap = (desc->Flags & CUDA_ARRAY3D_CUBEMAP) != 0;

    if (!sim_format_find(desc->Format, desc->NumChannels, format) || (desc->Flags & ~known) != 0 ||
        desc->Width == 0 || !fits(desc, mipmapped))
        return CUDA_ERROR_INVALID_VALUE;
    if (cubemap && (desc->Width != desc->Height || desc->Depth == 0 || desc->Depth % 6 != 0 ||
                    (!layered && desc->Depth != 6)))
        return CUDA_ERROR_INVALID_VALUE;
    if (layered && desc->Depth == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!layered && !cubemap && desc->Height == 0 && desc->Depth > 0)
        return CUDA_ERROR_INVALID_VALUE;
    /* One kind of memory that is brought later at most, and not for a single row. */
    if ((desc->Flags & unbacked) == unbacked ||
        ((desc->Flags & unbacked) != 0 && desc->Height == 0))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static uint64_t rounded(uint64_t value, uint64_t step)
{
    return (value + step - 1) / step * step;
}

/* Extents are bounded by fits(): one level is below 2^16 * 2^18 * 2^15 * 2^5 bytes. */
uint64_t sim_array_card_bytes(const CUDA_ARRAY3D_DESCRIPTOR *desc, const struct sim_format *format,
                              unsigned int levels)
{
    uint64_t sum = 0;

    for (unsigned int level = 0; level < levels; level++)
        for (unsigned int plane = 0; plane < format->planes; plane++) {
            struct sim_shape shape = sim_shape_of(desc, format, plane, level);
            uint64_t row = rounded(shape.row, sim_config.tile_width);
            uint64_t rows = desc->Height == 0 ? 1 : rounded(shape.rows, sim_config.tile_rows);

            sum += row * rows * shape.slices;
        }
    return rounded(sum, sim_config.page_bytes);
}

uint64_t sim_array_plain_bytes(const CUDA_ARRAY3D_DESCRIPTOR *desc, const struct sim_format *format,
                               unsigned int levels)
{
    uint64_t sum = 0;

    for (unsigned int level = 0; level < levels; level++)
        for (unsigned int plane = 0; plane < format->planes; plane++) {
            struct sim_shape shape = sim_shape_of(desc, format, plane, level);

            sum += (uint64_t)shape.row * shape.rows * shape.slices;
        }
    return sum;
}
