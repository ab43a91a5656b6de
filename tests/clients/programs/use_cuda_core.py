"""cuda-core: devices, streams, events, memory resources, graphs."""
import hashlib
import importlib.metadata

import numpy
import session
from cuda.bindings import driver
from cuda.core import (Device, DeviceMemoryResource, DeviceMemoryResourceOptions, GraphMemoryResource,
                       LegacyPinnedMemoryResource, ManagedMemoryResource, VirtualMemoryResource, system)

MIB = 1 << 20


class Client:
    name, version = "cuda-core", importlib.metadata.version("cuda-core")
    kinds = ["default pool", "own pool", "shareable pool", "virtual memory", "managed pool"]

    def start(self):
        self.device = Device(0)
        self.device.set_current()
        self.stream = self.device.create_stream()
        self.resources = {
            "default pool": self.device.memory_resource,
            "own pool": DeviceMemoryResource(self.device, DeviceMemoryResourceOptions(max_size=1 << 40)),
            "shareable pool": DeviceMemoryResource(self.device, DeviceMemoryResourceOptions(ipc_enabled=True)),
            "virtual memory": VirtualMemoryResource(self.device),
            "managed pool": ManagedMemoryResource(),
        }

    def take(self, kind, mib):
        return self.resources[kind].allocate(mib * MIB, stream=self.stream)

    def let_go(self, blocks):
        for block in blocks:
            block.close(self.stream)
        self.stream.sync()

    def is_out_of_memory(self, error):
        return type(error).__name__ == "CUDAError" and str(error).startswith("CUDA_ERROR_OUT_OF_MEMORY")

    def figures(self):
        memory = next(iter(system.Device.get_all_devices())).memory_info
        _, free, total = driver.cuMemGetInfo()
        return {"system.Device.memory_info": [memory.free, memory.total], "cuMemGetInfo": [free, total]}

    def work(self):
        lines = ["device %s %s" % (self.device.name, tuple(self.device.compute_capability))]
        host = LegacyPinnedMemoryResource()
        begin = self.stream.record()
        for kind in sorted(self.resources):
            if kind == "managed pool":
                continue
            there, here, back = self.take(kind, 4), host.allocate(4 * MIB), host.allocate(4 * MIB)
            view = numpy.from_dlpack(here).view(numpy.uint8)
            view[:] = numpy.arange(4 * MIB, dtype=numpy.uint32).astype(numpy.uint8)
            there.copy_from(here, stream=self.stream)
            there.copy_to(back, stream=self.stream)
            self.stream.sync()
            digest = hashlib.sha256(numpy.from_dlpack(back).tobytes()).hexdigest()
            lines.append("%s %s" % (kind, digest))
            self.let_go([there, here, back])
        lines.append("graph %s" % self.graph(host))
        self.stream.sync()
        end = self.stream.record()
        end.sync()
        lines.append("done %s" % begin.is_done)
        return lines

    def graph(self, host):
        """A captured allocation, fill and free, beside a fill of a buffer outside; launched twice."""
        target, back = self.take("default pool", 1), host.allocate(MIB)
        inside = GraphMemoryResource(self.device)
        builder = self.device.create_graph_builder()
        builder.begin_building()
        scratch = inside.allocate(8 * MIB, stream=builder)
        scratch.fill(1, stream=builder)
        target.fill(42, stream=builder)
        scratch.close(builder)
        graph = builder.end_building().complete()
        graph.upload(self.stream)
        for _ in range(2):
            graph.launch(self.stream)
        target.copy_to(back, stream=self.stream)
        self.stream.sync()
        digest = hashlib.sha256(numpy.from_dlpack(back).tobytes()).hexdigest()
        graph.close()
        self.let_go([target, back])
        inside.trim()
        return digest


session.run(Client())
