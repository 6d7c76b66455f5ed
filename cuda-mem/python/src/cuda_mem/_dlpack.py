"""DLPack 1.x: the structs, and capsules that hold them."""

from __future__ import annotations

import atexit
import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple

from . import _library as c

CUDA = 2
READ_ONLY = 1
COPIED = 2

_VERSIONED = b"dltensor_versioned"
_UNVERSIONED = b"dltensor"
_USED = {_VERSIONED: b"used_dltensor_versioned", _UNVERSIONED: b"used_dltensor"}

# The kind of a NumPy type string, and DLPack's code.
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_KINDS = {code: kind for kind, code in _CODES.items()}


class Device(ctypes.Structure):
    _fields_ = [("type", c_int32), ("id", c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", Device),
        ("ndim", c_int32),
        ("dtype", DataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


_DELETER = ctypes.CFUNCTYPE(None, c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", c_void_p), ("deleter", _DELETER)]


class Version(ctypes.Structure):
    _fields_ = [("major", c_uint32), ("minor", c_uint32)]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("version", Version),
        ("context", c_void_p),
        ("deleter", _DELETER),
        ("flags", c_uint64),
        ("tensor", Tensor),
    ]


class Layout(NamedTuple):
    """Where the elements of an array are."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    """In elements; `None` for rows one after the other."""
    typestr: str
    """As NumPy writes it, such as "<f4"."""
    read_only: bool = False


def data_type(typestr: str) -> DataType:
    """The type of a NumPy type string."""
    kind, size = typestr[1], int(typestr[2:])
    if typestr[0] == ">" or kind not in _CODES:
        raise TypeError(f"DLPack has no type for {typestr!r}")
    return DataType(_CODES[kind], 8 * size, 1)


def typestr_of(dtype: DataType) -> str:
    """The NumPy type string of a type."""
    kind = _KINDS.get(dtype.code)
    if kind is None or dtype.lanes != 1 or dtype.bits % 8:
        raise TypeError(f"elements of DLPack's type {dtype.code}, {dtype.bits} bits, {dtype.lanes} lanes")
    size = dtype.bits // 8
    return f"{'|' if size == 1 else '<'}{kind}{size}"


_api = ctypes.pythonapi
_DESTRUCTOR = ctypes.CFUNCTYPE(None, c_void_p)
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [c_void_p, c_char_p, _DESTRUCTOR]
# A destructor gets an object whose count is 0, which must not be counted again.
_pointer_of_dying = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", _api))
_dying_is = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", _api))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, c_char_p)(("PyCapsule_IsValid", _api))
_pointer = ctypes.PYFUNCTYPE(c_void_p, ctypes.py_object, c_char_p)(("PyCapsule_GetPointer", _api))
_set_name = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, c_char_p)(("PyCapsule_SetName", _api))

# What each exported tensor keeps, by its address: the struct, its arrays and the owner of the memory.
_exported: dict[int, tuple[Any, ...]] = {}


@_DELETER
def _forget(managed: int) -> None:
    _exported.pop(managed, None)


@_DESTRUCTOR
def _drop(capsule: int) -> None:
    """A capsule that nobody took still owns its tensor."""
    for name in (_UNVERSIONED, _VERSIONED):
        if _dying_is(capsule, name):
            _exported.pop(_pointer_of_dying(capsule, name), None)


# C calls these two, because a tensor may go while an exception is raised, which ctypes would lose.
_delete = _DELETER(c.address_of("cudamem_python_delete"))
_destroy = _DESTRUCTOR(c.address_of("cudamem_python_destroy"))


def _call_back(*functions: Any) -> None:
    python = (_api.PyGILState_Ensure, _api.PyGILState_Release, _api.PyErr_Fetch, _api.PyErr_Restore)
    c.library.cudamem_python_capsules_with(*(ctypes.cast(function, c_void_p) for function in (*python, *functions)))


_call_back(_forget, _drop)


@atexit.register
def _leave() -> None:
    """Who keeps a tensor longer than Python lives must not call back. The memory ends with the process."""
    _call_back(None, None)
    # The structs stay to the end.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_exported))


def export(layout: Layout, device: int, owner: object, versioned: bool) -> Any:
    """A capsule with an array, which keeps `owner` until the consumer deletes it."""
    count = len(layout.shape)
    shape = (c_int64 * count)(*layout.shape)
    strides = (c_int64 * count)(*(layout.strides or contiguous(layout.shape)))
    managed: Any = ManagedVersioned() if versioned else Managed()
    tensor = managed.tensor
    tensor.data = layout.address or None
    tensor.device = Device(CUDA, device)
    tensor.ndim = count
    tensor.dtype = data_type(layout.typestr)
    tensor.shape = shape
    tensor.strides = strides
    if versioned:
        managed.version = Version(1, 0)
        managed.flags = READ_ONLY if layout.read_only else 0
    managed.deleter = _delete
    address = ctypes.addressof(managed)
    _exported[address] = (managed, shape, strides, owner)
    name = _VERSIONED if versioned else _UNVERSIONED
    return _new(address, name, _destroy)


def take(capsule: Any) -> tuple[Layout, int, Callable[[], None]]:
    """The array of a capsule, the number of its device, and what gives it back. The capsule is used up."""
    versioned = bool(_is_valid(capsule, _VERSIONED))
    name = _VERSIONED if versioned else _UNVERSIONED
    if not _is_valid(capsule, name):
        raise ValueError("the capsule has no tensor, or was used before")
    pointer = _pointer(capsule, name)
    managed = ctypes.cast(pointer, POINTER(ManagedVersioned if versioned else Managed)).contents
    if versioned and managed.version.major != 1:
        raise ValueError(f"a tensor of DLPack {managed.version.major}; 1 is known")
    tensor = managed.tensor
    if tensor.device.type != CUDA:
        raise ValueError(f"a tensor on DLPack's device type {tensor.device.type}; CUDA's is {CUDA}")
    shape = tuple(tensor.shape[place] for place in range(tensor.ndim))
    strides = tuple(tensor.strides[place] for place in range(tensor.ndim)) if tensor.strides else None
    address = (tensor.data or 0) + tensor.byte_offset
    read_only = bool(versioned and managed.flags & READ_ONLY)
    layout = Layout(address, shape, strides, typestr_of(tensor.dtype), read_only)
    _set_name(capsule, _USED[name])

    def give_back() -> None:
        if managed.deleter:
            managed.deleter(pointer)

    return layout, tensor.device.id, give_back


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of an array whose rows are one after the other, in elements."""
    strides = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))
