//! Opening: gathers the information, chooses, and tries what was chosen.

use std::cell::RefCell;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use bytemuck::Pod;
use cuda_driver_sys::gdr::{GPU_PAGE_SIZE, gdr_mapping_type_t};
use cuda_driver_sys::{CUdevice_attribute, CUdeviceptr, CUpointer_attribute};

use super::CpuMapping;
use super::choice::{CpuMappingChoice, CpuMappingInfo};
#[cfg(target_os = "linux")]
use super::dma_buf::DmaBufMapping;
use super::kind::{CpuMappingKind, CpuMappingReason, MappingKind};
use super::options::{CpuMappingOptions, READ_LIMIT, WRITE_LIMIT};
use super::view::{Backend, View};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::pages;
use crate::cpu_mapping::gdr::{Gdr, GdrMapping};
use crate::driver::device::Device;
use crate::driver::pointer::MemoryKind;
use crate::driver::raw;
use crate::ledger;
use crate::memory::buffer::DeviceBuffer;
use crate::memory::resource::HostFlags;
use crate::placement::nvml::Nvml;

impl<'a, T: Pod> CpuMapping<'a, T> {
    #[track_caller]
    pub(super) fn open(
        buffer: &'a mut DeviceBuffer<T>,
        options: &CpuMappingOptions,
    ) -> Result<Self> {
        let elements = elements(buffer.len(), options)?;
        let bytes = elements.len() * size_of::<T>();
        // The kind of an empty mapping.
        let copies = CpuMappingOptions::new().only([CpuMappingKind::Copies]);
        let mut window = Self {
            view: None,
            copies: RefCell::new(None),
            buffer,
            elements,
            choice: CpuMappingChoice::new(&CpuMappingInfo::of(MemoryKind::Device), &copies),
            write_limit: usize::MAX,
            read_limit: usize::MAX,
        };
        // Before anything can fail, because the drop removes it.
        ledger::insert(window.item());
        window.wait()?;
        if bytes > 0 {
            let info = window.info(bytes, options)?;
            window.choice = CpuMappingChoice::new(&info, options);
            window.try_all(bytes, &info, options)?;
            let is_of_host = info.memory == MemoryKind::Host;
            let unlimited = |limit: usize| if is_of_host { usize::MAX } else { limit };
            window.write_limit = options.write_limit.unwrap_or(unlimited(WRITE_LIMIT));
            window.read_limit = options.read_limit.unwrap_or(unlimited(READ_LIMIT));
        }
        Ok(window)
    }

    /// Waits for everything that uses the buffer, without disturbing any capture.
    fn wait(&mut self) -> Result<()> {
        if self.buffer.as_raw() == 0 {
            return Ok(());
        }
        self.buffer.wait_for_pending_uses()?;
        self.buffer.wait_for_stream()
    }

