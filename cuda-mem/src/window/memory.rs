//! Memory that suits a window.

use bytemuck::Pod;

use super::kind::WindowKind;
use super::options::WindowOptions;
use crate::buffer::DeviceBuffer;
use crate::error::Result;
use crate::gdr::Gdr;
use crate::resource::{DirectResource, PinnedResource, Resource};
use crate::stream::Stream;

impl WindowOptions {
    /// Memory for a window like this, in the order of the stream: memory of the device where a window opens on it, else
    /// pinned memory of the host, which the processor and the devices both reach, and if that is
    /// [refused](Self::refuse), memory of the device again. Its content is arbitrary. It is given back as that of a
    /// [`DirectResource`] or [`PinnedResource`].
    ///
    /// # Errors
    ///
    /// As [`Resource::alloc`].
    #[track_caller]
    pub fn alloc<T: Pod>(&self, stream: &Stream, len: usize) -> Result<DeviceBuffer<T>> {
        let device = stream.device();
        let can_map = |kind| -> Result<bool> {
            match kind {
                WindowKind::DmaBuf => Ok(device.gpu_direct()?.dma_buf_mapping),
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
            break;
        }
        Resource::new(DirectResource::new(device)).alloc(stream, len)
    }
}
