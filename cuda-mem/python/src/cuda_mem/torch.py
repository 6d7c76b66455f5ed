"""PyTorch over cuda-mem.

    >>> import cuda_mem.torch
    >>> cuda_mem.torch.use_arena()          # before the first tensor on a GPU

From then on every tensor lies in an arena. PyTorch calls this interface a pluggable allocator, and has things that raise
an error under it: `torch.cuda.MemPool`, memory snapshots and history, graph trees of `torch.compile`
(`mode="reduce-overhead"`), the benchmark mode of cuDNN, and sending tensors to other processes. `torch.cuda.graph` works.
So do PyTorch's statistics, which this module answers.

`mem_pool` is the other way: PyTorch keeps its allocator, which takes its segments from a pool or an arena, for the
allocations in a `with` block.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile
from typing import Any

import torch

from . import _library as c
from ._errors import check
from ._recorder import Recorder
from ._resources import Arena, Pool, Resource, arena_options, pool_options

__all__ = [
    "end_record",
    "is_used",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_pool",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_peak_memory_stats",
    "resource",
    "stats",
    "use_arena",
    "use_pool",
]

_allocator: Any = None
# Kept, so that its file is completed when Python exits.
_recorder: Recorder | None = None


def use_arena(
    *,
    max_bytes: int | None = None,
    max_share: float | None = None,
    initial_bytes: int = 0,
    release_threshold: int | None = None,
    slack: float = 1.02,
    reuse: int = 0,
    background_thread: bool = False,
    growth_wait: float = 1.0,
    record: str | os.PathLike[str] | Recorder | None = None,
    shim: bool | None = None,
    statistics: bool = True,
) -> None:
    """Serves PyTorch from an arena of each device, created at the first request. The options are those of
    `cuda_mem.Arena`. By default a growth may wait for the device, as PyTorch's own allocator does when memory runs out;
    this happens while a program still meets new sizes.

    `record` is a `cuda_mem.Recorder`, or names a file that gets every allocation and free, and how the arena grows: for
    `python -m cuda_mem report` and `replay`. It is replaced when this process first uses a GPU, so processes need a name
    each. A name in .gz is compressed. After `cuda_mem.record_stacks()` it has the lines of Python that allocated.

    PyTorch does not look whether an allocation failed. A small library, built with the machine's C++ compiler once, makes
    it raise `torch.OutOfMemoryError`. `shim=True` fails if that cannot be built, `shim=False` does without; by default
    it is used if there is a compiler. Without it a `RuntimeError` is raised that says "CUDA out of memory".

    With `statistics`, `torch.cuda.memory_stats`, `memory_allocated`, `max_memory_allocated`, `memory_reserved` and those
    that reset peaks answer from here; PyTorch's own would raise an error.

    Raises `InUseError` if it was called before, and `RuntimeError` if PyTorch has used a GPU.
    """
    recorder, path = _recorder_or_path(record)
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
    _use(c.library.cudamem_torch_use_arena, options, recorder, path, shim, statistics)


def use_pool(
    *,
    max_bytes: int | None = None,
    release_threshold: int | None = None,
    reuse: int = 0,
    record: str | os.PathLike[str] | Recorder | None = None,
    shim: bool | None = None,
    statistics: bool = True,
) -> None:
    """Serves PyTorch from a memory pool of the driver for each device. The options are those of `cuda_mem.Pool`; the
    others as for `use_arena`."""
    recorder, path = _recorder_or_path(record)
    options = pool_options(
        max_bytes=max_bytes, release_threshold=release_threshold, reuse=reuse, recorder=recorder
    )
    _use(c.library.cudamem_torch_use_pool, options, recorder, path, shim, statistics)


def _recorder_or_path(record: Any) -> tuple[Recorder | None, Any]:
    if isinstance(record, Recorder):
        return record, None
    return None, record


def is_used() -> bool:
    """Whether PyTorch is served from here."""
    return _allocator is not None


def _use(
    configure: Any, options: Any, recorder: Recorder | None, record: Any, shim: bool | None, statistics: bool
) -> None:
    global _allocator, _recorder
    if torch.cuda.is_initialized():
        raise RuntimeError("PyTorch has used a GPU already; choose its memory before the first tensor on one")
    path, name = (_shim(required=shim is True), "cudamem_torch_shim_alloc") if shim is not False else (None, "")
    throw = None
    if path is None:
        throw = _throw()
        path, name = c.PATH, "cudamem_torch_alloc_or_throw"
        c.library.cudamem_torch_throw_with(throw)
    log = None
    if record is not None:
        log = os.fsencode(record)
        # A wrong path is to be told now, while another one can still be chosen. What is in the file stays until this
        # process uses a GPU: a worker that runs the program's first lines again must not empty the log of its parent.
        with open(record, "ab"):
            pass
    # If nothing is raised, the reason is printed.
    is_raised = throw is not None or name == "cudamem_torch_shim_alloc"
    check(configure(options, log, int(not is_raised)))
    _recorder = recorder
    if log is not None:
        atexit.register(end_record)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(path, name, "cudamem_torch_free")
    hooks = allocator.allocator()
    for setter, hook in (
        ("set_reset_fn", "reset"),
        ("set_memory_fraction_fn", "set_memory_fraction"),
        ("set_base_alloc_fn", "base"),
        ("set_record_stream_fn", "record_stream"),
        ("set_begin_allocate_to_pool", "begin_pool"),
        ("set_end_allocate_to_pool_fn", "end_pool"),
        ("set_release_pool", "release_pool"),
    ):
        getattr(hooks, setter)(c.address_of(f"cudamem_torch_{hook}"))
    torch.cuda.memory.change_current_allocator(allocator)
    _allocator = allocator
    if statistics:
        _answer_statistics()


def _throw() -> int | None:
    """The address of the function with which PyTorch raises its errors; `None` if this version has another, as on
    Windows."""
    path = pathlib.Path(torch.__file__).parent / "lib/libc10.so"
    try:
        # PyTorch has loaded it; this is the same library.
        function = ctypes.CDLL(str(path))["_ZN3c106detail14torchCheckFailEPKcS2_jS2_"]
    except (OSError, AttributeError):
        return None
    return ctypes.cast(function, ctypes.c_void_p).value


def _shim(required: bool) -> str | None:
    """The library with which allocations raise PyTorch's errors, built if necessary."""
    if os.name == "nt":
        if required:
            raise RuntimeError("shim=True is not supported on Windows")
        return None
    try:
        compiler = shlex.split(os.environ.get("CXX", "")) or [shutil.which("c++") or shutil.which("g++") or ""]
        outcome = _build_shim(compiler)
    except (OSError, RuntimeError, ValueError) as error:
        # No compiler, no home, and a name of a compiler that is no command.
        outcome = error
    if isinstance(outcome, str):
        return outcome
    if required:
        raise RuntimeError(f"shim=True needs a C++ compiler (or one named in CXX) and a place in ~/.cache: {outcome}")
    return None


