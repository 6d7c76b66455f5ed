//! Memory of a buffer as a host slice, where the host can access it.

use std::ptr::NonNull;

use bytemuck::Pod;

use super::DeviceBuffer;
use super::deallocator::Deallocator;
use crate::base::error::{Error, Result};
use crate::driver::pointer::MemoryKind;

impl<T: Pod> DeviceBuffer<T> {
    /// The elements, for the host to read in place, if a [`Resource`](crate::Resource) of host memory has allocated
    /// them: a [`PinnedResource`](crate::memory::PinnedResource), an arena over one, or the
    /// [`Resource`](crate::Resource) of a host pool. Not memory that a pool has allocated itself. Synchronises
    /// the buffer's stream, after it has waited for pending writes of other streams. While the slice is borrowed,
    /// nothing writes to the buffer; devices may read it too.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) for other memory; [`Capturing`](crate::ErrorKind::Capturing)
    /// while the stream is captured; otherwise any driver error.
    ///
    /// ```
    /// use cuda_mem::{Arena, Driver};
    /// use cuda_mem::memory::PinnedResource;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let driver = Driver::load()?;
    /// let stream = driver.device(0)?.primary_context()?.stream()?;
    /// let staging = Arena::over(PinnedResource::new(driver));
    /// let mut numbers = staging.alloc::<u32>(&stream, 3)?;
    /// numbers.host_mut()?.copy_from_slice(&[1, 2, 3]);
    /// assert_eq!(numbers.host()?, [1, 2, 3]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuStreamSynchronize")]
    pub fn host(&self) -> Result<&[T]> {
        self.require_host()?;
        // SAFETY: the resource says that the host reaches its memory at its address, and aligned it for the elements.
        unsafe { self.host_slice() }
    }

    /// The elements, for the host to change in place. Synchronises the buffer's stream, after it has waited for other
    /// streams that still use the buffer. While the slice is borrowed, nothing else uses the buffer.
    ///
    /// # Errors
    ///
    /// Same as [`host`](Self::host).
    #[doc(alias = "cuStreamSynchronize")]
    pub fn host_mut(&mut self) -> Result<&mut [T]> {
        self.require_host()?;
        // SAFETY: as in `host`.
        unsafe { self.host_slice_mut() }
    }

    fn require_host(&self) -> Result<()> {
        if let Deallocator::Resource(resource, _) = &*self.deallocator
            && resource.memory_kind() == MemoryKind::Host
            && resource.memory_properties().host
        {
            return Ok(());
        }
        Err(Error::not_supported(format!(
            "{} was not allocated by a resource of host memory; copy it with `copy_to`, or allocate it there",
            self.in_words()
        )))
    }

    /// The elements, for the host to read. Makes the stream wait for writes of other streams, then synchronises it.
    /// While the slice is borrowed nothing writes to the buffer; devices may read it too.
    ///
    /// # Safety
    ///
    /// The host must reach all of the memory at the buffer's address, aligned for `T`, as long as the buffer is
    /// borrowed.
    pub(crate) unsafe fn host_slice(&self) -> Result<&[T]> {
        self.wait_for_writers()?;
        self.wait_for_stream()?;
        // SAFETY: the caller's; any bytes are a `T`. All that writes to them is done: the stream waited for
        // other streams, and the host for the stream. New writes need the buffer for themselves, and the slice
        // borrows it.
        Ok(unsafe { std::slice::from_raw_parts(self.first().as_ptr(), self.len) })
    }

    /// The elements, for the host to change. Makes the stream wait for other streams that still use the buffer,
    /// then synchronises it. While the slice is borrowed, nothing else uses the buffer.
    ///
    /// # Safety
    ///
    /// Same as [`host_slice`](Self::host_slice).
    pub(crate) unsafe fn host_slice_mut(&mut self) -> Result<&mut [T]> {
        self.wait_for_pending_uses()?;
        self.wait_for_stream()?;
        // SAFETY: as in `host_slice`; readers are waited for as well, and the slice has the buffer for itself.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.first().as_ptr(), self.len) })
    }

    /// The host address of the first element; dangling if there is no memory.
    fn first(&self) -> NonNull<T> {
        let first = std::ptr::with_exposed_provenance_mut(self.address as usize);
        NonNull::new(first).unwrap_or(NonNull::dangling())
    }

    /// Waits for the stream without disturbing any capture. Returns an error if the stream itself is captured.
    pub(crate) fn wait_for_stream(&self) -> Result<()> {
        if self.address == 0 {
            return Ok(());
        }
        self.stream.release_deferred();
        self.stream.as_ref().wait_unless_captured()
    }
}
