"""Resources: where memory comes from."""

from __future__ import annotations

import ctypes
import json
import operator
import os
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import _library as c
from ._errors import CAPTURING, FORKED, Error, check
from ._recorder import Recorder
from ._streams import LEGACY, PER_THREAD, handle_for, keep, parking, this_thread

_LARGEST = 2**64 - 1


def whole(name: str, value: Any, least: int = 0, most: int = _LARGEST) -> int:
    """A whole number in a range, for C, which would cut others off."""
    number = operator.index(value)
    if not least <= number <= most:
        raise ValueError(f"`{name}` is {number}; it is at least {least} and at most {most}")
    return number


def _share(value: float | None) -> float:
    if value is None:
        return 0.0
    if not 0.0 < value <= 1.0:
        raise ValueError(f"`max_share` is {value}; it is more than 0 and at most 1")
    return float(value)


def _nanoseconds(seconds: float) -> int:
    if not 0.0 <= seconds <= 1e9:
        raise ValueError(f"`growth_wait` is {seconds} seconds; it is at least 0 and at most 1e9")
    return round(seconds * 1e9)


def _most(value: int | None) -> int:
    """C has 0 for no limit."""
    return 0 if value is None else whole("max_bytes", value, least=1)


def pool_options(
    *,
    max_bytes: int | None = None,
    release_threshold: int | None = None,
    reuse: int = 0,
    recorder: Recorder | None = None,
) -> c.PoolOptions:
    options = c.PoolOptions()
    c.library.cudamem_pool_options_init(options, ctypes.sizeof(options))
    options.max_bytes = _most(max_bytes)
    options.reuse = whole("reuse", reuse, most=7)
    if release_threshold is not None:
        options.release_threshold = whole("release_threshold", release_threshold)
    if recorder is not None:
        options.recorder = recorder.handle
    return options


def arena_options(
    *,
    max_bytes: int | None = None,
    max_share: float | None = None,
    initial_bytes: int = 0,
    release_threshold: int | None = None,
    slack: float | None = None,
    reuse: int = 0,
    background_thread: bool = False,
    growth_wait: float = 0.0,
    recorder: Recorder | None = None,
) -> c.ArenaOptions:
    options = c.ArenaOptions()
    c.library.cudamem_arena_options_init(options, ctypes.sizeof(options))
    options.max_bytes = _most(max_bytes)
    options.max_share = _share(max_share)
    options.initial_bytes = whole("initial_bytes", initial_bytes)
    if release_threshold is not None:
        options.release_threshold = whole("release_threshold", release_threshold)
    options.slack = 0.0 if slack is None else slack
    if slack == 0.0:
        raise ValueError("`slack` is 0; it is at least 1")
    options.reuse = whole("reuse", reuse, most=7)
    options.background_thread = background_thread
    options.growth_wait = _nanoseconds(growth_wait)
    if recorder is not None:
        options.recorder = recorder.handle
    return options