def _build_shim(compiler: list[str]) -> str | Exception:
    source = c.PACKAGE / "torch_shim.cpp"
    home = pathlib.Path(torch.__file__).parent
    library = pathlib.Path(c.PATH)
    headers = c.PACKAGE if (c.PACKAGE / "cudamem.h").exists() else library.parent
    key = "\n".join([torch.__version__, str(home), str(library), source.read_text()])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "cuda_mem"
    built = cache / f"torch-shim-{digest}.so"
    if built.exists():
        return str(built)
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        made = pathlib.Path(scratch) / "shim.so"
        command = [*compiler, "-O2", "-std=c++20", "-fPIC", "-shared", str(source), "-o", str(made)]
        command += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}"]
        command += [f"-I{home / 'include'}", f"-I{headers}", f"-L{home / 'lib'}", "-lc10"]
        command += [str(library), f"-Wl,-rpath,{library.parent}", f"-Wl,-rpath,{home / 'lib'}"]
        outcome = subprocess.run(command, capture_output=True, text=True)
        if outcome.returncode != 0:
            return RuntimeError(outcome.stderr)
        # Another process may do the same.
        os.replace(made, built)
    return str(built)


def end_record() -> None:
    """Completes the log of `record`; later requests are not in it. Called when the process ends."""
    check(c.library.cudamem_torch_end_record())


def _number(device: Any) -> int:
    if device is None:
        return torch.cuda.current_device()
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return torch.cuda.current_device() if index is None else index


def resource(device: Any = None) -> Resource:
    """The arena or pool that serves a device, with statistics of its own."""
    handle = ctypes.c_void_p()
    number = _number(device)
    check(c.library.cudamem_torch_resource(number, ctypes.byref(handle)))
    is_arena = c.library.cudamem_arena_read_stats(handle, c.ArenaStats(), ctypes.sizeof(c.ArenaStats)) == 0
    kind = Arena if is_arena else Pool
    found = kind.__new__(kind)
    Resource.__init__(found, handle.value or 0, number)
    return found


def stats(device: Any = None) -> dict[str, int]:
    """What PyTorch has of a device, in the words of the C interface (`cudamem_torch_stats`); all 0 before PyTorch has used a
    GPU, and in a fork."""
    found = c.TorchStats()
    # A question must not start CUDA: forks of the process could not use it then.
    if torch.cuda.is_initialized():
        check(c.library.cudamem_torch_read_stats(_number(device), found, ctypes.sizeof(found)))
    return {name: getattr(found, name) for name, _ in found._fields_}


# The most that was told of each device since its peaks were reset. Of graphs only the bytes now are counted, so a sum could
# be less than the one before.
_peaks: dict[int, int] = {}


