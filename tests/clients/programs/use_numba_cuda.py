"""numba-cuda: arrays, its allocator and deferred frees, IPC handles, kernels compiled and launched.

The simulator runs no kernel, so what a kernel would compute is not looked at; that it is compiled,
loaded and launched is.
"""
import hashlib
import importlib.metadata
import warnings

import numpy
import session
from numba import cuda
from numba.core.errors import NumbaPerformanceWarning

MIB = 1 << 20
warnings.simplefilter("ignore", NumbaPerformanceWarning)


@cuda.jit(cache=True)
def scale(array, factor):
    i = cuda.grid(1)
    if i < array.size:
        array[i] *= factor


class Client:
    name, version = "numba-cuda", importlib.metadata.version("numba-cuda")
    kinds = ["device array", "managed array"]

    def start(self):
        self.context = cuda.current_context()

    def take(self, kind, mib):
        shape = (mib, MIB)
        if kind == "managed array":
            return cuda.managed_array(shape, dtype=numpy.uint8)
        return cuda.device_array(shape, dtype=numpy.uint8)

    def let_go(self, blocks):
        blocks.clear()  # the arrays end here; numba frees them when it likes
        self.context.deallocations.clear()

    def is_out_of_memory(self, error):
        return "CUDA_ERROR_OUT_OF_MEMORY" in str(error)

    def figures(self):
        free, total = self.context.get_memory_info()
        return {"get_memory_info": [free, total]}

    def work(self):
        lines = ["device %s" % cuda.get_current_device().name]
        data = numpy.arange(1 << 20, dtype=numpy.float32)
        stream = cuda.stream()
        array = cuda.to_device(data, stream=stream)
        part = array[1000:2000].copy_to_host(stream=stream)
        stream.synchronize()
        lines.append("part %s" % hashlib.sha256(part.tobytes()).hexdigest())
        pinned = cuda.pinned_array(1 << 16, dtype=numpy.int64)
        pinned[:] = 5
        copy = cuda.to_device(pinned)
        lines.append("pinned %d" % copy.copy_to_host().sum())
        with cuda.pinned(data):
            lines.append("equal %s" % bool((cuda.to_device(data).copy_to_host() == data).all()))
        scale[(1 << 20) // 256, 256](array, numpy.float32(2))
        cuda.synchronize()
        lines.append("kernel compiled for %s, launched" % (scale.signatures,))
        lines.append("registers %s" % sorted(scale.get_regs_per_thread().values()))
        with cuda.defer_cleanup():
            for _ in range(64):
                cuda.device_array(MIB, dtype=numpy.uint8)
        lines.append("shared as %s" % type(array.get_ipc_handle()).__name__)
        return lines


session.run(Client())