class Resource:
    """Where memory comes from. All methods may be called from all threads.

    Memory is allocated and freed in the order of a stream: see [`allocate`][cuda_mem.Resource.allocate]. Most programs
    use a `Buffer`, or a module for their library, instead.
    """

    # Modules are emptied before the last objects end.
    _release = staticmethod(c.library.cudamem_resource_release)
    _is_finalizing = staticmethod(sys.is_finalizing)

    # Kept, so that its file is completed when Python exits.
    _recorder: Recorder | None = None

    def __init__(self, handle: int, device: int, upstream: Resource | None = None) -> None:
        self._handle = handle
        self._device = device
        self._upstream = upstream
        # Blocks whose owners are gone, and which could not be freed yet.
        self._parked: list[tuple[int, int, int, Any, object, bool]] = []
        # Held while they are tried: one that is tried is not in the list.
        self._trying = threading.RLock()

    @property
    def device(self) -> int:
        """The number of the device."""
        return self._device

    @property
    def handle(self) -> int:
        """The `cudamem_resource` of the C interface. It stays this object's."""
        return self._handle

    def allocate(self, size: int, stream: Any = None, *, alignment: int = 0) -> int:
        """Allocates `size` bytes for work that is submitted to `stream` from now on, and returns the address; 0 for no
        bytes. The alignment is 256 bytes. A stream object is kept until `cuda_mem.detach`.

        Raises `OutOfMemoryError` if there is not enough.
        """
        if self._parked:
            self._free_parked()
        pointer = ctypes.c_void_p()
        size, alignment = whole("size", size), whole("alignment", alignment)
        status = c.library.cudamem_allocate(
            self._handle, size, alignment, self._device, handle_for(self._device, stream), ctypes.byref(pointer)
        )
        check(status)
        return pointer.value or 0

    def deallocate(
        self, address: int, size: int, stream: Any = None, *, alignment: int = 0, others: Sequence[Any] = ()
    ) -> None:
        """Frees memory once the work that is now in `stream` and in the streams `others` is done. Does not wait. Stream
        objects are kept until `cuda_mem.detach`."""
        address, size = whole("address", address), whole("size", size)
        handles = (ctypes.c_void_p * len(others))(*(handle_for(self._device, other) for other in others))
        raw = handle_for(self._device, stream)
        status = c.library.cudamem_deallocate_after(
            self._handle, address, size, alignment, self._device, raw, handles, len(others)
        )
        check(status)

    def _deallocate_later(
        self,
        address: int,
        size: int,
        stream: int,
        owner: Any = None,
        thread: object = None,
        fence: bool = False,
    ) -> None:
        """Frees a block for its destructor, which cannot try again. While the stream is captured that is not possible, and
        is done before a later allocation. `owner` is the stream's object, and `thread` whose default stream it is, if it is
        a thread's own: another one waits. With `fence` and the legacy default stream, later work of streams that wait for
        that one comes after the free."""
        try:
            # It may have been detached, and is remembered again.
            keep(self._device, stream, owner)
            if stream == PER_THREAD and thread is not None and thread is not this_thread():
                # This thread cannot name the other's stream, for which the legacy default stream waits.
                byte = (ctypes.c_char * 1)()
                check(c.library.cudamem_copy_to_host(byte, address, 1, self._device, LEGACY))
            if fence and address:
                # A free alone may be no work.
                check(c.library.cudamem_fill(address, 0, 1, self._device, stream))
            self.deallocate(address, size, stream)
        except Error as error:
            if error.status == FORKED:
                # The block is the parent's.
                return
            if error.status != CAPTURING or not error.had_no_effect:
                raise
            parking[id(self)] = weakref.ref(self)
            self._parked.append((address, size, stream, owner, thread, fence))

    def _free_parked(self) -> None:
        # Another thread may be at it.
        if self._trying.acquire(blocking=False):
            try:
                self._free_each()
            finally:
                self._trying.release()

    def _free_each(self) -> None:
        errors: list[Error] = []
        for _ in range(len(self._parked)):
            try:
                # A finalizer may do the same meanwhile.
                block = self._parked.pop(0)
            except IndexError:
                break
            try:
                self._deallocate_later(*block)
            except Error as error:
                errors.append(error)
        # It does not concern the caller. After all blocks, because the program may have made warnings errors.
        for error in errors:
            warnings.warn(f"memory is lost: {error}", RuntimeWarning, stacklevel=4)

    def _leave_stream(self, device: int, stream: int) -> None:
        """For a stream that is about to be forgotten. Raises an error if a block still waits for the end of its capture."""
        if device != self._device or stream <= PER_THREAD:
            return
        with self._trying:
            self._free_each()
            waits = any(block[2] == stream for block in self._parked)
        if waits:
            error = Error(
                f"the stream {stream:#x} is captured, and a block that was freed meanwhile waits for the end of the capture; "
                "detach it after that"
            )
            error.status, error.driver_code, error.had_no_effect = CAPTURING, 0, True
            raise error

    def trim(self, keep: int = 0) -> None:
        """Gives unused memory back to the device, down to `keep` bytes if possible. Does not wait."""
        self._free_parked()
        check(c.library.cudamem_trim(self._handle, whole("keep", keep)))

    def write_snapshot(self, path: str | os.PathLike[str], recorder: Recorder | None = None) -> None:
        """Writes the segments and blocks of an arena or a pool in the form of PyTorch's memory snapshots: as JSON if the name
        ends in .json, and as a pickle otherwise, which `python -m torch.cuda._memory_viz` and its viewer read.

        With the `recorder` of the arena or pool, the file also has its events, and where blocks come from."""
        handle = recorder.handle if recorder is not None else None
        check(c.library.cudamem_snapshot_write(self._handle, handle, os.fsencode(path)))

    def snapshot(self, recorder: Recorder | None = None) -> dict[str, Any]:
        """The segments and blocks of an arena or a pool, as `torch.cuda.memory_snapshot` names them."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "snapshot.json")
            self.write_snapshot(path, recorder)
            with open(path, encoding="utf-8") as file:
                return json.load(file)

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        try:
            if handle and self._parked and not self._is_finalizing():
                try:
                    self._free_parked()
                finally:
                    count = len(self._parked)
                    if count:
                        # It may not be released with blocks in it.
                        handle = None
                        warnings.warn(
                            f"memory is lost: {self!r} went with {count} blocks of captured streams", RuntimeWarning
                        )
        finally:
            # Warnings may be errors.
            self._handle = None
            parking.pop(id(self), None)
            if handle:
                self._release(handle)

    def __reduce__(self) -> Any:
        # A copy would release what is not its own.
        raise TypeError(f"a {type(self).__name__} cannot be copied or pickled; pass the object itself")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of device {self._device}>"


def device_number(device: Any) -> int:
    """The number of a device, as C takes it."""
    return whole("device", device, most=2**31 - 1)


def _created(create: Any, *arguments: Any) -> int:
    handle = ctypes.c_void_p()
    check(create(*arguments, ctypes.byref(handle)))
    return handle.value or 0


# Of pools that have been the current one.
_recorders_of_current: list[Recorder] = []


@dataclass(frozen=True)
class PoolStats:
    """What a pool has, in bytes, as the driver counts it."""

    reserved: int
    reserved_high: int
    used: int
    used_high: int


class Pool(Resource):
    """A memory pool of the driver (`cuMemPoolCreate`).

    `max_bytes` limits it (CUDA 12.2). It keeps everything, or down to `release_threshold` bytes. A `recorder` records it.
    """

    def __init__(
        self,
        device: int = 0,
        *,
        max_bytes: int | None = None,
        release_threshold: int | None = None,
        reuse: int = 0,
        recorder: Recorder | None = None,
    ) -> None:
        device = device_number(device)
        options = pool_options(
            max_bytes=max_bytes, release_threshold=release_threshold, reuse=reuse, recorder=recorder
        )
        super().__init__(_created(c.library.cudamem_pool_create, device, options), device)
        self._recorder = recorder

    @classmethod
    def default(cls, device: int = 0) -> Pool:
        """The device's default pool, which `cudaMallocAsync` uses unless told otherwise."""
        pool = cls.__new__(cls)
        Resource.__init__(pool, _created(c.library.cudamem_pool_default, device_number(device)), device)
        return pool

    def make_current(self) -> None:
        """Makes it the pool from which `cudaMallocAsync` and `cuMemAllocAsync` take memory, in any library of this
        process."""
        check(c.library.cudamem_pool_make_current(self._handle))
        # It has to live as long as it is the current one.
        c.library.cudamem_resource_retain(self._handle)
        if self._recorder is not None:
            _recorders_of_current.append(self._recorder)

    def stats(self) -> PoolStats:
        """What the pool has now."""
        stats = c.PoolStats()
        check(c.library.cudamem_pool_read_stats(self._handle, stats, ctypes.sizeof(stats)))
        return PoolStats(stats.reserved, stats.reserved_high, stats.used, stats.used_high)


