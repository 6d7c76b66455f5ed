//! Memory as NIXL's lists take it.

use std::fmt;
use std::ops::RangeBounds;
use std::ptr;

use bytemuck::Pod;
use cuda_mem::DeviceSlice;
use nixl_sys::{MemType, MemoryRegion, NixlDescriptor};

use crate::error::{Error, Result};

/// Memory of a [`Buffer`](crate::Buffer), or a part of it, for NIXL's lists: its address, its size in bytes, the memory type
/// `Vram` and the device's number. It borrows the buffer.
///
/// From [`Buffer::descriptor`](crate::Buffer::descriptor) and
/// [`Buffer::descriptor_mut`](crate::Buffer::descriptor_mut), whose promises hold for its parts and copies too.
#[derive(Clone)]
pub struct Descriptor<'a, T: Pod> {
    memory: DeviceSlice<'a, T>,
    device: u32,
}

impl<'a, T: Pod> Descriptor<'a, T> {
    /// The memory is on this device.
    pub(crate) fn new(memory: DeviceSlice<'a, T>, device: u32) -> Self {
        Self { memory, device }
    }

    /// Some of the elements: one registration of the whole buffer serves transfers of its parts.
    ///
    /// # Errors
    ///
    /// [`Error::NoBytes`] for an empty range; an [`InvalidValue`](cuda_mem::ErrorKind::InvalidValue) of cuda-mem if it is not
    /// within the memory.
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// # use cuda_mem::{Driver, mapped::MappedMemory};
    /// # use cuda_mem_nixl::Buffer;
    /// use nixl_sys::MemoryRegion;
    ///
    /// # let device = Driver::load()?.device(0)?;
    /// # let stream = device.primary_context()?.stream()?;
    /// # let memory = MappedMemory::collective(&device)?.build(2 << 20)?;
    /// # let buffer = Buffer::new(memory.into_buffer::<f32>(&stream, 1000)?.into_buffer())?;
    /// // SAFETY: nothing is transferred.
    /// let all = unsafe { buffer.descriptor() }?;
    /// let block = all.slice(100..200)?;
    /// assert_eq!(block.size(), 400);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let memory = self.memory.slice(range)?;
        if memory.size_bytes() == 0 {
            return Err(Error::NoBytes);
        }
        Ok(Self::new(memory, self.device))
    }
}

impl<T: Pod + Send + Sync> MemoryRegion for Descriptor<'_, T> {
    /// The device's address. The host must not read or write there.
    unsafe fn as_ptr(&self) -> *const u8 {
        ptr::without_provenance(self.memory.as_raw() as usize)
    }

    fn size(&self) -> usize {
        self.memory.size_bytes()
    }
}

impl<T: Pod + Send + Sync> NixlDescriptor for Descriptor<'_, T> {
    fn mem_type(&self) -> MemType {
        MemType::Vram
    }

    /// The number of the CUDA device that the memory is on, as this process counts them. Backends of NIXL compare it with what
    /// the driver says about the address, and refuse another.
    fn device_id(&self) -> u64 {
        self.device.into()
    }
}

impl<T: Pod> fmt::Debug for Descriptor<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Descriptor")
            .field("address", &format_args!("{:#x}", self.memory.as_raw()))
            .field("bytes", &self.memory.size_bytes())
            .field("device", &self.device)
            .finish()
    }
}
