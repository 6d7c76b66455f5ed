"""Numba's plug-ins for memory: one is chosen, and made for a context."""

import collections
import types
import weakref

MemoryInfo = collections.namedtuple("MemoryInfo", "free,total")

current = types.SimpleNamespace(manager=None)


class GetIpcHandleMixin:
    pass


class HostOnlyCUDAMemoryManager:
    def __init__(self, *, context):
        self.context = context


class MemoryPointer:
    def __init__(self, context, pointer, size, owner=None, finalizer=None):
        self.context, self.device_pointer, self.size = context, pointer, size
        weakref.finalize(self, finalizer)


def set_memory_manager(manager):
    current.manager = manager
