//! Writes to a managed buffer in stream order.

use bytemuck::Pod;

use super::ManagedBuffer;
use crate::memory::buffer::DeviceBuffer;
use crate::memory::slice::{DeviceMemoryMut, DeviceSliceMut};

impl<T: Pod> ManagedBuffer<T> {
    /// All elements, to be written in the order of the stream, or of another stream, possibly of another device.
    /// [`host_mut`](Self::host_mut) writes them on the host.
    ///
    /// ```
    /// use cuda_mem::mapped::ManagedBuffer;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// # let device = cuda_mem::Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let mut x = ManagedBuffer::<u32>::uninit(&stream, 100)?;
    /// x.as_mut_slice().fill(7)?;
    /// assert_eq!(x.host()?[99], 7);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn as_mut_slice(&mut self) -> DeviceSliceMut<'_, T> {
        self.buffer.as_mut_slice()
    }

    /// For operations that write in stream order. Callers must not replace the buffer by another one.
    pub(crate) fn inner(&mut self) -> &mut DeviceBuffer<T> {
        &mut self.buffer
    }
}

impl<T: Pod> DeviceMemoryMut for ManagedBuffer<T> {
    fn as_mut_slice(&mut self) -> DeviceSliceMut<'_, T> {
        self.buffer.as_mut_slice()
    }
}
