//! What a device offers to others that reach its memory, and the order of their accesses.

#[cfg(target_os = "linux")]
mod dma_buf;

#[cfg(target_os = "linux")]
pub use dma_buf::DmaBuf;
#[cfg(target_os = "linux")]
pub(crate) use dma_buf::descriptor;

use crate::driver::device::write_flags;
use std::fmt;

use bitflags::bitflags;
use bytemuck::Pod;
use cuda_driver_sys::{CUdevice_attribute, CUflushGPUDirectRDMAWritesScope, CUpointer_attribute};

use crate::base::error::{Error, Result};
use crate::driver::device::Device;
use crate::driver::raw;
use crate::memory::buffer::DeviceBuffer;
use crate::stream::context::Context;

bitflags! {
    /// Who can flush writes of others to a device's memory.
    #[doc(alias = "CUflushGPUDirectRDMAWritesOptions")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct FlushOptions: u32 {
        /// The host, by [`Context::flush_gpu_direct_writes`].
        #[doc(alias = "CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST")]
        const HOST = 1;
        /// Streams, by their memory operations.
        #[doc(alias = "CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_MEMOPS")]
        const MEMOPS = 2;
        const _ = !0;
    }
}

/// The names of its flags.
impl fmt::Display for FlushOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_flags(f, self)
    }
}

/// Whom writes of others reach in order, without a flush. The greater ones promise more.
#[doc(alias = "CUGPUDirectRDMAWritesOrdering")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WritesOrdering {
    /// Nobody: a flush is needed.
    None,
    /// The device whose memory it is.
    Owner,
    /// All devices.
    AllDevices,
}

impl WritesOrdering {
    fn of(device: &Device) -> Result<Self> {
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING;
        Ok(Self::from_raw(device.attribute(attribute)?.unwrap_or(0)))
    }

    /// Numbers that are not known yet promise what the next lower one does.
    fn from_raw(raw: i32) -> Self {
        match raw {
            ..100 => Self::None,
            100..200 => Self::Owner,
            200.. => Self::AllDevices,
        }
    }
}

impl FlushOptions {
    fn of(device: &Device) -> Result<Self> {
        let attribute =
            CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS;
        let bits = device.attribute(attribute)?.unwrap_or(0);
        Ok(Self::from_bits_retain(bits.cast_unsigned()))
    }
}

/// To whom writes are to be made visible.
#[doc(alias = "CUflushGPUDirectRDMAWritesScope")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlushScope {
    /// The device whose memory it is.
    #[doc(alias = "CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER")]
    Owner,
    /// All devices.
    #[doc(alias = "CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES")]
    AllDevices,
}

impl FlushScope {
    /// The least ordering with which this scope needs no flush.
    fn enough(self) -> WritesOrdering {
        match self {
            Self::Owner => WritesOrdering::Owner,
            Self::AllDevices => WritesOrdering::AllDevices,
        }
    }
}

/// What a device offers to network cards and others that reach its memory. From [`Device::gpu_direct`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuDirect {
    /// Others may reach its memory (attribute 116).
    pub rdma: bool,
    /// Also [mapped memory](crate::mapped::MappedMemory) that is made for it (attribute 110).
    pub rdma_with_mapped_memory: bool,
    /// Its memory is given as dma-bufs (attribute 124).
    pub dma_buf: bool,
    /// The processor can map these dma-bufs (attribute 152, CUDA 13.3).
    pub dma_buf_mapping: bool,
    /// Memory of the host is given as dma-bufs (attribute 146).
    pub host_dma_buf: bool,
    /// Who can flush writes of others (attribute 117).
    pub flush: FlushOptions,
    /// Whom they reach in order without a flush (attribute 118).
    pub ordering: WritesOrdering,
}

impl GpuDirect {
    /// Whether such a flush is needed at all.
    #[must_use]
    pub fn needs_flush(&self, scope: FlushScope) -> bool {
        self.ordering < scope.enough()
    }
}