@dataclass(frozen=True)
class ArenaStats:
    """What an arena has, in bytes unless stated otherwise."""

    reserved: int
    reserved_peak: int
    live: int
    live_blocks: int
    """Blocks."""
    grown: int
    """How often it grew."""
    released: int
    """How many pieces it has given back."""
    driver_calls: int
    """Driver calls that it has made."""
    streams: int
    """Streams that it has or had memory for."""


class Arena(Resource):
    """A sub-allocator that answers most requests without a driver call.

    `max_bytes`, or `max_share` of the device's memory, limits what it holds. It takes `initial_bytes` with its first
    allocation, if the device has them. It keeps everything or down to `release_threshold` bytes, and moves memory
    rather than hold more than `slack` times the program's peak, where it can. A `background_thread` prepares large
    blocks. A growth beyond the slack may wait for the device up to `growth_wait` seconds, so that memory can move
    instead. With `upstream` it takes its memory from another resource. A `recorder` records it.
    """

    def __init__(
        self,
        device: int | None = None,
        *,
        upstream: Resource | None = None,
        max_bytes: int | None = None,
        max_share: float | None = None,
        initial_bytes: int = 0,
        release_threshold: int | None = None,
        slack: float | None = None,
        reuse: int = 0,
        background_thread: bool = False,
        growth_wait: float = 0.0,
        recorder: Recorder | None = None,
    ) -> None:
        options = arena_options(
            max_bytes=max_bytes,
            max_share=max_share,
            initial_bytes=initial_bytes,
            release_threshold=release_threshold,
            slack=slack,
            reuse=reuse,
            background_thread=background_thread,
            growth_wait=growth_wait,
            recorder=recorder,
        )
        if upstream is None:
            device = device_number(device or 0)
            handle = _created(c.library.cudamem_arena_create, device, options)
        else:
            if device not in (None, upstream.device):
                raise ValueError(f"device {device}, and the upstream is of device {upstream.device}")
            device = upstream.device
            handle = _created(c.library.cudamem_arena_create_over, upstream.handle, options)
        super().__init__(handle, device, upstream)
        self._recorder = recorder

    def stats(self) -> ArenaStats:
        """What the arena has now. Makes no driver call."""
        stats = c.ArenaStats()
        check(c.library.cudamem_arena_read_stats(self._handle, stats, ctypes.sizeof(stats)))
        return ArenaStats(*(getattr(stats, name) for name, _ in stats._fields_))

    def reset_peak(self) -> None:
        """Sets `reserved_peak` to what is held now."""
        check(c.library.cudamem_arena_reset_peak(self._handle))


