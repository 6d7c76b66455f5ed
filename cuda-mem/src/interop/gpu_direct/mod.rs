//! A device's support for direct access to its memory by other devices, and the ordering of these accesses.

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
    /// Ways to flush writes of other devices to a device's memory.
    #[doc(alias = "CUflushGPUDirectRDMAWritesOptions")]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct FlushOptions: u32 {
        /// By the host, with [`Context::flush_gpu_direct_writes`].
        #[doc(alias = "CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST")]
        const HOST = 1;
        /// By streams, with their memory operations.
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

/// Which devices see writes of other devices in order, without a flush. Greater values promise more.
#[doc(alias = "CUGPUDirectRDMAWritesOrdering")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WritesOrdering {
    /// None: a flush is needed.
    None,
    /// The device that owns the memory.
    Owner,
    /// All devices.
    AllDevices,
}

impl WritesOrdering {
    fn of(device: &Device) -> Result<Self> {
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING;
        Ok(Self::from_raw(device.attribute(attribute)?.unwrap_or(0)))
    }

    /// Unknown values promise as much as the next lower known one.
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

/// Which devices must see the writes.
#[doc(alias = "CUflushGPUDirectRDMAWritesScope")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlushScope {
    /// The device that owns the memory.
    #[doc(alias = "CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER")]
    Owner,
    /// All devices.
    #[doc(alias = "CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES")]
    AllDevices,
}

impl FlushScope {
    /// The weakest ordering with which this scope needs no flush.
    fn enough(self) -> WritesOrdering {
        match self {
            Self::Owner => WritesOrdering::Owner,
            Self::AllDevices => WritesOrdering::AllDevices,
        }
    }
}

/// A device's support for direct access to its memory by network cards and other devices. From [`Device::gpu_direct`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GpuDirect {
    /// Other devices can access its memory (attribute 116).
    pub rdma: bool,
    /// The same for [mapped memory](crate::mapped::MappedMemory) that is allocated for it (attribute 110).
    pub rdma_with_mapped_memory: bool,
    /// Its memory can be exported as dma-bufs (attribute 124).
    pub dma_buf: bool,
    /// The processor can map these dma-bufs (attribute 152, CUDA 13.3).
    pub dma_buf_mapping: bool,
    /// Host memory can be exported as dma-bufs (attribute 146).
    pub host_dma_buf: bool,
    /// Ways to flush writes of other devices (attribute 117).
    pub flush: FlushOptions,
    /// Which devices see them in order without a flush (attribute 118).
    pub ordering: WritesOrdering,
}

impl GpuDirect {
    /// Whether a flush for this scope is needed at all.
    #[must_use]
    pub fn needs_flush(&self, scope: FlushScope) -> bool {
        self.ordering < scope.enough()
    }
}

impl Device {
    /// The device's support for direct access by other devices. Features unknown to an older driver are reported as
    /// absent.
    ///
    /// # Errors
    ///
    /// Any driver error.
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
    /// Makes writes of network cards and other devices to memory of this context's device visible to work that is
    /// submitted from now on. Calls the driver only where the device needs it. Needs CUDA 11.3.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) if a flush is needed and the host cannot do it
    /// ([`FlushOptions::HOST`]); otherwise any driver error.
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
    /// Sets whether copies and fills of this memory are complete when the call returns, so that none is still in
    /// progress when another device accesses the memory. Set it before you share the memory. It applies to the whole
    /// allocation, and some drivers cannot unset it. Does not wait.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) or [`NotSupported`](crate::ErrorKind::NotSupported) for memory
    /// that does not support this: older drivers refuse mapped memory. Otherwise any driver error. If there are no
    /// bytes, no driver call is made.
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

    /// Whether [`set_sync_memops`](Self::set_sync_memops) is in effect.
    ///
    /// # Errors
    ///
    /// Any driver error.
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