def _nested(device: Any = None) -> dict[str, Any]:
    """As `torch.cuda.memory_stats_as_nested_dict`. What is not counted is 0."""
    if not torch.cuda.is_initialized():
        # As PyTorch answers.
        return {}
    found = stats(device)

    def counter(current: int = 0, peak: int = 0, total: int = 0) -> dict[str, dict[str, int]]:
        numbers = {"current": current, "peak": max(peak, current), "allocated": total, "freed": max(total - current, 0)}
        none = dict.fromkeys(numbers, 0)
        return {"all": numbers, "small_pool": none, "large_pool": none}

    graphs, number = found["graphs_allocated"], _number(device)
    peak = _peaks[number] = max(found["allocated_peak"] + graphs, _peaks.get(number, 0))
    allocated = counter(found["allocated"] + graphs, peak, found["allocated_total"] + graphs)
    blocks = counter(found["allocations"], found["allocations_peak"], found["allocations_total"])
    reserved = counter(found["reserved"], found["reserved_peak"], found["reserved_peak"])
    nothing = counter()["all"]
    return {
        "allocated_bytes": allocated,
        "requested_bytes": allocated,
        "active_bytes": allocated,
        "reserved_bytes": reserved,
        "inactive_split_bytes": counter(),
        "allocation": blocks,
        "active": blocks,
        "segment": counter(),
        "inactive_split": counter(),
        "oversize_allocations": nothing,
        "oversize_segments": nothing,
        "num_alloc_retries": found["retries"],
        "num_ooms": found["failures"],
        "num_sync_all_streams": found["retries"],
        "num_device_alloc": 0,
        "num_device_free": 0,
        "max_split_size": -1,
    }


def memory_stats(device: Any = None) -> dict[str, Any]:
    """As `torch.cuda.memory_stats`. What is not counted is 0."""
    flat: dict[str, Any] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                add(f"{prefix}.{name}" if prefix else name, inner)
        else:
            flat[prefix] = value

    add("", _nested(device))
    return flat


def memory_allocated(device: Any = None) -> int:
    """As `torch.cuda.memory_allocated`, in bytes."""
    return memory_stats(device).get("allocated_bytes.all.current", 0)


def max_memory_allocated(device: Any = None) -> int:
    """As `torch.cuda.max_memory_allocated`, in bytes."""
    return memory_stats(device).get("allocated_bytes.all.peak", 0)


def memory_reserved(device: Any = None) -> int:
    """As `torch.cuda.memory_reserved`, in bytes."""
    return memory_stats(device).get("reserved_bytes.all.current", 0)


def max_memory_reserved(device: Any = None) -> int:
    """As `torch.cuda.max_memory_reserved`, in bytes."""
    return memory_stats(device).get("reserved_bytes.all.peak", 0)


def reset_peak_memory_stats(device: Any = None) -> None:
    """As `torch.cuda.reset_peak_memory_stats`."""
    if torch.cuda.is_initialized():
        number = _number(device)
        check(c.library.cudamem_torch_reset_peaks(number))
        _peaks.pop(number, None)


def _answer_statistics() -> None:
    """Replaces the functions of PyTorch that would raise an error; others are made of them."""
    memory = torch.cuda.memory
    for name, function in (
        ("memory_stats_as_nested_dict", _nested),
        ("reset_peak_memory_stats", reset_peak_memory_stats),
    ):
        function = functools.wraps(getattr(memory, name))(function)
        for module in (memory, torch.cuda):
            if hasattr(module, name):
                setattr(module, name, function)


# Sources are kept as well: C has them for as long as the process, and their recorders are to be completed.
_pools: list[tuple[Any, Resource]] = []


def mem_pool(source: Resource | None = None) -> Any:
    """A `torch.cuda.MemPool` whose segments come from `source`, an arena or a pool; by default from a new pool of the
    driver.

        >>> pool = cuda_mem.torch.mem_pool(cuda_mem.Arena(0, max_bytes=8 << 30))
        >>> with torch.cuda.use_mem_pool(pool):
        ...     weights = torch.empty(1 << 20, device="cuda")

    PyTorch allocates in its segments as in its own, with its own statistics, and raises its own error if there is not
    enough. The pool is for one device, the source's. `source` lives as long as the process, and may serve several pools;
    there are 16 sources.
    """
    if _allocator is not None:
        raise RuntimeError(
            "torch.cuda.MemPool needs PyTorch's own allocator, which use_arena or use_pool has replaced in this process"
        )
    if source is None:
        source = Pool(torch.cuda.current_device())
    alloc, free = ctypes.c_void_p(), ctypes.c_void_p()
    check(c.library.cudamem_torch_segments(source.handle, ctypes.byref(alloc), ctypes.byref(free)))
    allocator = torch._C._cuda_customAllocator(alloc.value, free.value)
    _pools.append((allocator, source))
    return torch.cuda.MemPool(allocator)
