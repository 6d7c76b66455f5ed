//! No more than so many bytes at a time.

use super::debug_over;
use std::fmt;

use std::alloc::Layout;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_driver_sys::CUdeviceptr;

use super::from_upstream;
use crate::error::{Bytes, Error, ErrorKind, Result, took_effect};
use crate::resource::MemoryResource;
use crate::stream::Stream;

/// Hands out no more than so many bytes at a time. What goes beyond is out of memory, without asking
/// upstream.
///
/// ```
/// use cuda_mem::{Driver, ErrorKind, LimitAdaptor, MemoryPool, Resource};
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let pool = MemoryPool::builder(&device).build()?;
/// let resource = Resource::new(LimitAdaptor::new(pool, 1000));
/// let first = resource.alloc::<u8>(&stream, 600)?;
/// let error = resource.alloc::<u8>(&stream, 600).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::OutOfMemory);
/// drop(first);
/// resource.alloc::<u8>(&stream, 600)?;
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct LimitAdaptor<U> {
    upstream: U,
    limit: u64,
    allocated: AtomicU64,
}

impl<U: fmt::Debug> fmt::Debug for LimitAdaptor<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!("LimitAdaptor({})", Bytes(self.limit));
        debug_over(f, &name, &self.upstream)
    }
}

impl<U: MemoryResource> LimitAdaptor<U> {
    /// At most `limit` bytes of `upstream` at a time, as asked for, without what upstream rounds up.
    pub fn new(upstream: U, limit: u64) -> Self {
        Self {
            upstream,
            limit,
            allocated: AtomicU64::new(0),
        }
    }

    /// Where the memory comes from.
    pub fn upstream(&self) -> &U {
        &self.upstream
    }

    /// The most bytes that may be out at a time.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that are out.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    #[cold]
    fn refusal(&self, bytes: u64, allocated: u64) -> Error {
        let text = format!(
            "the limit is {}, of which {} are taken",
            Bytes(self.limit),
            Bytes(allocated)
        );
        Error::new(ErrorKind::OutOfMemory, text).with_asked(bytes)
    }
}

/// Bytes that count against the limit; dropping it gives them back, also in a panic of upstream.
struct Taken<'a, U>(&'a LimitAdaptor<U>, u64);

impl<U> Drop for Taken<'_, U> {
    #[inline]
    fn drop(&mut self) {
        // What other adaptors have counted down is visible to the thread that gets these bytes.
        self.0.allocated.fetch_sub(self.1, Ordering::Release);
    }
}

// SAFETY: all memory comes from upstream and goes back there.
unsafe impl<U: MemoryResource> MemoryResource for LimitAdaptor<U> {
    #[inline]
    #[track_caller]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        let bytes = layout.size() as u64;
        // Taken before upstream is asked, so that threads together stay below the limit.
        let fits = |now: u64| now.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.allocated
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, fits)
            .map_err(|now| self.refusal(bytes, now))?;
        let taken = Taken(self, bytes);
        let address = self.upstream.allocate(layout, stream)?;
        std::mem::forget(taken);
        Ok(address)
    }

    #[inline]
    unsafe fn deallocate(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        stream: &Stream,
    ) -> Result<()> {
        // Given back only when upstream has the memory, and if upstream panics.
        let taken = Taken(self, layout.size() as u64);
        // SAFETY: the caller's.
        let freed = unsafe { self.upstream.deallocate(address, layout, stream) };
        if !took_effect(&freed) {
            std::mem::forget(taken);
        }
        freed
    }

    from_upstream!();
}
