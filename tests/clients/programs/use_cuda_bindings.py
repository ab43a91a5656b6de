"""cuda-bindings: the driver module, which hands out the driver's own results."""
import hashlib
import importlib.metadata

import session
from cuda.bindings import driver

MIB = 1 << 20


class Failed(Exception):
    """What a caller of this module writes: the driver's result and its own text."""

    def __init__(self, result):
        self.result = result
        _, text = driver.cuGetErrorString(result)
        super().__init__("%s (%s)" % (result.name, text.decode()))


def ok(answer):
    result, *values = answer
    if result != driver.CUresult.CUDA_SUCCESS:
        raise Failed(result)
    return values[0] if len(values) == 1 else values


class Client:
    name, version = "cuda-bindings", importlib.metadata.version("cuda-bindings")
    kinds = ["linear", "pitched", "stream-ordered", "physical", "array", "managed"]

    def start(self):
        ok(driver.cuInit(0))
        self.device = ok(driver.cuDeviceGet(0))
        self.context = ok(driver.cuDevicePrimaryCtxRetain(self.device))
        ok(driver.cuCtxSetCurrent(self.context))
        self.stream = ok(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))

    # ---- memory ----

    def take(self, kind, mib):
        size = mib * MIB
        if kind == "linear":
            return (driver.cuMemFree, ok(driver.cuMemAlloc(size)))
        if kind == "pitched":
            pointer, _ = ok(driver.cuMemAllocPitch(4096, size // 4096, 4))
            return (driver.cuMemFree, pointer)
        if kind == "managed":
            attach = driver.CUmemAttach_flags.CU_MEM_ATTACH_GLOBAL
            return (driver.cuMemFree, ok(driver.cuMemAllocManaged(size, attach)))
        if kind == "stream-ordered":
            pointer = ok(driver.cuMemAllocAsync(size, self.stream))
            return (lambda p: driver.cuMemFreeAsync(p, self.stream), pointer)
        if kind == "physical":
            prop = driver.CUmemAllocationProp()
            prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
            prop.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            prop.location.id = 0
            return (driver.cuMemRelease, ok(driver.cuMemCreate(size, prop, 0)))
        if kind == "array":
            shape = driver.CUDA_ARRAY3D_DESCRIPTOR()
            shape.Width, shape.Height, shape.NumChannels = 4096, size // 16384, 1
            shape.Format = driver.CUarray_format.CU_AD_FORMAT_FLOAT
            return (driver.cuArrayDestroy, ok(driver.cuArray3DCreate(shape)))
        raise KeyError(kind)

    def let_go(self, blocks):
        for give_back, what in blocks:
            ok(give_back(what))
        ok(driver.cuStreamSynchronize(self.stream))

    def is_out_of_memory(self, error):
        return isinstance(error, Failed) and error.result == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY

    def figures(self):
        return {"cuMemGetInfo": list(ok(driver.cuMemGetInfo())),
                "cuDeviceTotalMem": [None, ok(driver.cuDeviceTotalMem(self.device))]}

    # ---- work ----

    def work(self):
        lines = ["device %s" % ok(driver.cuDeviceGetName(64, self.device)).split(b"\0")[0].decode()]
        data = bytes(range(256)) * 4096
        back = bytearray(len(data))
        source, target = ok(driver.cuMemAlloc(len(data))), ok(driver.cuMemAlloc(len(data)))
        ok(driver.cuMemcpyHtoD(source, data, len(data)))
        ok(driver.cuMemcpyDtoD(target, source, len(data)))
        ok(driver.cuMemsetD8(target, 7, 1000))
        ok(driver.cuMemcpyDtoH(back, target, len(data)))
        lines.append("copied %s" % hashlib.sha256(back).hexdigest())
        lines.append("graph %s" % self.graph(target, len(data)))
        begin, end = (ok(driver.cuEventCreate(0)) for _ in range(2))
        ok(driver.cuEventRecord(begin, self.stream))
        ok(driver.cuEventRecord(end, self.stream))
        ok(driver.cuEventSynchronize(end))
        lines.append("time passes: %s" % (ok(driver.cuEventElapsedTime(begin, end)) >= 0))
        result, _ = driver.cuMemAlloc(1 << 45)
        lines.append("32 TiB: %s" % result.name)
        for what in (source, target):
            ok(driver.cuMemFree(what))
        for what in (begin, end):
            ok(driver.cuEventDestroy(what))
        return lines

    def graph(self, pointer, size):
        """A captured memset over the buffer, launched twice."""
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        ok(driver.cuStreamBeginCapture(self.stream, mode))
        scratch = ok(driver.cuMemAllocAsync(MIB, self.stream))
        ok(driver.cuMemsetD8Async(pointer, 9, size // 2, self.stream))
        ok(driver.cuMemFreeAsync(scratch, self.stream))
        graph = ok(driver.cuStreamEndCapture(self.stream))
        executable = ok(driver.cuGraphInstantiate(graph, 0))
        for _ in range(2):
            ok(driver.cuGraphLaunch(executable, self.stream))
        ok(driver.cuStreamSynchronize(self.stream))
        back = bytearray(size)
        ok(driver.cuMemcpyDtoH(back, pointer, size))
        ok(driver.cuGraphExecDestroy(executable))
        ok(driver.cuGraphDestroy(graph))
        ok(driver.cuDeviceGraphMemTrim(self.device))
        return hashlib.sha256(back).hexdigest()


session.run(Client())
