"""What `cuda_mem.cupy` uses of CuPy, for tests without it."""

import types


class OutOfMemoryError(MemoryError):
    pass


class Stream:
    def __init__(self, ptr=0, device_id=-1):
        self.ptr, self.device_id = ptr, device_id


class UnownedMemory:
    def __init__(self, ptr, size, owner, device_id):
        self.ptr, self.size, self.owner, self.device_id = ptr, size, owner, device_id


class MemoryPointer:
    def __init__(self, mem, offset):
        self.mem, self.ptr = mem, mem.ptr + offset


current = types.SimpleNamespace(device=0, stream=Stream(), allocator=None)


def set_allocator(allocator):
    current.allocator = allocator


cuda = types.SimpleNamespace(
    MemoryPointer=MemoryPointer,
    Stream=Stream,
    UnownedMemory=UnownedMemory,
    get_current_stream=lambda: current.stream,
    memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
    runtime=types.SimpleNamespace(getDevice=lambda: current.device),
    set_allocator=set_allocator,
)
