//! Errors of this package.

use std::fmt;

use cuda_mem::driver::MemoryKind;
use nixl_sys::NixlError;

/// Why something could not be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// NIXL's C library could not be opened. nixl-sys would end the process at the first call.
    #[error(
        "NIXL is missing: libnixl_capi.so cannot be opened; install NIXL, and put its folder into LD_LIBRARY_PATH"
    )]
    NixlMissing,
    /// There are no bytes to register.
    #[error("a buffer, or a part of it, without bytes cannot be given to NIXL")]
    NoBytes,
    /// The memory is not on a device: of the host, or managed.
    #[error(
        "{kind} memory cannot be given to NIXL as memory of a device: allocate with `MappedMemory::collective`"
    )]
    NotDeviceMemory {
        /// Where it is.
        kind: MemoryKind,
    },
    /// The driver does not know the memory.
    #[error("the driver does not know the memory at {address:#x}")]
    UnknownMemory {
        /// Its address.
        address: u64,
    },
    /// The memory comes from a pool, whose memory network cards do not reach.
    #[error(
        "memory of a pool cannot be registered with a network card: allocate with `MappedMemory::collective`, or copy the \
         contents into such a buffer"
    )]
    PoolMemory,
    /// The memory was made without GPUDirect RDMA.
    #[error(
        "network cards do not reach this memory: make it with `MappedMemory::collective`, or with \
         `gpu_direct_rdma(true)` on its builder; an arena needs a resource below it that makes such memory"
    )]
    NotGpuDirect,
    /// The device gives network cards no access to memory at all.
    #[error(
        "network cards reach no memory of device {ordinal}: use `Buffer::without_network_card`, if NIXL has a backend that copies"
    )]
    DeviceNotGpuDirect {
        /// The device's number.
        ordinal: u32,
    },
    /// Several pieces of physical memory lie in the range. A network card registers one piece.
    #[error(
        "the buffer has {bytes} bytes, but the piece of physical memory that it begins in ends after {first_bytes}: allocate \
         all at once, without growing the memory, or make a buffer for each piece"
    )]
    SeveralPieces {
        /// The size of the buffer.
        bytes: u64,
        /// How much of it is in the first piece.
        first_bytes: u64,
    },
    /// NIXL failed to end a registration, so it may still use the memory. The memory is not freed.
    #[error("NIXL failed to end a registration of the memory, which is kept allocated")]
    MayBeRegistered,
    /// cuda-mem answered an error.
    #[error(transparent)]
    CudaMem(#[from] cuda_mem::Error),
    /// NIXL answered an error.
    #[error(transparent)]
    Nixl(#[from] NixlError),
}

/// The result of most functions of this package.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The failure of an operation that consumes its object, which comes back.
///
/// ```
/// # cuda_sim::use_if_no_driver();
/// use cuda_mem::Driver;
/// use cuda_mem_nixl::{Buffer, Error};
///
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let memory = device.default_pool()?.alloc_from(&stream, &[1u32, 2, 3])?;
/// let refused = Buffer::new(memory).unwrap_err();
/// assert!(matches!(refused.error, Error::PoolMemory));
/// assert_eq!(refused.object.to_vec()?, [1, 2, 3]);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct Refused<T> {
    /// Why it failed.
    pub error: Error,
    /// The object, unchanged.
    pub object: T,
}

impl<T> Refused<T> {
    pub(crate) fn new(error: impl Into<Error>, object: T) -> Self {
        Self {
            error: error.into(),
            object,
        }
    }
}

/// For callers that want the error and drop the object.
impl<T> From<Refused<T>> for Error {
    fn from(refused: Refused<T>) -> Self {
        refused.error
    }
}

/// The error. The object need not be printable.
impl<T> fmt::Debug for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused")
            .field("error", &self.error)
            .field("object", &std::any::type_name::<T>())
            .finish()
    }
}

impl<T> fmt::Display for Refused<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for Refused<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}
