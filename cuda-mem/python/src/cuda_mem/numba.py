"""Numba over cuda-mem, as a plug-in for its memory management.

    >>> import cuda_mem.numba
    >>> cuda_mem.numba.use_arena()         # before Numba uses the GPU

Or without a change to the program: `NUMBA_CUDA_MEMORY_MANAGER=cuda_mem.numba`.

Numba names no stream. Memory is allocated and freed on the legacy default stream. What is submitted to that stream waits
for Numba's streams, and they wait for it, so a free submits a fill of one byte. Streams of other libraries that do not wait
for it have to be synchronised before an array is dropped.
"""

from __future__ import annotations

import ctypes
from typing import Any

from numba import cuda
from numba.cuda import GetIpcHandleMixin, HostOnlyCUDAMemoryManager, MemoryInfo, MemoryPointer

from ._resources import Arena, Pool, Resource, device_memory
from ._streams import LEGACY

__all__ = ["MemoryManager", "resource", "use_arena", "use_pool"]

_make: Any = Arena
_options: dict[str, Any] = {}
_resources: dict[int, Resource] = {}


class MemoryManager(GetIpcHandleMixin, HostOnlyCUDAMemoryManager):
    """The plug-in: `numba.cuda.set_memory_manager(MemoryManager)`."""

    def initialize(self) -> None:
        super().initialize()

    def _resource(self) -> tuple[Resource, int]:
        device = self.context.device.id
        found = _resources.get(device)
        if found is None:
            found = _resources.setdefault(device, _make(device, **_options))
        return found, device

    def memalloc(self, size: int) -> Any:
        found, _ = self._resource()
        address = found.allocate(size)
        pointer = ctypes.c_void_p(address)

        def free() -> None:
            found._deallocate_later(address, size, LEGACY, fence=True)

        return MemoryPointer(self.context, pointer, size, finalizer=free)

    def get_ipc_handle(self, memory: Any) -> Any:
        raise NotImplementedError(
            "memory of an arena or a pool has no handle for cuIpcGetMemHandle; allocate what you share without a plug-in"
        )

    def get_memory_info(self) -> Any:
        free, total = device_memory(self._resource()[1])
        return MemoryInfo(free=free, total=total)

    def reset(self) -> None:
        super().reset()
        for found in _resources.values():
            found.trim()

    @property
    def interface_version(self) -> int:
        return 1


def _use(make: Any, options: dict[str, Any]) -> None:
    global _make, _options
    _make, _options = make, options
    _resources.clear()
    cuda.set_memory_manager(MemoryManager)


def use_arena(**options: Any) -> None:
    """Serves Numba from arenas, with the options of `cuda_mem.Arena`."""
    _use(Arena, options)


def use_pool(**options: Any) -> None:
    """Serves Numba from pools of the driver, with the options of `cuda_mem.Pool`."""
    _use(Pool, options)


def resource(device: int = 0) -> Resource | None:
    """What serves a device, for its statistics; `None` before the first allocation."""
    return _resources.get(device)


_numba_memory_manager = MemoryManager
