/*
 * NVIDIA's video decoder in name only: GStreamer's plugin shows none of its elements, also those that only copy, where
 * it does not find all of these. Every call says that it is not supported (CUDA_ERROR_NOT_SUPPORTED).
 */
#define ABSENT(name)                                                                               \
    int name(void);                                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return 801;                                                                                \
    }

ABSENT(cuvidCreateDecoder)
ABSENT(cuvidCreateVideoParser)
ABSENT(cuvidCtxLock)
ABSENT(cuvidCtxLockCreate)
ABSENT(cuvidCtxLockDestroy)
ABSENT(cuvidCtxUnlock)
ABSENT(cuvidDecodePicture)
ABSENT(cuvidDestroyDecoder)
ABSENT(cuvidDestroyVideoParser)
ABSENT(cuvidGetDecoderCaps)
ABSENT(cuvidMapVideoFrame64)
ABSENT(cuvidParseVideoData)
ABSENT(cuvidUnmapVideoFrame64)
