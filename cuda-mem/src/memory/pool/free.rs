//! Frees in the order of a stream, also while a stream is captured into a graph.
//!
//! Measured: a free in a captured stream returns INVALID_VALUE for memory that does not belong to a graph, and has
//! no effect, neither on the memory nor on the capture. A free in another stream returns
//! STREAM_CAPTURE_UNSUPPORTED, has no effect on the memory, and invalidates the capture, unless the capture or the
//! thread is in relaxed capture mode.

use cuda_driver_sys::{CUdeviceptr, CUresult};

use crate::base::error::{Error, Result};
use crate::driver::raw;
use crate::driver::raw::Queue;
use crate::memory::resource::CAPTURED;
use crate::stream::{Stream, StreamRef};

/// Frees in the order of a stream.
///
/// # Safety
///
/// Same as [`raw::alloc::free`].
pub(crate) unsafe fn free(address: CUdeviceptr, stream: &Stream) -> Result<()> {
    // SAFETY: the caller's. A default stream's context is current (R8).
    let free = |queue: Queue<'_>| unsafe { raw::alloc::free(queue, address) };
    stream.as_ref().submit_free(free)
}

/// [`free`] failed with `error`, without effect: tries other ways. If the stream is another thread's per-thread
/// stream, this waits for everything in its context; then this thread's own stream can be used instead. If another
/// capture is the cause, this frees in a way that disturbs no capture; if a capture of the stream was the cause and has
/// ended, this frees as before. Otherwise the error names the cause, and `what` was to be freed.
///
/// # Safety
///
/// Same as [`raw::alloc::free`].
#[cold]
pub(crate) unsafe fn free_otherwise(
    address: CUdeviceptr,
    stream: &Stream,
    error: Error,
    what: impl FnOnce() -> String,
) -> Result<()> {
    let own;
    let (error, stream) = if stream.is_foreign() {
        stream.as_ref().wait_foreign().map_err(Error::not_tried)?;
        own = stream.context().per_thread_stream();
        // SAFETY: the caller's; all work of the foreign stream is done.
        match unsafe { free(address, &own) } {
            Ok(()) => return Ok(()),
            Err(error) => (error, own.as_ref()),
        }
    } else {
        (error, stream.as_ref())
    };
    let freed = if error.code() == Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) {
        // SAFETY: the caller's; the first try had no effect.
        unsafe { free_relaxed(address, stream) }
    } else {
        Err(error)
    };
    // SAFETY: the caller's.
    unsafe { retry_refused(freed, address, stream) }.map_err(|error| error.asked(what))
}

/// If a free was refused that a capture may have been the reason for, and the stream is not captured any more, tries
/// once more. For a stream that is captured, the error says so.
///
/// # Safety
///
/// Same as [`raw::alloc::free`], unless the memory is freed.
unsafe fn retry_refused(
    freed: Result<()>,
    address: CUdeviceptr,
    stream: StreamRef<'_>,
) -> Result<()> {
    match freed {
        Err(error) if is_refusal(&error) && error.function() == Some("cuMemFreeAsync") => {
            stream.refuse_captured(CAPTURED)?;
            // SAFETY: the caller's; a free that is refused has no effect (R68).
            let again = unsafe { free_relaxed(address, stream) };
            again.map_err(|error| explain_refusal(error, stream))
        }
        Err(error) => Err(explain_refusal(error, stream)),
        Ok(()) => Ok(()),
    }
}

/// Frees without disturbing any capture. If the stream is captured, the error says so.
///
/// # Safety
///
/// Same as [`raw::alloc::free`].
pub(crate) unsafe fn free_harmlessly(address: CUdeviceptr, stream: StreamRef<'_>) -> Result<()> {
    // SAFETY: the caller's.
    let freed = unsafe { free_relaxed(address, stream) };
    // SAFETY: the caller's.
    unsafe { retry_refused(freed, address, stream) }
}

/// # Safety
///
/// Same as [`raw::alloc::free`].
unsafe fn free_relaxed(address: CUdeviceptr, stream: StreamRef<'_>) -> Result<()> {
    let open = stream.submit()?;
    // SAFETY: the caller's. The free is of memory that no capture knows, so it disturbs none.
    open.with_relaxed_capture_mode(|queue| unsafe { raw::alloc::free(queue, address) })
}

/// INVALID_VALUE may mean that the stream is captured.
fn is_refusal(error: &Error) -> bool {
    error.code() == Some(CUresult::CUDA_ERROR_INVALID_VALUE)
}

/// Says that the stream is captured, if that may be the reason.
fn explain_refusal(error: Error, stream: StreamRef<'_>) -> Error {
    if !is_refusal(&error) {
        return error;
    }
    let refused = stream.refuse_captured(CAPTURED);
    refused.err().unwrap_or(error)
}
