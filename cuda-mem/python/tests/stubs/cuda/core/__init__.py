"""What `cuda_mem.core` uses of cuda.core, for tests without it."""


class MemoryResource:
    pass


class Buffer:
    @classmethod
    def from_handle(cls, ptr, size, mr=None, stream=None):
        buffer = cls()
        buffer.handle, buffer.size, buffer.memory, buffer.stream = ptr, size, mr, stream
        return buffer

    def close(self, stream=None):
        self.memory.deallocate(self.handle, self.size, stream=stream or self.stream)
