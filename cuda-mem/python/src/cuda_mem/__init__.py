"""GPU memory in stream order: pools of the driver, an arena that answers most requests without a driver call, and both
as the allocator of PyTorch (`cuda_mem.torch`), CuPy (`cuda_mem.cupy`), Numba (`cuda_mem.numba`) and cuda.core
(`cuda_mem.core`).

    >>> import cuda_mem
    >>> arena = cuda_mem.Arena()
    >>> buffer = cuda_mem.Buffer((2, 3), "f4", arena)
    >>> buffer.copy_from(bytes(24))
    >>> buffer.to_bytes() == bytes(24)
    True
"""

from ._buffer import Buffer
from ._errors import (
    Error,
    InUseError,
    InvalidValueError,
    NoDriverError,
    NotSupportedError,
    OutOfMemoryError,
)
from ._recorder import Recorder, record_stacks
from ._resources import (
    Arena,
    ArenaStats,
    Checked,
    Counts,
    Limit,
    Pool,
    PoolStats,
    Resource,
    Statistics,
    device_count,
    device_memory,
    driver_version,
)
from ._streams import detach

__all__ = [
    "Arena",
    "ArenaStats",
    "Buffer",
    "Checked",
    "Counts",
    "Error",
    "InUseError",
    "InvalidValueError",
    "Limit",
    "NoDriverError",
    "NotSupportedError",
    "OutOfMemoryError",
    "Pool",
    "PoolStats",
    "Recorder",
    "Resource",
    "Statistics",
    "detach",
    "device_count",
    "device_memory",
    "driver_version",
    "record_stacks",
]
