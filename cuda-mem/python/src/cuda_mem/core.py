"""cuda.core (1.0 or later) over cuda-mem.

    >>> from cuda.core import Device
    >>> import cuda_mem, cuda_mem.core
    >>> device = Device(0)
    >>> device.set_current()
    >>> memory = cuda_mem.core.MemoryResource(cuda_mem.Arena(0))
    >>> buffer = memory.allocate(1024, stream=device.create_stream())
"""

from __future__ import annotations

from typing import Any

from cuda.core import Buffer
from cuda.core import MemoryResource as _MemoryResource

from ._resources import Resource
from ._streams import handle_for

__all__ = ["MemoryResource"]


class MemoryResource(_MemoryResource):
    """A resource of cuda-mem for cuda.core."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource

    @property
    def resource(self) -> Resource:
        """What it serves, for its statistics."""
        return self._resource

    def allocate(self, size: int, *, stream: Any = None) -> Any:
        address = self._resource.allocate(size, stream)
        try:
            return Buffer.from_handle(address, size, mr=self, stream=stream)
        except BaseException:
            # Of a stream that only cuda.core refuses.
            self.deallocate(address, size, stream=stream)
            raise

    def deallocate(self, ptr: Any, size: int, *, stream: Any = None) -> None:
        # cuda.core calls it from destructors, which would only warn of a stream that is captured, and lose the block.
        self._resource._deallocate_later(int(ptr), size, handle_for(self.device_id, stream), stream)

    @property
    def device_id(self) -> int:
        return self._resource.device

    @property
    def is_device_accessible(self) -> bool:
        return True

    @property
    def is_host_accessible(self) -> bool:
        return False

    @property
    def is_managed(self) -> bool:
        return False
