"""CuPy over cuda-mem.

    >>> import cuda_mem.cupy
    >>> cuda_mem.cupy.use_arena()          # before the first array

Memory is allocated on the stream that is current in CuPy, and freed on that stream, whichever is current then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy

from ._resources import Arena, Pool, Resource
from ._streams import this_thread

__all__ = ["allocator", "resource", "use", "use_arena", "use_pool"]


class _Block:
    """Frees a block once CuPy has no pointer to it."""

    __slots__ = ("address", "resource", "size", "stream", "thread")

    def __init__(self, resource: Resource, size: int, stream: Any) -> None:
        self.resource, self.size, self.stream = resource, size, stream
        self.thread = this_thread()
        # CuPy destroys a stream with its object; the resource keeps it.
        self.address = resource.allocate(size, stream)

    def __del__(self) -> None:
        address, self.address = getattr(self, "address", 0), 0
        if not address:
            return
        self.resource._deallocate_later(address, self.size, self.stream.ptr, self.stream, self.thread)


def allocator(resource_of: Resource | Callable[[int], Resource]) -> Callable[[int], Any]:
    """A function for `cupy.cuda.set_allocator` or `cupy.cuda.using_allocator`. `resource_of` is a resource, or a function
    from the number of a device to one."""
    choose = resource_of if callable(resource_of) else lambda device: resource_of

    def allocate(size: int) -> Any:
        device = cupy.cuda.runtime.getDevice()
        stream = cupy.cuda.get_current_stream()
        chosen = choose(device)
        if chosen.device != device:
            raise ValueError(
                f"CuPy's current device is device {device}, and the memory is of device {chosen.device}; `use_arena()` makes "
                "an arena for each device, and `allocator` takes a function from the number of a device to its resource"
            )
        try:
            block = _Block(chosen, size, stream)
        except MemoryError as error:
            # What programs for CuPy catch.
            raise cupy.cuda.memory.OutOfMemoryError(size, 0, 0) from error
        memory = cupy.cuda.UnownedMemory(block.address, size, block, device)
        return cupy.cuda.MemoryPointer(memory, 0)

    return allocate


_resources: dict[int, Resource] = {}


def use(make: Callable[[int], Resource]) -> None:
    """Serves CuPy from resources that `make` creates, one for each device that is used: a function from the number of
    the device to a resource."""
    _resources.clear()

    def resource_of(device: int) -> Resource:
        found = _resources.get(device)
        if found is None:
            # If two threads create one, one of the two is dropped.
            found = _resources.setdefault(device, make(device))
        return found

    cupy.cuda.set_allocator(allocator(resource_of))


def use_arena(**options: Any) -> None:
    """Serves CuPy from arenas, with the options of `cuda_mem.Arena`."""
    use(lambda device: Arena(device, **options))


def use_pool(**options: Any) -> None:
    """Serves CuPy from pools of the driver, with the options of `cuda_mem.Pool`."""
    use(lambda device: Pool(device, **options))


def resource(device: int = 0) -> Resource | None:
    """What serves a device, for its statistics; `None` before the first allocation."""
    return _resources.get(device)
