//! Errors of this package.

use std::fmt;

use cudarc::driver::DriverError;

/// Why something could not be done.
///
/// ```
/// # mod driver { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bridge/driver.rs")); }
/// # driver::restart_if_no_driver();
/// use cuda_mem_cudarc_bridge::{Error, borrow_stream};
/// use cudarc::driver::CudaContext;
///
/// let theirs = CudaContext::new(0)?.per_thread_stream();
/// let refused = borrow_stream(&theirs);
/// assert!(matches!(refused, Err(Error::PerThreadStream)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// cudarc's context is not the primary one of its device, or belongs to another driver library. Memory and streams
    /// of cuda-mem are of the primary context.
    #[error(
        "cudarc's context of device {ordinal} is not the primary context that cuda-mem has: make it with \
         `CudaContext::new`, and let both crates open the same driver library"
    )]
    NotPrimaryContext {
        /// The number of the device, as cudarc counts.
        ordinal: usize,
    },
    /// The per-thread default stream is another stream on each thread, and cudarc's handle of it may go to any.
    #[error(
        "the per-thread default stream is another one on each thread: take a stream of its own, or the legacy default \
         stream"
    )]
    PerThreadStream,
    /// The memory is used in the order of another stream than the one given.
    #[error(
        "the memory belongs to another stream than the one given: move it there first, with `DeviceBuffer::move_to`"
    )]
    OtherStream,
    /// The memory is not a whole allocation of a pool: part of an arena, of another resource, or of another owner.
    /// cudarc would free it with `cuMemFreeAsync`.
    #[error(
        "cudarc can only take a whole allocation of a pool, because it frees with cuMemFreeAsync"
    )]
    NotOfPool(#[source] cuda_mem::Error),
    /// There are no bytes, and a slice of cudarc would free the null pointer.
    #[error("there is no memory to hand over: the buffer has no bytes")]
    NoMemory,
    /// cuda-mem answered an error.
    #[error(transparent)]
    CudaMem(#[from] cuda_mem::Error),
    /// cudarc answered an error.
    #[error(transparent)]
    Cudarc(#[from] DriverError),
}

impl Error {
    /// The error as cudarc keeps it. It has codes of the driver only.
    pub(crate) fn to_driver_error(&self) -> DriverError {
        match self {
            Self::Cudarc(error) => *error,
            _ => DriverError(cudarc::driver::sys::CUresult::CUDA_ERROR_UNKNOWN),
        }
    }
}

/// The result of most functions of this package.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The failure of an operation that consumes its object, which comes back.
///
/// ```
/// # mod driver { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bridge/driver.rs")); }
/// # driver::restart_if_no_driver();
/// use cuda_mem::{Arena, Driver, Resource};
/// use cuda_mem_cudarc_bridge::{Buffer, Error, borrow_stream};
/// use cudarc::driver::CudaContext;
///
/// let theirs = CudaContext::new(0)?.new_stream()?;
/// let arena = Resource::from(Arena::builder(&Driver::load()?.device(0)?).build()?);
/// let part = arena.alloc_from(&borrow_stream(&theirs)?, &[1u32, 2, 3])?;
///
/// let refused = Buffer::new(part, &theirs)?.into_cuda_slice().unwrap_err();
/// assert!(matches!(refused.error, Error::NotOfPool(_)));
/// let part = refused.object.expect("nothing was done with it");
/// assert_eq!(part.memory()?.to_vec()?, [1, 2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Refused<T> {
    /// Why it failed.
    pub error: Error,
    /// The object, unchanged. `None` if the driver may have released it despite the error, as in
    /// [`cuda_mem::base::Failed`].
    pub object: Option<T>,
}

impl<T> Refused<T> {
    pub(crate) fn new(error: impl Into<Error>, object: T) -> Self {
        Self {
            error: error.into(),
            object: Some(object),
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
            .field(
                "object",
                &self.object.as_ref().map(|_| std::any::type_name::<T>()),
            )
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