class Limit(Resource):
    """At most `limit` bytes of another resource at a time."""

    def __init__(self, upstream: Resource, limit: int) -> None:
        handle = _created(c.library.cudamem_limit_create, upstream.handle, whole("limit", limit))
        super().__init__(handle, upstream.device, upstream)


@dataclass(frozen=True)
class Counts:
    """Bytes and allocations that went through a resource: now, the most at a time, and in total."""

    bytes: int
    bytes_peak: int
    bytes_total: int
    allocations: int
    allocations_peak: int
    allocations_total: int


class Statistics(Resource):
    """Counts what is allocated of another resource through it."""

    def __init__(self, upstream: Resource) -> None:
        handle = _created(c.library.cudamem_statistics_create, upstream.handle)
        super().__init__(handle, upstream.device, upstream)

    def counts(self) -> Counts:
        """The counts now."""
        counts = c.Statistics()
        check(c.library.cudamem_statistics_read(self._handle, counts, ctypes.sizeof(counts)))
        return Counts(*(getattr(counts, name) for name, _ in counts._fields_))


class Checked(Resource):
    """Answers wrong frees of another resource: a second one, one of a foreign address, one with a wrong size, and with
    `streams` one on another stream."""

    def __init__(self, upstream: Resource, *, streams: bool = False) -> None:
        handle = _created(c.library.cudamem_checked_create, upstream.handle, int(streams))
        super().__init__(handle, upstream.device, upstream)


def device_count() -> int:
    """The number of visible devices. Raises `NoDriverError` if there is no driver."""
    count = ctypes.c_int()
    check(c.library.cudamem_device_count(ctypes.byref(count)))
    return count.value


def driver_version() -> int:
    """The driver's CUDA version: 13000 for 13.0."""
    version = ctypes.c_int()
    check(c.library.cudamem_driver_version(ctypes.byref(version)))
    return version.value


def device_memory(device: int = 0) -> tuple[int, int]:
    """Free and total memory of a device, in bytes."""
    free, total = ctypes.c_uint64(), ctypes.c_uint64()
    device = device_number(device)
    check(c.library.cudamem_device_memory(device, ctypes.byref(free), ctypes.byref(total)))
    return free.value, total.value
