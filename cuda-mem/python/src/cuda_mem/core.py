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

from ._errors import Error
from ._resources import Resource
from ._streams import PER_THREAD, handle_for, this_thread

__all__ = ["MemoryResource"]


class MemoryResource(_MemoryResource):
    """A resource of cuda-mem for cuda.core."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        # Of blocks that were allocated on a thread's own default stream, by address.
        self._threads: dict[int, object] = {}

    @property
    def resource(self) -> Resource:
        """What it serves, for its statistics."""
        return self._resource

    def allocate(self, size: int, *, stream: Any = None) -> Any:
        address = self._resource.allocate(size, stream)
        if address and handle_for(self.device_id, stream) == PER_THREAD:
            self._threads[address] = this_thread()
        try:
            return Buffer.from_handle(address, size, mr=self, stream=stream)
        except BaseException:
            # Of a stream that only cuda.core refuses.
            self.deallocate(address, size, stream=stream)
            raise

    def deallocate(self, ptr: Any, size: int, *, stream: Any = None) -> None:
        # cuda.core calls it from destructors, which would only warn of a stream that is captured, and lose the block.
        address, handle = int(ptr), handle_for(self.device_id, stream)
        # Before the free, after which the address may be another block's.
        thread = self._threads.pop(address, None)
        try:
            self._resource._deallocate_later(address, size, handle, stream, thread)
        except Error as error:
            if thread is not None and error.had_no_effect:
                self._threads[address] = thread
            raise

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
