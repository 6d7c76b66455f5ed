"""Arrays in device memory, for exchange with other libraries."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from . import _dlpack
from . import _library as c
from ._errors import check
from ._resources import Resource, whole
from ._streams import LEGACY, PER_THREAD, handle_of

_SIZES = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16"}


def _typestr(dtype: Any) -> str:
    """A type as NumPy writes it."""
    text = getattr(dtype, "str", None) or str(dtype)
    text = text.lstrip("<|=")
    if text not in _SIZES:
        raise TypeError(f"{dtype!r} is no type of elements: pass one of {', '.join(sorted(_SIZES))}, or NumPy's")
    return f"{'|' if text.endswith('1') and text != 'c16' else '<'}{text}"


class Buffer:
    """An array in device memory. It goes to PyTorch, CuPy, Numba and others, and comes from them, without a copy: by
    DLPack (`torch.from_dlpack(buffer)`, `Buffer.from_dlpack(tensor)`) and by `__cuda_array_interface__`.

    The memory is allocated in the order of `stream`, and freed in that order once nobody has it any more.
    """

    def __init__(
        self, shape: int | Sequence[int], dtype: Any, resource: Resource, stream: Any = None
    ) -> None:
        lengths = (shape,) if isinstance(shape, int) else tuple(shape)
        lengths = tuple(whole("shape", length, most=2**63 - 1) for length in lengths)
        typestr = _typestr(dtype)
        raw = handle_of(stream)
        if raw == PER_THREAD:
            # The last reference may go in another thread, which cannot name this one's stream.
            raise ValueError("a buffer on the thread's own default stream; use a stream that every thread can name")
        size = whole("shape", math.prod(lengths) * int(typestr[2:]))
        address = resource.allocate(size, stream)
        self._set(_dlpack.Layout(address, lengths, None, typestr), resource.device, raw, stream)
        self._finalizer = weakref.finalize(self, resource._deallocate_later, address, size, raw, stream)
        # The driver ends with the process.
        self._finalizer.atexit = False

    def _set(self, layout: _dlpack.Layout, device: int, stream: int, owner: Any) -> None:
        self._layout = layout
        self._device = device
        self._stream = stream
        # The stream's object, with which it may end.
        self._owner = owner

    @classmethod
    def _of(
        cls, layout: _dlpack.Layout, device: int, stream: int, owner: Any, release: Callable[[], None]
    ) -> Buffer:
        buffer = cls.__new__(cls)
        buffer._set(layout, device, stream, owner)
        buffer._finalizer = weakref.finalize(buffer, release)
        buffer._finalizer.atexit = False
        return buffer

    @classmethod
    def from_dlpack(cls, source: Any, stream: Any = None) -> Buffer:
        """The memory of an array of another library, ready for work in `stream`. No copy is made."""
        raw = handle_of(stream)
        exchanged = LEGACY if raw == 0 else raw
        try:
            capsule = source.__dlpack__(stream=exchanged, max_version=(1, 0))
        except TypeError:
            # Older libraries know no versions.
            capsule = source.__dlpack__(stream=exchanged)
        layout, device, give_back = _dlpack.take(capsule)
        return cls._of(layout, device, raw, stream, give_back)

    @classmethod
    def from_cuda_array_interface(cls, source: Any, stream: Any = None) -> Buffer:
        """As `from_dlpack`, for an array with `__cuda_array_interface__`, which is kept."""
        found = source.__cuda_array_interface__
        if found.get("mask") is not None:
            raise ValueError("an array with a mask")
        typestr = found["typestr"]
        size = int(typestr[2:])
        address, read_only = found["data"]
        strides = found.get("strides")
        if strides is not None:
            if any(step % size for step in strides):
                raise ValueError(f"steps of {strides} bytes between elements of {size}")
            strides = tuple(step // size for step in strides)
        layout = _dlpack.Layout(address, tuple(found["shape"]), strides, typestr, read_only)
        device, raw = _device_of(source, address), handle_of(stream)
        earlier = found.get("stream")
        if earlier == 0:
            raise ValueError("a stream of 0 is ambiguous, and forbidden in __cuda_array_interface__")
        if earlier is not None:
            check(c.library.cudamem_stream_wait(device, raw, earlier))
        # `source` is kept until then.
        return cls._of(layout, device, raw, stream, lambda kept=source: None)

    @property
    def address(self) -> int:
        """Where the first element is."""
        return self._layout.address

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the dimensions."""
        return self._layout.shape

    @property
    def typestr(self) -> str:
        """The type of the elements as NumPy writes it, such as "<f4"."""
        return self._layout.typestr

    @property
    def device(self) -> int:
        """The number of the device."""
        return self._device

    @property
    def nbytes(self) -> int:
        """The size of the elements in bytes."""
        return math.prod(self.shape) * int(self.typestr[2:])

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        layout = self._layout
        size = int(layout.typestr[2:])
        strides = layout.strides
        return {
            "shape": layout.shape,
            "typestr": layout.typestr,
            "data": (layout.address, layout.read_only),
            "version": 3,
            "strides": None if strides is None else tuple(step * size for step in strides),
            "stream": self._stream or LEGACY,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return _dlpack.CUDA, self._device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if dl_device not in (None, self.__dlpack_device__()):
            raise BufferError(f"a copy to device {dl_device} was requested; this array is at {self.__dlpack_device__()}")
        if copy:
            raise BufferError("a copy was requested; this array is shared")
        versioned = max_version is not None and max_version[0] >= 1
        if self._layout.read_only and not versioned:
            raise BufferError("a read-only array needs a consumer that knows DLPack 1.0")
        if stream == 0:
            raise ValueError("a stream of 0 is ambiguous, and forbidden in DLPack")
        if stream != -1:
            # The consumer's stream waits for this one.
            consumer = LEGACY if stream is None else stream
            if consumer != (self._stream or LEGACY):
                check(c.library.cudamem_stream_wait(self._device, consumer, self._stream))
        return _dlpack.export(self._layout, self._device, self, versioned)

    def __reduce__(self) -> Any:
        raise TypeError("a Buffer cannot be copied or pickled; `to_bytes` copies its contents")

    def _require_contiguous(self) -> None:
        strides = self._layout.strides
        if strides is not None and strides != _dlpack.contiguous(self.shape):
            raise ValueError("the elements are not one after the other")

    def copy_from(self, source: Any) -> None:
        """Copies from memory of the host, such as bytes or a NumPy array of the same size."""
        self._require_contiguous()
        if self._layout.read_only:
            raise ValueError("the array is read-only")
        view = memoryview(source).cast("B")
        if len(view) != self.nbytes:
            raise ValueError(f"{len(view)} bytes for an array of {self.nbytes}")
        data = bytes(view) if view.readonly else (ctypes.c_char * len(view)).from_buffer(view)
        check(
            c.library.cudamem_copy_to_device(
                self.address, ctypes.cast(data, ctypes.c_void_p), self.nbytes, self._device, self._stream
            )
        )

    def to_bytes(self) -> bytes:
        """The elements, once all work that is now in the stream is done. Waits for it."""
        self._require_contiguous()
        data = (ctypes.c_char * max(self.nbytes, 1))()
        check(c.library.cudamem_copy_to_host(data, self.address, self.nbytes, self._device, self._stream))
        return data.raw[: self.nbytes]

    def __repr__(self) -> str:
        return f"<Buffer {self.typestr}{list(self.shape)} at {self.address:#x}, device {self._device}>"


def _device_of(source: Any, address: int) -> int:
    """The device of an array of another library, or of its memory if it does not say."""
    found = getattr(source, "device", None)
    for name in ("id", "index"):
        number = getattr(found, name, None)
        if isinstance(number, int):
            return number
    if isinstance(found, int):
        return found
    number = ctypes.c_int()
    # An empty array may have no memory.
    if address:
        check(c.library.cudamem_pointer_device(address, ctypes.byref(number)))
    return number.value

