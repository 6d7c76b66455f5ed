//! Memory of a buffer as a host slice, for types whose memory the host can access.

use std::ptr::NonNull;

use bytemuck::Pod;

use super::DeviceBuffer;
use crate::base::error::Result;

impl<T: Pod> DeviceBuffer<T> {
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