impl Device {
    /// What the device offers to others that reach its memory. What an older driver does not know is no, or nothing.
    ///
    /// # Errors
    ///
    /// As the driver answers.
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// let device = cuda_mem::Driver::load()?.device(0)?;
    /// let offers = device.gpu_direct()?;
    /// println!("dma-bufs: {}, to be mapped: {}", offers.dma_buf, offers.dma_buf_mapping);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuDeviceGetAttribute")]
    pub fn gpu_direct(&self) -> Result<GpuDirect> {
        use CUdevice_attribute as A;
        let has = |attribute| self.has_attribute(attribute);
        Ok(GpuDirect {
            rdma: has(A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED)?,
            rdma_with_mapped_memory: has(
                A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
            )?,
            dma_buf: has(A::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)?,
            dma_buf_mapping: has(A::CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED)?,
            host_dma_buf: has(A::CU_DEVICE_ATTRIBUTE_HOST_ALLOC_DMA_BUF_SUPPORTED)?,
            flush: FlushOptions::of(self)?,
            ordering: WritesOrdering::of(self)?,
        })
    }
}

impl Context {
    /// Makes what network cards and others wrote to memory of this context's device visible, to work that is submitted
    /// from now on. Calls the driver only where the device needs it. Needs CUDA 11.3.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) if it is needed and the host cannot do it
    /// ([`FlushOptions::HOST`]); else as the driver answers.
    #[doc(alias = "cuFlushGPUDirectRDMAWrites")]
    pub fn flush_gpu_direct_writes(&self, scope: FlushScope) -> Result<()> {
        let device = self.device();
        if WritesOrdering::of(&device)? >= scope.enough() {
            return Ok(());
        }
        let options = FlushOptions::of(&device)?;
        if !options.contains(FlushOptions::HOST) {
            return Err(Error::not_supported(format!(
                "{device} lets the host flush no writes of others (it has {options}); use a stream's memory operations"
            )));
        }
        let raw = match scope {
            FlushScope::Owner => {
                CUflushGPUDirectRDMAWritesScope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER
            }
            FlushScope::AllDevices => {
                CUflushGPUDirectRDMAWritesScope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES
            }
        };
        let _current = self.bind()?;
        // SAFETY: the context is current.
        unsafe { raw::gpu_direct::flush_writes(device.driver().table(), raw) }
    }
}

impl<T: Pod> DeviceBuffer<T> {
    /// Whether copies and fills of this memory are done when the call returns, so that none of them is still on its way
    /// when somebody else reaches the memory. Set it before the memory is shown to others. The whole allocation is
    /// meant, and it cannot be taken back on some drivers. Waits for nothing.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) or [`NotSupported`](crate::ErrorKind::NotSupported) for memory
    /// that cannot be told so: older drivers refuse mapped memory. Else as the driver answers. Without bytes nothing is
    /// asked.
    #[doc(alias("cuPointerSetAttribute", "CU_POINTER_ATTRIBUTE_SYNC_MEMOPS"))]
    pub fn set_sync_memops(&mut self, wanted: bool) -> Result<()> {
        if self.as_raw() == 0 {
            return Ok(());
        }
        let table = self.stream().device().driver().table();
        // SAFETY: the buffer's memory is live.
        unsafe { raw::gpu_direct::set_sync_memops(table, self.as_raw(), wanted) }
            .map_err(|error| error.asked(|| self.in_words()))
    }

    /// Whether [`set_sync_memops`](Self::set_sync_memops) holds.
    ///
    /// # Errors
    ///
    /// As the driver answers.
    #[doc(alias = "CU_POINTER_ATTRIBUTE_SYNC_MEMOPS")]
    pub fn sync_memops(&self) -> Result<bool> {
        if self.as_raw() == 0 {
            return Ok(false);
        }
        let table = self.stream().device().driver().table();
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
        // SAFETY: the attribute is 4 bytes wide.
        let value = unsafe { raw::pointer::narrow(table, attribute, self.as_raw()) }?;
        Ok(value != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_is_needed_beyond_what_is_ordered() {
        let offers = |ordering| GpuDirect {
            rdma: true,
            rdma_with_mapped_memory: true,
            dma_buf: true,
            dma_buf_mapping: false,
            host_dma_buf: false,
            flush: FlushOptions::HOST,
            ordering: WritesOrdering::from_raw(ordering),
        };
        for (raw, owner, all) in [
            (0, true, true),
            (100, false, true),
            (150, false, true),
            (200, false, false),
            (300, false, false),
        ] {
            assert_eq!(offers(raw).needs_flush(FlushScope::Owner), owner, "{raw}");
            assert_eq!(
                offers(raw).needs_flush(FlushScope::AllDevices),
                all,
                "{raw}"
            );
        }
    }
}
