//! Memory that suits a window.

use bytemuck::Pod;
use cuda_driver_sys::CUdevice_attribute as Attribute;

use super::kind::WindowKind;
use super::options::WindowOptions;
use crate::buffer::{DeviceBuffer, bytes_of};
use crate::error::Result;
use crate::gdr::Gdr;
use crate::resource::{DirectResource, PinnedResource, Resource};
use crate::stream::Stream;
use crate::vmm::MappedMemory;

impl WindowOptions {
    /// Memory for a window like this, in the order of the stream. Its content is arbitrary. Where a window opens on
    /// memory of the device, it is [mapped memory](MappedMemory) made for others, in pages of its own (2 MiB at least),
    /// or of a [`DirectResource`] where the device has no such. Else it is pinned memory of the host, which the processor
    /// and the devices both reach; and if that is [refused](Self::refuse), of a [`DirectResource`].
    ///
    /// # Errors
    ///
    /// As [`Resource::alloc`].
    #[track_caller]
    pub fn alloc<T: Pod>(&self, stream: &Stream, len: usize) -> Result<DeviceBuffer<T>> {
        let device = stream.device();
        let can_map = |kind| -> Result<bool> {
            match kind {
                WindowKind::DmaBuf => {
                    device.has_attribute(Attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED)
                }
                WindowKind::Gdrcopy => Ok(Gdr::load().is_ok()),
                WindowKind::HostMapped | WindowKind::Copies => Ok(true),
            }
        };
        let wished = self.preferred.iter().copied();
        let usual = [
            WindowKind::DmaBuf,
            WindowKind::Gdrcopy,
            WindowKind::HostMapped,
        ];
        for kind in wished.chain(usual) {
            if self.refused.contains(&kind) || !can_map(kind)? {
                continue;
            }
            if kind == WindowKind::HostMapped {
                return Resource::new(PinnedResource::new(device.driver())).alloc(stream, len);
            }
            if len > 0
                && size_of::<T>() > 0
                && device.has_attribute(
                    Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
                )?
            {
                let memory = MappedMemory::builder(&device).gpu_direct_rdma(true);
                let memory = memory.map(bytes_of::<T>(len)? as u64)?;
                let buffer = memory.into_buffer(stream, len);
                return Ok(buffer.map_err(|failed| failed.error)?.into_buffer());
            }
            break;
        }
        Resource::new(DirectResource::new(device)).alloc(stream, len)
    }
}
