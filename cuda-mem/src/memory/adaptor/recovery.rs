//! Remedies when memory runs out.

use super::debug_over;
use std::fmt;

use std::alloc::Layout;

use cuda_driver_sys::CUdeviceptr;

use super::{RecoveryPolicy, free_upstream, from_upstream};
use crate::base::error::Result;
use crate::memory::resource::MemoryResource;
use crate::stream::Stream;

/// Applies a [`RecoveryPolicy`] when upstream is out of memory.
///
/// What the steps make releasable may be released only after the request: [`Resource::alloc`](crate::Resource::alloc) then
/// makes it again.
///
/// ```
/// use cuda_mem::{Driver, MemoryPool, Resource};
/// use cuda_mem::memory::{RecoveryPolicy, RecoveryAdaptor};
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let pool = MemoryPool::builder(&device).build()?;
/// let policy = RecoveryPolicy::new().wait_for_stream().trim_pool(&pool);
/// let resource = Resource::new(RecoveryAdaptor::new(pool, policy));
/// let error = resource.alloc::<u8>(&stream, 1 << 50).unwrap_err();
/// let tried = &error.out_of_memory().expect("numbers").tried;
/// assert_eq!(tried.len(), 2);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct RecoveryAdaptor<U> {
    upstream: U,
    policy: RecoveryPolicy,
}

impl<U: fmt::Debug> fmt::Debug for RecoveryAdaptor<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_over(f, "RecoveryAdaptor", &self.upstream)
    }
}

impl<U: MemoryResource> RecoveryAdaptor<U> {
    /// Applies `policy` when `upstream` is out of memory.
    pub fn new(upstream: U, policy: RecoveryPolicy) -> Self {
        Self { upstream, policy }
    }

    /// Where the memory comes from.
    pub fn upstream(&self) -> &U {
        &self.upstream
    }
}

// SAFETY: all memory comes from upstream and goes back there.
unsafe impl<U: MemoryResource> MemoryResource for RecoveryAdaptor<U> {
    #[inline]
    #[track_caller]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        self.policy.recover(&self.upstream, stream, || {
            self.upstream.allocate(layout, stream)
        })
    }

    free_upstream!();
    from_upstream!();
}
