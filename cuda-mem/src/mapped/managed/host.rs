//! The host's side of managed memory.

use bytemuck::Pod;
use cuda_driver_sys::CUdevice_attribute;

use super::ManagedBuffer;
use crate::base::error::{Error, Result};
use crate::driver::Driver;

impl<T: Pod> ManagedBuffer<T> {
    /// The elements, for the host to read. Synchronises the buffer's stream, after it has waited for pending writes of
    /// other streams. While the slice is borrowed nothing writes to the buffer; devices may read it too.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) if any visible device lacks concurrent managed access
    /// (attribute 89): on such a system the host must not touch managed memory while the device does any work, which
    /// cannot be guaranteed. [`copy_to`](crate::DeviceBuffer::copy_to) works on all devices. Otherwise as the driver
    /// answers.
    #[doc(alias = "cuStreamSynchronize")]
    pub fn host(&self) -> Result<&[T]> {
        self.require_open()?;
        // SAFETY: the buffer's own managed memory, which the host reaches at any time, as was asked just now.
        unsafe { self.buffer.host_slice() }
    }

    /// The elements, for the host to change. Synchronises the buffer's stream, after it has waited for other streams
    /// that still use the buffer. While the slice is borrowed no device uses the buffer.
    ///
    /// # Errors
    ///
    /// As [`host`](Self::host).
    ///
    /// ```
    /// # use cuda_mem::Driver;
    /// # use cuda_mem::mapped::ManagedBuffer;
    /// # cuda_sim::use_if_no_driver();
    /// # let stream = Driver::load()?.device(0)?.primary_context()?.stream()?;
    /// let mut numbers = ManagedBuffer::<u32>::uninit(&stream, 100)?;
    /// numbers.as_mut_slice().fill(3)?;
    /// for number in numbers.host_mut()? {
    ///     *number += 1;
    /// }
    /// assert_eq!(numbers.to_vec()?, [4; 100]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuStreamSynchronize")]
    pub fn host_mut(&mut self) -> Result<&mut [T]> {
        self.require_open()?;
        // SAFETY: as in `host`.
        unsafe { self.buffer.host_slice_mut() }
    }

    pub(super) fn driver(&self) -> Driver {
        self.buffer.stream().device().driver()
    }

    /// `Ok` if the host may use managed memory while devices work. The driver is asked once.
    fn require_open(&self) -> Result<()> {
        if self.buffer.as_raw() == 0 || self.is_open.get().is_some() {
            return Ok(());
        }
        for device in self.driver().devices()? {
            if !device
                .has_attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)?
            {
                return Err(Error::not_supported(format!(
                    "{device} has no concurrent managed access (attribute 89): the host must not touch managed \
                     memory while that device works on anything. Use `copy_to` and `copy_from`, or hide the device \
                     with CUDA_VISIBLE_DEVICES"
                )));
            }
        }
        // Another thread may have set it first, to the same answer.
        let _ = self.is_open.set(());
        Ok(())
    }
}
