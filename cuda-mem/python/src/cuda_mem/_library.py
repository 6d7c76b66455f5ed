"""The C library: opened once, with the types of its functions, which `cudamem.h` documents."""

from __future__ import annotations

import ctypes
import os
import pathlib
from ctypes import POINTER, c_char_p, c_double, c_int, c_size_t, c_ssize_t, c_uint8, c_uint32, c_uint64, c_void_p
from typing import Any

PACKAGE = pathlib.Path(__file__).resolve().parent
PATH = os.environ.get("CUDA_MEM_LIBRARY") or str(PACKAGE / ("cudamem.dll" if os.name == "nt" else "libcudamem.so"))
"""The file of the library. Another one can be chosen with the variable."""


class PoolOptions(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("release_threshold", c_uint64),
        ("max_bytes", c_uint64),
        ("reuse", c_uint32),
        ("reserved", c_uint32),
        ("recorder", c_void_p),
    ]


class ArenaOptions(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("max_bytes", c_uint64),
        ("initial_bytes", c_uint64),
        ("release_threshold", c_uint64),
        ("max_share", c_double),
        ("slack", c_double),
        ("reuse", c_uint32),
        ("background_thread", c_uint32),
        ("growth_wait", c_uint64),
        ("recorder", c_void_p),
    ]


def _numbers(*names: str, of: Any = c_uint64) -> list[tuple[str, Any]]:
    return [(name, of) for name in names]


class PoolStats(ctypes.Structure):
    _fields_ = _numbers("reserved", "reserved_high", "used", "used_high")


class ArenaStats(ctypes.Structure):
    _fields_ = _numbers(
        "reserved", "reserved_peak", "live", "live_blocks", "grown", "released", "driver_calls", "streams"
    )


class Statistics(ctypes.Structure):
    _fields_ = [
        ("bytes", ctypes.c_int64),
        ("bytes_peak", ctypes.c_int64),
        ("bytes_total", c_uint64),
        ("allocations", ctypes.c_int64),
        ("allocations_peak", ctypes.c_int64),
        ("allocations_total", c_uint64),
    ]


class TorchStats(ctypes.Structure):
    _fields_ = _numbers(
        "allocated",
        "allocated_peak",
        "allocated_total",
        "allocations",
        "allocations_peak",
        "allocations_total",
        "reserved",
        "reserved_peak",
        "graphs_reserved",
        "graphs_allocated",
        "retries",
        "failures",
    )


_OUT = POINTER(c_void_p)
_STATUS = c_int

