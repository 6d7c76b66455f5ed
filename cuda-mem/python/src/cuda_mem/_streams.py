"""Streams of other libraries, by their handles."""

from __future__ import annotations

from typing import Any

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
