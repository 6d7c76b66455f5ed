//! cudarc's streams as streams of cuda-mem.

use std::ptr;
use std::sync::Arc;

use cuda_mem::sys::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUstream};
use cuda_mem::{Context, Driver, Stream};
use cudarc::driver::{CudaContext, CudaStream};

use crate::error::{Error, Result};

/// A stream of cudarc as a stream of cuda-mem: the same queue, so work of both crates runs in one order. The result keeps
/// the stream alive, and cudarc's context with it.
///
/// cudarc's default stream becomes [`Context::legacy_stream`].
///
/// # Errors
///
/// [`Error::NotPrimaryContext`] if cudarc's context was not made with `CudaContext::new`, or if the two crates have opened
/// different driver libraries; [`Error::PerThreadStream`]; otherwise any error of cuda-mem, as when it finds no driver.
///
/// ```
/// # mod driver { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bridge/driver.rs")); }
/// # driver::restart_if_no_driver();
/// use cuda_mem::Driver;
/// use cuda_mem_cudarc_bridge::borrow_stream;
/// use cudarc::driver::CudaContext;
///
/// let theirs = CudaContext::new(0)?.new_stream()?;
/// let stream = borrow_stream(&theirs)?;
/// let pool = Driver::load()?.device(0)?.default_pool()?;
/// let x = pool.alloc_from(&stream, &[1.0f32, 2.0])?; // in the order of `theirs`
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn borrow_stream(theirs: &Arc<CudaStream>) -> Result<Stream> {
    let raw = raw_of(theirs);
    if raw == CU_STREAM_PER_THREAD {
        return Err(Error::PerThreadStream);
    }
    let context = primary_context(theirs.context())?;
    if raw == CU_STREAM_LEGACY {
        return Ok(context.legacy_stream());
    }
    // SAFETY: a `CudaStream` names a live stream of its context, whose handle is that of `context`; the clone of the Arc
    // keeps it, and it is no default stream. If it wraps a stream of other code, that code keeps the stream alive as long
    // as anything that retains the wrapper, as `wrap_borrowed_stream` demands.
    Ok(unsafe { Stream::borrow_raw(&context, raw, Arc::clone(theirs)) })
}

/// The same context, if it is the primary one.
fn primary_context(theirs: &CudaContext) -> Result<Context> {
    let refused = || Error::NotPrimaryContext {
        ordinal: theirs.ordinal(),
    };
    // First, because retaining a primary context that does not exist creates it.
    if !theirs.is_primary() {
        return Err(refused());
    }
    let devices = Driver::load()?.devices()?;
    let device = devices
        .into_iter()
        .find(|device| device.as_raw() == theirs.cu_device())
        .ok_or_else(refused)?;
    let context = device.primary_context()?;
    // Handles of one library mean nothing to another, and such a context is not this one.
    if is_of(theirs, &context) {
        Ok(context)
    } else {
        Err(refused())
    }
}

fn is_of(theirs: &CudaContext, context: &Context) -> bool {
    ptr::eq(theirs.cu_ctx().cast::<()>(), context.as_raw().cast::<()>())
}

/// Whether both are the same stream, which has one order.
pub(crate) fn is_same(theirs: &CudaStream, ours: &Stream) -> bool {
    raw_of(theirs) == ours.as_raw() && is_of(theirs.context(), ours.context())
}

/// Whether it is another stream on each thread.
pub(crate) fn is_per_thread(theirs: &CudaStream) -> bool {
    raw_of(theirs) == CU_STREAM_PER_THREAD
}

/// The handle, with one name for the legacy default stream.
fn raw_of(theirs: &CudaStream) -> CUstream {
    let raw: CUstream = theirs.cu_stream().cast();
    if raw.is_null() { CU_STREAM_LEGACY } else { raw }
}