    fn info(&self, bytes: usize, options: &CpuMappingOptions) -> Result<CpuMappingInfo> {
        let stream = self.buffer.stream();
        let device = self.buffer.device().unwrap_or(stream.device());
        let info = device.driver().pointer_info(self.address())?;
        let memory = info.as_ref().map_or(MemoryKind::Other(0), |info| info.kind);
        let around = pages::around((self.address(), bytes), GPU_PAGE_SIZE);
        let needed = around.map_or(bytes, |(_, whole)| whole);
        let own_pages = info
            .as_ref()
            .zip(around)
            .is_none_or(|(info, (first, whole))| {
                let end = info.start.saturating_add(info.bytes);
                first >= info.start && first.saturating_add(whole as u64) <= end
            });
        let mut info = CpuMappingInfo {
            gpu_direct: info.and_then(|info| info.gpu_direct_rdma),
            host_access: self.buffer.is_open_to_host().unwrap_or(true),
            own_pages,
            dma_buf_mapping: device
                .has_attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED)?,
            bar1_needed: needed as u64,
            ..CpuMappingInfo::of(memory)
        };
        if memory == MemoryKind::Host {
            info.host_mapping = self.host_mapping(&device)?;
        } else if may_take_bar1(&info, options) {
            info.bar1_free = bar1_free(&device);
        }
        Ok(info)
    }

    /// Takes the first kind that works.
    fn try_all(
        &mut self,
        bytes: usize,
        info: &CpuMappingInfo,
        options: &CpuMappingOptions,
    ) -> Result<()> {
        while let Some(kind) = self.choice.kind() {
            match self.try_one(kind, bytes, info, options) {
                Ok(way) => {
                    self.view = way.map(|way| View::new(way, bytes));
                    self.choice.take();
                    return Ok(());
                }
                Err(error) => {
                    let reason = CpuMappingReason::Failed(Arc::new(error));
                    self.choice.leave_out(kind, reason);
                }
            }
        }
        Err(Error::no_window(self.choice.to_string()))
    }

    fn try_one(
        &mut self,
        kind: CpuMappingKind,
        bytes: usize,
        info: &CpuMappingInfo,
        options: &CpuMappingOptions,
    ) -> Result<Option<Backend>> {
        let address = self.address();
        let device = self.buffer.stream().device();
        match kind {
            CpuMappingKind::Copies => {
                // Created now: later, it might wait for a kernel that waits for this mapping.
                *self.copies.get_mut() = Some(self.stage()?);
                Ok(None)
            }
            CpuMappingKind::HostMapped => {
                let at = host_pointer(&device, address)?;
                Ok(Some(Backend::Host(at, info.host_mapping)))
            }
            CpuMappingKind::DmaBuf => {
                #[cfg(target_os = "linux")]
                {
                    let context = self.buffer.stream().context();
                    let mapping = DmaBufMapping::new(context, address, bytes, options.force_pcie)?;
                    self.make_copies_wait()?;
                    Ok(Some(Backend::DmaBuf(mapping)))
                }
                #[cfg(not(target_os = "linux"))]
                Err(Error::not_supported("dma-bufs are Linux's".to_owned()))
            }
            CpuMappingKind::Gdrcopy => {
                let gdr = Gdr::load()?;
                let wanted = wanted(options.mapping);
                // A library that maps dma-bufs requests them from the driver, which needs a current context (R166).
                let current = self.buffer.stream().context().bind()?;
                // SAFETY: the mapping borrows the buffer, whose memory is a device's and stays valid.
                let mapping =
                    unsafe { GdrMapping::new(gdr, (address, bytes), wanted, options.force_pcie) }?;
                drop(current);
                self.make_copies_wait()?;
                Ok(Some(Backend::Gdr(mapping)))
            }
        }
    }

    /// How the processor treats accesses to this host memory: cached, unless allocated otherwise. Unpinned memory is
    /// always cached.
    fn host_mapping(&self, device: &Device) -> Result<MappingKind> {
        let Ok(at) = host_pointer(device, self.address()) else {
            // The attempt reports why.
            return Ok(MappingKind::Cached);
        };
        let combined = HostFlags::WRITE_COMBINED.bits();
        let _current = self.buffer.stream().context().bind()?;
        // SAFETY: the driver knows the memory at this address, and a context is current.
        match unsafe { raw::host::flags(device.driver().table(), at.as_ptr().cast()) } {
            Ok(flags) if flags & combined != 0 => Ok(MappingKind::WriteCombining),
            _ => Ok(MappingKind::Cached),
        }
    }

    /// Makes copies of the memory synchronous, as third parties require. Done only once a mapping exists, since it
    /// cannot be undone. Mapped memory does not support it (R168); the mapping's own copies are waited for anyway.
    fn make_copies_wait(&mut self) -> Result<()> {
        match self.buffer.set_sync_memops(true) {
            Err(error) if error.kind() == ErrorKind::NotSupported => Ok(()),
            done => done,
        }
    }
}

/// The range of the options, if it lies in the buffer.
fn elements(len: usize, options: &CpuMappingOptions) -> Result<Range<usize>> {
    let range = options.range.clone().unwrap_or(0..len);
    if range.start <= range.end && range.end <= len {
        return Ok(range);
    }
    Err(Error::invalid(format!(
        "elements {} to {} are no range of a buffer of {len}",
        range.start, range.end
    )))
}

/// Whether any candidate takes BAR1; NVML is queried only then.
fn may_take_bar1(info: &CpuMappingInfo, options: &CpuMappingOptions) -> bool {
    let choice = CpuMappingChoice::new(info, options);
    let may_be = |kind| choice.candidates().contains(&kind);
    may_be(CpuMappingKind::DmaBuf) || may_be(CpuMappingKind::Gdrcopy) && Gdr::load().is_ok()
}

/// What NVML reports, if it is available and knows the device.
fn bar1_free(device: &Device) -> Option<u64> {
    let nvml = Nvml::load().ok()?;
    let bar1 = device.nvml(&nvml).ok()?.bar1_memory().ok()?;
    Some(bar1.free)
}

/// Host address of host memory that devices access at this address.
fn host_pointer(device: &Device, address: CUdeviceptr) -> Result<NonNull<u8>> {
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_HOST_POINTER;
    // SAFETY: the attribute is 8 bytes wide.
    let at = unsafe { raw::pointer::wide(device.driver().table(), attribute, address) }?;
    // The driver owns the memory and exposed its address.
    let at = ptr::with_exposed_provenance_mut(at as usize);
    NonNull::new(at)
        .ok_or_else(|| Error::not_supported(format!("the host has no address for {address:#x}")))
}

fn wanted(kind: Option<MappingKind>) -> gdr_mapping_type_t {
    match kind {
        Some(MappingKind::WriteCombining) => gdr_mapping_type_t::GDR_MAPPING_TYPE_WC,
        Some(MappingKind::Cached) => gdr_mapping_type_t::GDR_MAPPING_TYPE_CACHING,
        Some(MappingKind::Device) => gdr_mapping_type_t::GDR_MAPPING_TYPE_DEVICE,
        Some(MappingKind::Unknown) | None => gdr_mapping_type_t::GDR_MAPPING_TYPE_NONE,
    }
}
