//! Buffers of a graph as memory that recorded work uses.

use std::fmt;

use bytemuck::Pod;

use super::{Capture, GraphOwned};
use crate::base::error::{Error, Result};
use crate::memory::slice::{
    DeviceMemory, DeviceMemoryMut, DeviceSlice, DeviceSliceMut, Span, sealed,
};

/// A buffer that the graph has adopted, while work on it is recorded. From [`Capture::buffer_mut`].
pub struct AdoptedMut<'c, T> {
    capture: &'c Capture,
    adopted: GraphOwned<T>,
}

impl Capture {
    /// A buffer of the graph, for work that is recorded: copies, fills, and operations of a
    /// [`Communicator`](crate::collective::Communicator). One at a time of each buffer.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for a buffer of another graph, for one that is borrowed so already, and if the
    /// stream's device has no access to it.
    ///
    /// ```
    /// # use cuda_mem::Driver;
    /// # use cuda_mem::interop::{CaptureMode, Instantiate};
    /// # cuda_sim::use_if_no_driver();
    /// # let device = Driver::load()?.device(0)?;
    /// # let stream = device.primary_context()?.stream()?;
    /// let buffer = device.default_pool()?.alloc::<u32>(&stream, 100)?;
    /// let (graph, buffer) = stream.capture(CaptureMode::default(), |capture| {
    ///     let buffer = capture.adopt(buffer);
    ///     capture.buffer_mut(&buffer)?.as_mut_slice().fill(7)?;
    ///     Ok(buffer)
    /// })?;
    /// let mut exec = graph.instantiate(Instantiate::default())?;
    /// exec.launch(&stream)?;
    /// assert_eq!(exec.buffer(&buffer)?.to_vec()?, [7; 100]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn buffer_mut<T: Pod>(&self, adopted: &GraphOwned<T>) -> Result<AdoptedMut<'_, T>> {
        let mut parts = self.parts.borrow_mut();
        parts.require_reach_of(adopted, self.stream.context())?;
        let owned = parts.owned.get_mut(adopted.index);
        if owned.is_none_or(|owned| std::mem::replace(&mut owned.is_lent, true)) {
            let text = "the buffer is borrowed for recorded work already";
            return Err(Error::invalid(text.to_owned()));
        }
        Ok(AdoptedMut {
            capture: self,
            adopted: *adopted,
        })
    }
}

impl<T: Pod> AdoptedMut<'_, T> {
    fn span(&self) -> Span<'_, T> {
        let adopted = &self.adopted;
        // SAFETY: the graph owns the buffer, so it is valid at every launch, which the buffer's own stream is ordered with; and it is
        // borrowed once.
        let span = unsafe {
            self.capture
                .span_of(adopted.address, adopted.len, adopted.on_device)
        };
        span.recorded()
    }

    /// All elements, for reading.
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice::new(self.span())
    }

    /// All elements, for writing.
    pub fn as_mut_slice(&mut self) -> DeviceSliceMut<'_, T> {
        DeviceSliceMut::new(self.span())
    }
}

impl<T: Pod> sealed::Memory for AdoptedMut<'_, T> {}

impl<T: Pod> DeviceMemory for AdoptedMut<'_, T> {
    type Element = T;

    fn as_slice(&self) -> DeviceSlice<'_, T> {
        self.as_slice()
    }
}

impl<T: Pod> DeviceMemoryMut for AdoptedMut<'_, T> {
    fn as_mut_slice(&mut self) -> DeviceSliceMut<'_, T> {
        self.as_mut_slice()
    }
}

impl<T> Drop for AdoptedMut<'_, T> {
    fn drop(&mut self) {
        let mut parts = self.capture.parts.borrow_mut();
        if let Some(owned) = parts.owned.get_mut(self.adopted.index) {
            owned.is_lent = false;
        }
    }
}

impl<T> fmt::Debug for AdoptedMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.adopted, f)
    }
}
