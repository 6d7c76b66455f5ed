"""For pytest (`-p over_core`): the tests of cuda.core with an arena in the place of their own resource."""

from helpers import buffers

import cuda_mem
import cuda_mem.core

made = []


class OverArena(cuda_mem.core.MemoryResource):
    def __init__(self, device):
        super().__init__(cuda_mem.Arena(device.device_id))
        made.append(self)


buffers.DummyDeviceMemoryResource = OverArena


def pytest_terminal_summary(terminalreporter):
    blocks = sum(memory.resource.stats().grown > 0 for memory in made)
    terminalreporter.write_line(f"cuda-mem: {len(made)} resources, of which {blocks} served memory")
