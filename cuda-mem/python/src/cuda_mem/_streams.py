"""Streams of other libraries, by their handles."""

from __future__ import annotations

import threading
import weakref
from typing import Any

from . import _library as c
from ._errors import check

LEGACY = 1
"""The legacy default stream, which 0 names too."""
PER_THREAD = 2
"""The calling thread's default stream."""


def handle_of(stream: Any) -> int:
    """The handle of a stream: `None` for the legacy default stream, a number, or a stream of PyTorch, CuPy, Numba or
    cuda.core."""
    if stream is None:
        return 0
    if isinstance(stream, int):
        return stream
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        version_and_handle = protocol() if callable(protocol) else protocol
        return int(version_and_handle[1])
    for name in ("cuda_stream", "ptr", "handle"):
        found = getattr(stream, name, None)
        if found is not None:
            # Numba's is a ctypes value.
            return int(getattr(found, "value", found) or 0)
    raise TypeError(f"{stream!r} is no stream: pass a handle, or a stream of PyTorch, CuPy, Numba or cuda.core")


_threads = threading.local()


def this_thread() -> object:
    """What stands for the calling thread, and for no later one, as its number may."""
    found = getattr(_threads, "found", None)
    if found is None:
        found = _threads.found = object()
    return found


# By device and handle. A stream may end with its object, and another one may get the handle; memory that was freed on the
# first would then be taken for the other's. So streams that memory is remembered for stay until they are detached.
_kept: dict[tuple[int, int], Any] = {}


def handle_for(device: int, stream: Any) -> int:
    """The handle of a stream on which memory of a device is allocated or freed. A stream object is kept.

    Raises `ValueError` if the stream says that it is of another device."""
    handle = handle_of(stream)
    if stream is not None and not isinstance(stream, int) and _kept.get((device, handle)) is not stream:
        of = _device_of(stream, handle)
        if of not in (None, device):
            raise ValueError(f"a stream of device {of}, and the memory is of device {device}; use a resource of device {of}")
        keep(device, handle, stream)
    return handle


def keep(device: int, handle: int, stream: Any) -> None:
    """Keeps a stream object until `detach`."""
    if handle <= PER_THREAD or stream is None or isinstance(stream, int):
        return
    known = _kept.get((device, handle))
    # Of several objects for a stream the first is more likely to own it. One that was closed no longer names it.
    if known is None or not _names(known, handle):
        _kept[device, handle] = stream


def _names(stream: Any, handle: int) -> bool:
    try:
        return handle_of(stream) == handle
    except Exception:
        return False


def _device_of(stream: Any, handle: int) -> int | None:
    """The device of a stream of cuda.core, PyTorch or CuPy; `None` if it does not say."""
    try:
        # A default stream is of whichever device is meant, and cuda.core's objects for it name the first that they were used
        # with. PyTorch has one for each device.
        if handle <= PER_THREAD and not hasattr(stream, "cuda_stream"):
            return None
        device = getattr(stream, "device", None)
        for owner, name in ((device, "device_id"), (device, "index"), (stream, "device_id")):
            number = getattr(owner, name, None)
            # CuPy has -1 where it does not know.
            if isinstance(number, int) and number >= 0:
                return number
    except Exception:
        # cuda.core asks the driver, which may fail, for a stream that was made from a handle for instance.
        pass
    return None


parking: dict[int, weakref.ref[Any]] = {}
"""Resources that may have blocks whose streams were captured when they were freed, by their `id`. Other threads may add to it
at any time, so it is copied before it is walked."""


def detach(device: int, stream: Any) -> None:
    """Forgets a stream that is about to be closed: resources give up the memory that they remember for it, and its object is
    kept no more. Call it before you close the stream, once what was allocated on it is freed and while no other thread uses
    it: another stream may get the same handle, and would be given memory that work of this one still uses.

    `device` is the number of the stream's device. Default streams, and streams that were not used here, are ignored.

    Raises an `Error` while the stream is captured and memory that was freed meanwhile waits for the end of the capture.
    """
    handle = handle_of(stream)
    for found in list(parking.values()):
        resource = found()
        if resource is not None:
            resource._leave_stream(device, handle)
    check(c.library.cudamem_stream_detach(device, handle))
    _kept.pop((device, handle), None)
