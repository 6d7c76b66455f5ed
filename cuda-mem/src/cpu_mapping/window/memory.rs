//! Memory suitable for a CPU mapping.

use bytemuck::Pod;
use cuda_driver_sys::CUdevice_attribute as Attribute;
use cuda_driver_sys::gdr::GPU_PAGE_SIZE;

use super::kind::{CpuMappingKind, MappingKind};
use super::options::CpuMappingOptions;
use crate::base::error::Result;
use crate::cpu_mapping::gdr::Gdr;
use crate::driver::device::Device;
use crate::mapped::vmm::MappedMemory;
use crate::memory::buffer::{DeviceBuffer, bytes_of, too_large};
use crate::memory::resource::{DirectResource, HostFlags, PinnedResource, Resource};
use crate::stream::Stream;

/// Smaller blocks begin in device pages of others.
const OWN_PAGES: usize = 2 << 20;

impl CpuMappingOptions {
    /// Allocates memory for a mapping with these options, in stream order. Contents are unspecified. Where device
    /// memory can be mapped, this is [mapped memory](MappedMemory) that third parties may access, in pages of its own
    /// (at least 2 MiB), or memory of a [`DirectResource`] if the device does not support that. Otherwise it is pinned
    /// host memory, which the processor and the devices can both access, write-combining if [requested](Self::mapping).
    /// If that is [refused](Self::refuse), it is memory of a [`DirectResource`].
    ///
    /// # Errors
    ///
    /// As [`Resource::alloc`].
    #[track_caller]
    pub fn alloc<T: Pod>(&self, stream: &Stream, len: usize) -> Result<DeviceBuffer<T>> {
        let device = stream.device();
        let can_map = |kind| -> Result<bool> {
            match kind {
                CpuMappingKind::DmaBuf if self.mapping.is_some() => Ok(false),
                CpuMappingKind::DmaBuf => {
                    device.has_attribute(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED)
                }
                CpuMappingKind::Gdrcopy => Ok(Gdr::load().is_ok()),
                CpuMappingKind::HostMapped => Ok(self.mapping != Some(MappingKind::Device)),
                CpuMappingKind::Copies => Ok(true),
            }
        };
        let wished = self.preferred.iter().copied();
        let usual = [
            CpuMappingKind::DmaBuf,
            CpuMappingKind::Gdrcopy,
            CpuMappingKind::HostMapped,
        ];
        for kind in wished.chain(usual) {
            if self.refused.contains(&kind) || !can_map(kind)? {
                continue;
            }
            return match kind {
                CpuMappingKind::DmaBuf | CpuMappingKind::Gdrcopy => of_device(device, stream, len),
                CpuMappingKind::HostMapped => {
                    let mut flags = HostFlags::default();
                    let combined = self.mapping == Some(MappingKind::WriteCombining);
                    flags.set(HostFlags::WRITE_COMBINED, combined);
                    let resource = PinnedResource::with_flags(device.driver(), flags);
                    Resource::new(resource).alloc(stream, len)
                }
                CpuMappingKind::Copies => break,
            };
        }
        Resource::new(DirectResource::new(device)).alloc(stream, len)
    }
}

/// The bytes to allocate for a block that shares none of the pages around it: the next block may begin right behind it,
/// in its last page.
fn own_pages(bytes: usize) -> Option<usize> {
    bytes
        .max(OWN_PAGES)
        .checked_next_multiple_of(GPU_PAGE_SIZE as usize)
}

/// Memory that third parties may map, in pages of its own.
#[track_caller]
fn of_device<T: Pod>(device: Device, stream: &Stream, len: usize) -> Result<DeviceBuffer<T>> {
    let bytes = bytes_of::<T>(len)?;
    let for_others = Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    if bytes > 0 && device.has_attribute(for_others)? {
        let memory = MappedMemory::builder(&device).gpu_direct_rdma(true);
        let buffer = memory.build(bytes as u64)?.into_buffer(stream, len);
        return Ok(buffer.map_err(|failed| failed.error)?.into_buffer());
    }
    let room = match bytes {
        0 => len,
        _ => own_pages(bytes)
            .ok_or_else(|| too_large(len, size_of::<T>()))?
            .div_ceil(size_of::<T>()),
    };
    let mut buffer = Resource::new(DirectResource::new(device)).alloc(stream, room)?;
    buffer.set_len(len);
    Ok(buffer)
}
