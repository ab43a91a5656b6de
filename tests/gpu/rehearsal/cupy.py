"""As much of CuPy's shape as frameworks.py uses, over the driver that the loader finds: a rehearsal of that script's
two processes and of its way to the ceiling and back. Blocks are kept when their arrays go, and a refusal gives them
back and asks once more, as CuPy's pool does."""
import ctypes
from types import SimpleNamespace

__version__ = "rehearsal"
float32, uint8 = 4, 1
_driver = ctypes.CDLL("libcuda.so.1")
_idle = []


class OutOfMemoryError(MemoryError):
    pass


def _ok(result):
    if result == 2:
        raise OutOfMemoryError("out of memory")
    if result != 0:
        raise RuntimeError("the driver gave %d" % result)


def _begin():
    context = ctypes.c_void_p()
    _ok(_driver.cuInit(0))
    _ok(_driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    _ok(_driver.cuCtxSetCurrent(context))


def _take(size):
    pointer = ctypes.c_uint64()
    for kept in _idle:
        if kept[1] == size:
            _idle.remove(kept)
            return kept[0]
    if _driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)) != 0:
        _free_all()
        _ok(_driver.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))
    return pointer.value


def _free_all():
    while _idle:
        _ok(_driver.cuMemFree_v2(ctypes.c_uint64(_idle.pop()[0])))


class ndarray:
    def __init__(self, size):
        self._size, self._at = size, _take(size)

    def __del__(self):
        if hasattr(self, "_at"):
            _idle.append((self._at, self._size))

    def __mul__(self, factor):
        back = ctypes.c_uint8()
        other = ndarray(self._size)
        _ok(_driver.cuMemsetD8_v2(ctypes.c_uint64(other._at), ctypes.c_ubyte(factor), ctypes.c_size_t(self._size)))
        _ok(_driver.cuMemcpyDtoH_v2(ctypes.byref(back), ctypes.c_uint64(other._at), ctypes.c_size_t(1)))
        other._first = back.value
        return other

    def sum(self):
        return self._first * self._size


def empty(count, dtype):
    return ndarray(count * dtype)


def arange(count, dtype):
    return ndarray(count * dtype)


def _mem_get_info():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _ok(_driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    return free.value, total.value


def get_default_memory_pool():
    return SimpleNamespace(free_all_blocks=_free_all)


_begin()
cuda = SimpleNamespace(memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
                       runtime=SimpleNamespace(getDeviceCount=lambda: 1, memGetInfo=_mem_get_info))