# name: (result, arguments)
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "cudamem_last_error_message": (c_char_p, []),
    "cudamem_last_error_status": (c_int, []),
    "cudamem_last_error_driver_code": (c_int, []),
    "cudamem_last_error_had_no_effect": (c_int, []),
    "cudamem_status_name": (c_char_p, [c_int]),
    "cudamem_device_count": (_STATUS, [POINTER(c_int)]),
    "cudamem_driver_version": (_STATUS, [POINTER(c_int)]),
    "cudamem_device_memory": (_STATUS, [c_int, POINTER(c_uint64), POINTER(c_uint64)]),
    "cudamem_pointer_device": (_STATUS, [c_void_p, POINTER(c_int)]),
    "cudamem_pool_options_init": (None, [POINTER(PoolOptions), c_size_t]),
    "cudamem_pool_create": (_STATUS, [c_int, POINTER(PoolOptions), _OUT]),
    "cudamem_pool_default": (_STATUS, [c_int, _OUT]),
    "cudamem_pool_make_current": (_STATUS, [c_void_p]),
    "cudamem_pool_read_stats": (_STATUS, [c_void_p, POINTER(PoolStats), c_size_t]),
    "cudamem_arena_options_init": (None, [POINTER(ArenaOptions), c_size_t]),
    "cudamem_arena_create": (_STATUS, [c_int, POINTER(ArenaOptions), _OUT]),
    "cudamem_arena_create_over": (_STATUS, [c_void_p, POINTER(ArenaOptions), _OUT]),
    "cudamem_arena_read_stats": (_STATUS, [c_void_p, POINTER(ArenaStats), c_size_t]),
    "cudamem_arena_reset_peak": (_STATUS, [c_void_p]),
    "cudamem_limit_create": (_STATUS, [c_void_p, c_uint64, _OUT]),
    "cudamem_statistics_create": (_STATUS, [c_void_p, _OUT]),
    "cudamem_statistics_read": (_STATUS, [c_void_p, POINTER(Statistics), c_size_t]),
    "cudamem_checked_create": (_STATUS, [c_void_p, c_uint32, _OUT]),
    "cudamem_resource_retain": (c_void_p, [c_void_p]),
    "cudamem_resource_release": (None, [c_void_p]),
    "cudamem_allocate": (_STATUS, [c_void_p, c_size_t, c_size_t, c_int, c_void_p, _OUT]),
    "cudamem_deallocate": (_STATUS, [c_void_p, c_void_p, c_size_t, c_size_t, c_int, c_void_p]),
    "cudamem_deallocate_after": (
        _STATUS,
        [c_void_p, c_void_p, c_size_t, c_size_t, c_int, c_void_p, _OUT, c_size_t],
    ),
    "cudamem_trim": (_STATUS, [c_void_p, c_uint64]),
    "cudamem_recorder_create": (_STATUS, [c_size_t, _OUT]),
    "cudamem_recorder_create_file": (_STATUS, [c_char_p, _OUT]),
    "cudamem_recorder_write": (_STATUS, [c_void_p, c_char_p]),
    "cudamem_recorder_write_timeline": (_STATUS, [c_void_p, c_char_p]),
    "cudamem_snapshot_write": (_STATUS, [c_void_p, c_void_p, c_char_p]),
    "cudamem_recorder_end": (_STATUS, [c_void_p]),
    "cudamem_recorder_dropped": (_STATUS, [c_void_p, POINTER(c_uint64)]),
    "cudamem_recorder_release": (None, [c_void_p]),
    "cudamem_recorder_frames_with": (None, [c_void_p]),
    "cudamem_stream_detach": (_STATUS, [c_int, c_void_p]),
    "cudamem_stream_wait": (_STATUS, [c_int, c_void_p, c_void_p]),
    "cudamem_copy_to_device": (_STATUS, [c_void_p, c_void_p, c_size_t, c_int, c_void_p]),
    "cudamem_copy_to_host": (_STATUS, [c_void_p, c_void_p, c_size_t, c_int, c_void_p]),
    "cudamem_fill": (_STATUS, [c_void_p, c_uint8, c_size_t, c_int, c_void_p]),
    "cudamem_python_capsules_with": (None, [c_void_p] * 6),
    "cudamem_python_delete": (None, [c_void_p]),
    "cudamem_python_destroy": (None, [c_void_p]),
    "cudamem_torch_use_arena": (_STATUS, [POINTER(ArenaOptions), c_char_p, c_uint32]),
    "cudamem_torch_use_pool": (_STATUS, [POINTER(PoolOptions), c_char_p, c_uint32]),
    "cudamem_torch_alloc": (c_void_p, [c_ssize_t, c_int, c_void_p]),
    "cudamem_torch_alloc_or_throw": (c_void_p, [c_ssize_t, c_int, c_void_p]),
    "cudamem_torch_throw_with": (None, [c_void_p]),
    "cudamem_torch_free": (None, [c_void_p, c_ssize_t, c_int, c_void_p]),
    "cudamem_torch_record_stream": (None, [c_void_p, c_void_p]),
    "cudamem_torch_reset": (None, []),
    "cudamem_torch_set_memory_fraction": (None, [c_double, c_int]),
    "cudamem_torch_read_stats": (_STATUS, [c_int, POINTER(TorchStats), c_size_t]),
    "cudamem_torch_reset_peaks": (_STATUS, [c_int]),
    "cudamem_torch_resource": (_STATUS, [c_int, _OUT]),
    "cudamem_torch_end_record": (_STATUS, []),
    "cudamem_torch_segments": (_STATUS, [c_void_p, _OUT, _OUT]),
}

# Called by PyTorch alone, with arguments that only C++ has.
HOOKS = ("cudamem_torch_base", "cudamem_torch_begin_pool", "cudamem_torch_end_pool", "cudamem_torch_release_pool")


def _open() -> ctypes.CDLL:
    # Nothing that another library exports is meant by a name of this one; Windows knows no such mixture.
    mode = ctypes.DEFAULT_MODE if os.name == "nt" else os.RTLD_LOCAL | os.RTLD_NOW
    library = ctypes.CDLL(PATH, mode=mode)
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


library = _open()


def address_of(name: str) -> int:
    """The address of a function."""
    return ctypes.cast(getattr(library, name), c_void_p).value or 0
