"""One framework in one process: a model under the ceiling, over it, and after it. Run by report.py, which sets
the environment; prints one line of JSON, or `{"absent": ...}` where the framework is not installed.

    frameworks.py NAME CEILING_MIB [--hold MIB]      --hold: keeps so much, says "holding", waits for a line
"""
import json
import sys

MIB = 1 << 20


class Torch:
    """torch, torch-expandable and torch-async differ in PYTORCH_CUDA_ALLOC_CONF alone."""

    def __init__(self):
        import torch
        self.torch, self.version = torch, torch.__version__
        if not torch.cuda.is_available():
            raise ImportError("torch sees no GPU")

    def model(self):
        torch = self.torch
        torch.manual_seed(1)
        layers = [torch.nn.Linear(512, 512) for _ in range(4)]
        net = torch.nn.Sequential(*layers).cuda()
        with torch.no_grad():
            out = net(torch.ones(8, 512, device="cuda"))
        return float(out.float().abs().sum().cpu()) > 0

    def take(self, mib):
        return self.torch.empty(mib * MIB, dtype=self.torch.uint8, device="cuda")

    def give_back(self):
        self.torch.cuda.empty_cache()

    def is_out_of_memory(self, error):
        return isinstance(error, self.torch.cuda.OutOfMemoryError)

    def info(self):
        return self.torch.cuda.mem_get_info()


class Cupy:
    def __init__(self):
        import cupy
        self.cupy, self.version = cupy, cupy.__version__
        cupy.cuda.runtime.getDeviceCount()

    def model(self):
        a = self.cupy.arange(1 << 16, dtype=self.cupy.float32)
        return float((a * 2).sum()) > 0

    def take(self, mib):
        return self.cupy.empty(mib * MIB, dtype=self.cupy.uint8)

    def give_back(self):
        self.cupy.get_default_memory_pool().free_all_blocks()

    def is_out_of_memory(self, error):
        return isinstance(error, self.cupy.cuda.memory.OutOfMemoryError)

    def info(self):
        return self.cupy.cuda.runtime.memGetInfo()


class Jax:
    """With preallocation off: the ceiling is met by the client's own requests."""

    def __init__(self):
        import jax
        self.jax, self.version = jax, jax.__version__
        self.device = jax.devices("gpu")[0]

    def model(self):
        import jax.numpy as jnp
        a = jnp.ones((512, 512))
        return float(self.jax.jit(lambda x: (x @ x).sum())(a)) > 0

    def take(self, mib):
        import numpy
        return self.jax.device_put(numpy.zeros(mib * MIB, dtype=numpy.uint8), self.device).block_until_ready()

    def give_back(self):
        import gc
        gc.collect()

    def is_out_of_memory(self, error):
        return "RESOURCE_EXHAUSTED" in str(error)

    def info(self):
        return (None, None)


class Numba:
    def __init__(self):
        import numba
        from numba import cuda
        self.cuda, self.version = cuda, numba.__version__
        if not cuda.is_available():
            raise ImportError("numba sees no GPU")

    def model(self):
        import numpy
        cuda = self.cuda

        @cuda.jit
        def double(a):
            i = cuda.grid(1)
            if i < a.size:
                a[i] *= 2
        array = cuda.to_device(numpy.ones(1 << 16, dtype=numpy.float32))
        double[256, 256](array)
        return float(array.copy_to_host().sum()) > 0

    def take(self, mib):
        import numpy
        return self.cuda.device_array((mib, MIB), dtype=numpy.uint8)

    def give_back(self):
        self.cuda.current_context().deallocations.clear()

    def is_out_of_memory(self, error):
        return "OUT_OF_MEMORY" in str(error)

    def info(self):
        return self.cuda.current_context().get_memory_info()


FRAMEWORKS = {"torch": Torch, "torch-expandable": Torch, "torch-async": Torch, "cupy": Cupy, "jax": Jax,
              "numba": Numba}


def to_the_brim(framework, block_mib):
    """Blocks until the framework's own error; how many, and its words."""
    blocks = []
    for _ in range(4096):
        try:
            blocks.append(framework.take(block_mib))
        except Exception as error:  # noqa: which one it is, is the finding
            return len(blocks), {"type": type(error).__name__, "text": str(error)[:300],
                                 "out_of_memory": bool(framework.is_out_of_memory(error))}
    return len(blocks), None


def scenario(framework, ceiling_mib):
    free, total = framework.info()
    found = {"version": framework.version, "model": framework.model(),
             "total_mib": None if total is None else total // MIB,
             "free_mib": None if free is None else free // MIB}
    block = max(32, ceiling_mib // 16)
    found["block_mib"] = block
    found["blocks"], found["error"] = to_the_brim(framework, block)
    framework.give_back()
    again, _ = to_the_brim(framework, block)
    framework.give_back()
    found["blocks_again"] = again
    found["model_afterwards"] = framework.model()
    return found


def main():
    name, ceiling_mib = sys.argv[1], int(sys.argv[2])
    try:
        framework = FRAMEWORKS[name]()
    except Exception as error:  # noqa: absent, or without a GPU: both are said
        print(json.dumps({"absent": "%s: %s" % (type(error).__name__, str(error)[:200])}))
        return 0
    if len(sys.argv) == 5 and sys.argv[3] == "--hold":
        held = framework.take(int(sys.argv[4]))
        print("holding", flush=True)
        sys.stdin.readline()
        del held
        return 0
    print(json.dumps(scenario(framework, ceiling_mib)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
