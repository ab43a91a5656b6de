/*
 * Every CUarray_format of CUDA 13.0 and 13.5, by the comments of the enumeration in cuda.h.  Formats whose names
 * fix their channels (normalized, packed, planar, compressed) cost the same whatever NumChannels says.
 */
#include "preload/array_format.h"

#define ONE(bytes)                                                                                 \
    {                                                                                              \
        1,                                                                                         \
        {                                                                                          \
            {                                                                                      \
                bytes, 1, 0, 0                                                                     \
            }                                                                                      \
        }                                                                                          \
    }
#define BLOCKS(bytes)                                                                              \
    {                                                                                              \
        1,                                                                                         \
        {                                                                                          \
            {                                                                                      \
                bytes, 4, 0, 0                                                                     \
            }                                                                                      \
        }                                                                                          \
    } /* of 4 x 4 elements */
/* luminance, then both chrominances side by side, subsampled by 2^x and 2^y */
#define SEMI(bytes, x, y)                                                                          \
    {                                                                                              \
        2,                                                                                         \
        {                                                                                          \
            {bytes, 1, 0, 0},                                                                      \
            {                                                                                      \
                2 * (bytes), 1, x, y                                                               \
            }                                                                                      \
        }                                                                                          \
    }
#define THREE(bytes)                                                                               \
    {                                                                                              \
        3,                                                                                         \
        {                                                                                          \
            {bytes, 1, 0, 0}, {bytes, 1, 0, 0},                                                    \
            {                                                                                      \
                bytes, 1, 0, 0                                                                     \
            }                                                                                      \
        }                                                                                          \
    }

/* three planes, both chrominances subsampled by 2^x and 2^y */
#define PLANES(bytes, x, y)                                                                        \
    {                                                                                              \
        3,                                                                                         \
        {                                                                                          \
            {bytes, 1, 0, 0}, {bytes, 1, x, y},                                                    \
            {                                                                                      \
                bytes, 1, x, y                                                                     \
            }                                                                                      \
        }                                                                                          \
    }

/* The formats that CUDA 13.5 has more than 13.0, whose headers may be what this is built with. */
#define NEWER(number) ((CUarray_format)(number))

