//! Moving managed memory to the device that requested it.

use super::debug_over;
use std::fmt;

use std::alloc::Layout;

use cuda_driver_sys::{CUdevice_attribute, CUdeviceptr};

use super::{calls_program_as_upstream, free_upstream, from_upstream};
use crate::base::error::Result;
use crate::base::report;
use crate::driver::location::Location;
use crate::driver::pointer::MemoryKind;
use crate::driver::raw;
use crate::memory::resource::MemoryResource;
use crate::stream::Stream;

/// Moves managed memory to the stream's device when it is allocated, in the order of the stream, so that the first
/// kernel does not fault on every page. Other memory is handed out unchanged, as is memory for devices without
/// concurrent managed access (as on Windows), which do not support prefetching, and for streams being captured.
///
/// ```
/// use cuda_mem::{Driver, Resource};
/// use cuda_mem::memory::{ManagedResource, PrefetchAdaptor};
///
/// # cuda_sim::use_if_no_driver();
/// let driver = Driver::load()?;
/// let stream = driver.device(0)?.primary_context()?.stream()?;
/// let resource = Resource::new(PrefetchAdaptor::new(ManagedResource::new(driver)));
/// let buffer = resource.alloc_zeroed::<f32>(&stream, 1000)?;
/// assert_eq!(buffer.to_vec()?, [0.0; 1000]);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct PrefetchAdaptor<U> {
    upstream: U,
    is_managed: bool,
}

impl<U: fmt::Debug> fmt::Debug for PrefetchAdaptor<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_over(f, "PrefetchAdaptor", &self.upstream)
    }
}

impl<U: MemoryResource> PrefetchAdaptor<U> {
    /// Prefetches memory from `upstream`, if it is managed.
    pub fn new(upstream: U) -> Self {
        let is_managed = upstream.memory_kind() == MemoryKind::Managed;
        Self {
            upstream,
            is_managed,
        }
    }

    /// Where the memory comes from.
    pub fn upstream(&self) -> &U {
        &self.upstream
    }

    /// Frees the memory if it cannot be moved.
    fn fetch(&self, address: CUdeviceptr, layout: Layout, stream: &Stream) -> Result<()> {
        if stream.as_ref().is_captured() {
            // It would invalidate the capture, and the memory is usable where it is.
            return Ok(());
        }
        let concurrent = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
        let fetched = match stream.device().attribute(concurrent) {
            Ok(Some(0) | None) => return Ok(()),
            Ok(_) => prefetch(address, layout.size(), stream),
            Err(error) => Err(error),
        };
        if fetched.is_err() {
            // SAFETY: allocated just now, and nobody has used it.
            let freed = unsafe { self.upstream.deallocate(address, layout, stream) };
            match freed {
                // Otherwise it would never be freed; the caller can use it where it is.
                Err(error) if error.had_no_effect() => return Ok(()),
                // The first error is the one to return, but lost memory is still reported.
                Err(error) => report::failed("prefetched memory", &error),
                Ok(()) => {}
            }
        }
        fetched
    }
}

// SAFETY: all memory comes from upstream and goes back there.
unsafe impl<U: MemoryResource> MemoryResource for PrefetchAdaptor<U> {
    /// # Errors
    ///
    /// Any error from upstream, and any driver error of the prefetch.
    #[doc(alias = "cuMemPrefetchAsync")]
    #[inline]
    #[track_caller]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        let address = self.upstream.allocate(layout, stream)?;
        if self.is_managed && address != 0 {
            self.fetch(address, layout, stream)?;
        }
        Ok(address)
    }

    free_upstream!();
    from_upstream!();
    calls_program_as_upstream!();
}

/// Moves a range of managed memory to the stream's device.
fn prefetch(address: CUdeviceptr, bytes: usize, stream: &Stream) -> Result<()> {
    let device = stream.device();
    let open = stream.as_ref().submit_bound()?;
    let to = Location::Device(device).to_raw();
    // SAFETY: the range is managed memory that was allocated just now; the stream is live, and its context
    // current.
    unsafe { raw::managed::prefetch(open.queue(), (address, bytes), to) }
        .map_err(|error| error.asked(|| format!("{bytes} bytes to {device}")))
}
