"""What happens to memory, over time."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import weakref
from typing import Any

from . import _library as c
from ._errors import Error, check


class Recorder:
    """Records what happens to the memory of arenas and pools that are created with it: allocations and frees, how they grow,
    and requests that fail.

        >>> recorder = cuda_mem.Recorder()
        >>> arena = cuda_mem.Arena(recorder=recorder)
        >>> address = arena.allocate(1000)
        >>> arena.deallocate(address, 1000)
        >>> recorder.write("run.csv.gz")        # for `python -m cuda_mem report`

    It keeps the newest `entries` events in memory. With a `path` it writes all of them to a file instead, compressed if the
    name ends in .gz; `end` completes it, at the latest when Python exits. A fork of the process writes nothing to it.
    """

    def __init__(self, entries: int = 1_000_000, *, path: str | os.PathLike[str] | None = None) -> None:
        handle = ctypes.c_void_p()
        if path is None:
            if not 0 < entries <= 2**32:
                raise ValueError(f"`entries` is {entries}; it is at least 1 and at most {2**32}")
            check(c.library.cudamem_recorder_create(entries, ctypes.byref(handle)))
        else:
            check(c.library.cudamem_recorder_create_file(os.fsencode(path), ctypes.byref(handle)))
        self._handle = handle.value
        # What it records may be used for longer, and then completes the file at its end.
        weakref.finalize(self, c.library.cudamem_recorder_release, self._handle).atexit = False
        if path is not None:
            _written.add(self)

    @property
    def handle(self) -> int:
        """The `cudamem_recorder` of the C interface. It stays this object's."""
        return self._handle or 0

    @property
    def dropped(self) -> int:
        """How many events are lost: those for which there was no space, or that could not be written."""
        dropped = ctypes.c_uint64()
        check(c.library.cudamem_recorder_dropped(self._handle, ctypes.byref(dropped)))
        return dropped.value

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the events that are in memory to a file, as a log; compressed if the name ends in .gz."""
        check(c.library.cudamem_recorder_write(self._handle, os.fsencode(path)))

    def write_timeline(self, path: str | os.PathLike[str]) -> None:
        """Writes the events that are in memory as a timeline, which Perfetto (https://ui.perfetto.dev) and Chrome open."""
        check(c.library.cudamem_recorder_write_timeline(self._handle, os.fsencode(path)))

    def end(self) -> None:
        """Completes the file of a recorder that writes to one. Later events are lost."""
        check(c.library.cudamem_recorder_end(self._handle))

    def __reduce__(self) -> Any:
        # A copy would release what is not its own.
        raise TypeError("a Recorder cannot be copied or pickled; pass the object itself")


_written: weakref.WeakSet[Recorder] = weakref.WeakSet()


def _end_all() -> None:
    first = None
    for recorder in list(_written):
        try:
            recorder.end()
        except Error as error:
            # The others are completed all the same.
            first = first or error
    if first is not None:
        raise first


atexit.register(_end_all)


_FRAMES = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t)
_HERE = os.path.dirname(os.path.abspath(__file__))
_depth = 0


def _write_frames(text: Any, size: int) -> int:
    """Writes the frames of the calling thread, as C takes them."""
    names = []
    frame = sys._getframe().f_back
    while frame is not None and len(names) < _depth:
        code = frame.f_code
        if not code.co_filename.startswith(_HERE):
            # A `;` separates frames.
            name = f"{code.co_filename}:{frame.f_lineno} {code.co_name}"
            names.append(name.replace(";", "_"))
        frame = frame.f_back
    found = ";".join(names).encode("utf-8", "replace")
    if len(found) > size:
        found = found[:size].rpartition(b";")[0]
    ctypes.memmove(text, found, len(found))
    return len(found)


_frames = _FRAMES(_write_frames)


def record_stacks(depth: int = 32) -> None:
    """From now on recorded requests have the lines of Python that they come from, `depth` at most; 0 for none.

    Costs some microseconds an allocation. Each takes Python's lock, so no thread that holds it may wait for another
    thread's allocation. A Control-C that comes while the lines are asked for is printed by ctypes and lost: press it again.
    """
    global _depth
    _depth = depth
    c.library.cudamem_recorder_frames_with(ctypes.cast(_frames, ctypes.c_void_p) if depth else None)


# Python cannot be called any more once it has ended.
atexit.register(record_stacks, 0)
