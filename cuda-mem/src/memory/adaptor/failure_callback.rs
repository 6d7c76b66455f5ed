//! Calling the program when memory runs out.

use super::debug_over;
use std::alloc::Layout;
use std::fmt;

use cuda_driver_sys::CUdeviceptr;

use super::{free_upstream, from_upstream};
use crate::base::error::{Error, ErrorKind, Result};
use crate::memory::resource::MemoryResource;
use crate::stream::Stream;

/// Calls a function when upstream is out of memory, and retries the request as long as it returns `true`. Not for a
/// request larger than a whole [limit](super::LimitAdaptor), which can never be served.
///
/// The function runs on the allocating thread. It may free memory of this resource. What it drops of other resources may
/// be released only after the request: [`Resource::alloc`](crate::Resource::alloc) then makes it again, and calls the
/// function again if memory is still out.
///
/// ```
/// use std::sync::Mutex;
/// use cuda_mem::{Driver, MemoryPool, Resource};
/// use cuda_mem::memory::{FailureCallbackAdaptor, LimitAdaptor};
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let limited = Resource::new(LimitAdaptor::new(MemoryPool::builder(&device).build()?, 1000));
/// let cache = Mutex::new(vec![limited.alloc::<u8>(&stream, 600)?]);
/// let drop_one = move |_bytes: u64, _error: &cuda_mem::Error| cache.lock().unwrap().pop().is_some();
/// let resource = Resource::new(FailureCallbackAdaptor::new(limited, drop_one));
/// resource.alloc::<u8>(&stream, 600)?; // the cache gave way
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct FailureCallbackAdaptor<U, F> {
    upstream: U,
    callback: F,
}

impl<U: MemoryResource, F: Fn(u64, &Error) -> bool + Send + Sync> FailureCallbackAdaptor<U, F> {
    /// Creates an adaptor that calls `callback` with the requested bytes and the error.
    pub fn new(upstream: U, callback: F) -> Self {
        Self { upstream, callback }
    }

    /// Where the memory comes from.
    pub fn upstream(&self) -> &U {
        &self.upstream
    }
}

// SAFETY: all memory comes from upstream and goes back there.
unsafe impl<U: MemoryResource, F: Fn(u64, &Error) -> bool + Send + Sync> MemoryResource
    for FailureCallbackAdaptor<U, F>
{
    #[inline]
    #[track_caller]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        loop {
            match self.upstream.allocate(layout, stream) {
                Err(error)
                    if error.kind() == ErrorKind::OutOfMemory
                        && !error.is_over_limit()
                        && (self.callback)(layout.size() as u64, &error) => {}
                allocated => return allocated,
            }
        }
    }

    free_upstream!();
    from_upstream!();
}

impl<U: fmt::Debug, F> fmt::Debug for FailureCallbackAdaptor<U, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_over(f, "FailureCallbackAdaptor", &self.upstream)
    }
}
