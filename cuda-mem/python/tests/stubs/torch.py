"""What `cuda_mem.torch` uses of PyTorch, for tests without it."""

import types

__version__ = "0"
_C = types.SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True, _cuda_customAllocator=lambda alloc, free: (alloc, free))


class Hooks:
    def __getattr__(self, name):
        return lambda address: None


class CUDAPluggableAllocator:
    def __init__(self, path, alloc, free):
        self.names = alloc, free

    def allocator(self):
        return Hooks()


def current_device():
    """As PyTorch's, which starts CUDA."""
    cuda.initialized = True
    return 0


def memory_stats_as_nested_dict(device=None):
    raise NotImplementedError


def reset_peak_memory_stats(device=None):
    raise NotImplementedError


memory = types.SimpleNamespace(
    CUDAPluggableAllocator=CUDAPluggableAllocator,
    change_current_allocator=lambda allocator: None,
    memory_stats_as_nested_dict=memory_stats_as_nested_dict,
    reset_peak_memory_stats=reset_peak_memory_stats,
)
cuda = types.SimpleNamespace(
    MemPool=lambda allocator: allocator,
    current_device=current_device,
    initialized=False,
    is_initialized=lambda: cuda.initialized,
    memory=memory,
    memory_stats_as_nested_dict=memory_stats_as_nested_dict,
    reset_peak_memory_stats=reset_peak_memory_stats,
)


class device:
    def __init__(self, text):
        self.index = int(text.partition(":")[2] or 0)
