"""What `cuda_mem.core` uses of cuda.core, for tests without it."""

from types import SimpleNamespace


class MemoryResource:
    pass


class Stream:
    def __init__(self, handle, device=None):
        self.handle, self._device = handle, device

    @classmethod
    def from_handle(cls, handle):
        return cls(handle)

    def __cuda_stream__(self):
        return 0, self.handle

    @property
    def device(self):
        if self._device is None:
            if self.handle > 2:
                # As where the driver does not tell a stream's context.
                raise ValueError("the device of a stream that was made from a handle")
            self._device = SimpleNamespace(device_id=0)
        return self._device


LEGACY_DEFAULT_STREAM = Stream(1)
PER_THREAD_DEFAULT_STREAM = Stream(2)


class Buffer:
    @classmethod
    def from_handle(cls, ptr, size, mr=None, stream=None):
        buffer = cls()
        buffer.handle, buffer.size, buffer.memory, buffer.stream = ptr, size, mr, stream
        return buffer

    def close(self, stream=None):
        self.memory.deallocate(self.handle, self.size, stream=stream or self.stream)
