"""nvidia-ml-py: NVML's Python face. It allocates nothing; what it shows of others is the subject."""
import importlib.metadata

import pynvml
import session


class Client:
    name, version = "nvidia-ml-py", importlib.metadata.version("nvidia-ml-py")
    kinds = []

    def start(self):
        pynvml.nvmlInit()
        self.device = pynvml.nvmlDeviceGetHandleByIndex(0)

    def take(self, kind, mib):
        raise KeyError(kind)

    def let_go(self, blocks):
        blocks.clear()

    def is_out_of_memory(self, error):
        return False

    def figures(self):
        old = pynvml.nvmlDeviceGetMemoryInfo(self.device)
        new = pynvml.nvmlDeviceGetMemoryInfo(self.device, version=pynvml.nvmlMemory_v2)
        return {"nvmlDeviceGetMemoryInfo": [old.free, old.total],
                "nvmlDeviceGetMemoryInfo_v2": [new.free, new.total],
                "total - used": [old.total - old.used, old.total],
                "v2 total - used": [new.total - new.used, new.total]}

    def work(self):
        lines = ["driver %s" % pynvml.nvmlSystemGetDriverVersion(),
                 "CUDA %d" % pynvml.nvmlSystemGetCudaDriverVersion_v2(),
                 "devices %d" % pynvml.nvmlDeviceGetCount()]
        for i in range(pynvml.nvmlDeviceGetCount()):
            device = pynvml.nvmlDeviceGetHandleByIndex(i)
            lines.append("%d %s %s %s" % (i, pynvml.nvmlDeviceGetName(device), pynvml.nvmlDeviceGetUUID(device),
                                          pynvml.nvmlDeviceGetPciInfo(device).busId))
            for ask in (pynvml.nvmlDeviceGetUtilizationRates, pynvml.nvmlDeviceGetPowerUsage,
                        pynvml.nvmlDeviceGetComputeMode):
                try:
                    lines.append("%s %s" % (ask.__name__, ask(device)))
                except pynvml.NVMLError as error:
                    lines.append("%s %s" % (ask.__name__, error))
        lines.append("processes %d" % len(pynvml.nvmlDeviceGetComputeRunningProcesses(self.device)))
        return lines


session.run(Client())