static const struct {
    CUarray_format id;
    struct vcap_array_format format;
} fixed[] = {
    {CU_AD_FORMAT_UNORM_INT8X1, ONE(1)},
    {CU_AD_FORMAT_UNORM_INT8X2, ONE(2)},
    {CU_AD_FORMAT_UNORM_INT8X4, ONE(4)},
    {CU_AD_FORMAT_UNORM_INT16X1, ONE(2)},
    {CU_AD_FORMAT_UNORM_INT16X2, ONE(4)},
    {CU_AD_FORMAT_UNORM_INT16X4, ONE(8)},
    {CU_AD_FORMAT_SNORM_INT8X1, ONE(1)},
    {CU_AD_FORMAT_SNORM_INT8X2, ONE(2)},
    {CU_AD_FORMAT_SNORM_INT8X4, ONE(4)},
    {CU_AD_FORMAT_SNORM_INT16X1, ONE(2)},
    {CU_AD_FORMAT_SNORM_INT16X2, ONE(4)},
    {CU_AD_FORMAT_SNORM_INT16X4, ONE(8)},
    {CU_AD_FORMAT_UNORM_INT_101010_2, ONE(4)},
    {CU_AD_FORMAT_YUY2, ONE(2)},
    {CU_AD_FORMAT_Y210, ONE(4)},
    {CU_AD_FORMAT_Y216, ONE(4)},
    {CU_AD_FORMAT_AYUV, ONE(4)},
    {CU_AD_FORMAT_Y410, ONE(4)},
    {CU_AD_FORMAT_Y416, ONE(8)},
    {CU_AD_FORMAT_BC1_UNORM, BLOCKS(8)},
    {CU_AD_FORMAT_BC1_UNORM_SRGB, BLOCKS(8)},
    {CU_AD_FORMAT_BC2_UNORM, BLOCKS(16)},
    {CU_AD_FORMAT_BC2_UNORM_SRGB, BLOCKS(16)},
    {CU_AD_FORMAT_BC3_UNORM, BLOCKS(16)},
    {CU_AD_FORMAT_BC3_UNORM_SRGB, BLOCKS(16)},
    {CU_AD_FORMAT_BC4_UNORM, BLOCKS(8)},
    {CU_AD_FORMAT_BC4_SNORM, BLOCKS(8)},
    {CU_AD_FORMAT_BC5_UNORM, BLOCKS(16)},
    {CU_AD_FORMAT_BC5_SNORM, BLOCKS(16)},
    {CU_AD_FORMAT_BC6H_UF16, BLOCKS(16)},
    {CU_AD_FORMAT_BC6H_SF16, BLOCKS(16)},
    {CU_AD_FORMAT_BC7_UNORM, BLOCKS(16)},
    {CU_AD_FORMAT_BC7_UNORM_SRGB, BLOCKS(16)},
    {CU_AD_FORMAT_NV12, SEMI(1, 1, 1)},
    {CU_AD_FORMAT_P010, SEMI(2, 1, 1)},
    {CU_AD_FORMAT_P016, SEMI(2, 1, 1)},
    {CU_AD_FORMAT_NV16, SEMI(1, 1, 0)},
    {CU_AD_FORMAT_P210, SEMI(2, 1, 0)},
    {CU_AD_FORMAT_P216, SEMI(2, 1, 0)},
    {CU_AD_FORMAT_YUV444_8bit_SemiPlanar, SEMI(1, 0, 0)},
    {CU_AD_FORMAT_YUV444_16bit_SemiPlanar, SEMI(2, 0, 0)},
    {CU_AD_FORMAT_Y444_PLANAR8, THREE(1)},
    {CU_AD_FORMAT_Y444_PLANAR10, THREE(2)},
    {NEWER(0x51), ONE(2)},          /* UINT8_PACKED_422: two elements in four bytes */
    {NEWER(0x52), ONE(4)},          /* UINT8_PACKED_444 */
    {NEWER(0x53), SEMI(1, 1, 1)},   /* UINT8_SEMIPLANAR_420 */
    {NEWER(0x54), SEMI(2, 1, 1)},   /* UINT16_SEMIPLANAR_420 */
    {NEWER(0x55), SEMI(1, 1, 0)},   /* UINT8_SEMIPLANAR_422 */
    {NEWER(0x56), SEMI(2, 1, 0)},   /* UINT16_SEMIPLANAR_422 */
    {NEWER(0x57), SEMI(1, 0, 0)},   /* UINT8_SEMIPLANAR_444 */
    {NEWER(0x58), SEMI(2, 0, 0)},   /* UINT16_SEMIPLANAR_444 */
    {NEWER(0x59), PLANES(1, 1, 1)}, /* UINT8_PLANAR_420 */
    {NEWER(0x5a), PLANES(2, 1, 1)}, /* UINT16_PLANAR_420 */
    {NEWER(0x5b), PLANES(1, 1, 0)}, /* UINT8_PLANAR_422 */
    {NEWER(0x5c), PLANES(2, 1, 0)}, /* UINT16_PLANAR_422 */
    {NEWER(0x5d), THREE(1)},        /* UINT8_PLANAR_444 */
    {NEWER(0x5e), THREE(2)},        /* UINT16_PLANAR_444 */
};

/* Bytes per channel of the formats that have as many as NumChannels says; 0: not one of them. */
static unsigned channel_bytes(CUarray_format format)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4;
    default:
        return 0;
    }
}

struct vcap_array_format vcap_array_format(CUarray_format format, unsigned int channels)
{
    struct vcap_array_format found = ONE(16); /* the widest: four channels of 32 bits */
    unsigned bytes = channel_bytes(format);

    if (bytes != 0) { /* 0, 3 or more than 4 channels are the driver's error, not a size */
        found.plane[0].unit_bytes = (uint8_t)(bytes * (channels < 1   ? 1
                                                       : channels > 4 ? 4
                                                                      : channels));
        return found;
    }
    for (unsigned i = 0; i < sizeof(fixed) / sizeof(fixed[0]); i++)
        if (fixed[i].id == format)
            return fixed[i].format;
    return found;
}

uint64_t vcap_array_cost(const CUDA_ARRAY3D_DESCRIPTOR *description, unsigned int levels)
{
    struct vcap_array_format format =
        vcap_array_format(description->Format, description->NumChannels);
    struct vcap_array_shape shape = {.width = description->Width,
                                     .height = description->Height,
                                     .depth = description->Depth,
                                     .levels = levels};

    if ((description->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0)
        return 0;
    shape.layered = (description->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    if ((description->Flags & CUDA_ARRAY3D_CUBEMAP) != 0 && shape.depth < 6)
        shape.depth = 6; /* faces */
    return vcap_rule_array(&format, &shape);
}
