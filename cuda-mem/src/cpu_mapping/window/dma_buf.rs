//! Dma-bufs mapped for the processor.

use std::ptr::NonNull;

use cuda_driver_sys::CUdeviceptr;
use rustix::mm::{MapFlags, ProtFlags};

use crate::base::error::{Error, Result};
use crate::base::report;
use crate::interop::gpu_direct;
use crate::stream::context::Context;

/// Device memory mapped through its dma-buf. Dropping it unmaps.
#[derive(Debug)]
pub(super) struct DmaBufMapping {
    at: NonNull<u8>,
    offset: usize,
    bytes: usize,
}

// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for DmaBufMapping {}

impl DmaBufMapping {
    pub(super) fn new(
        context: &Context,
        address: CUdeviceptr,
        bytes: usize,
        over_pcie: bool,
    ) -> Result<Self> {
        let (descriptor, offset, bytes) =
            gpu_direct::descriptor(context, address, bytes, over_pcie)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the system's choice; no existing memory changes. It does not need the
        // descriptor once made.
        let mapped = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                access,
                MapFlags::SHARED,
                &descriptor,
                0,
            )
        };
        let at = mapped.map_err(|errno| {
            Error::errno("mmap", errno.raw_os_error())
                .asked(|| format!("a dma-buf of {bytes} bytes"))
        })?;
        let at = NonNull::new(at.cast::<u8>())
            .ok_or_else(|| Error::not_supported("a mapping at address 0".to_owned()))?;
        Ok(Self { at, offset, bytes })
    }

    /// Host address of the range.
    pub(super) fn start(&self) -> NonNull<u8> {
        // SAFETY: the offset is less than a page, and whole pages are mapped.
        unsafe { self.at.add(self.offset) }
    }

    /// A forked child has no such mapping, and may have another at its address by now.
    pub(super) fn close(self) -> Result<()> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        let mapping = std::mem::ManuallyDrop::new(self);
        mapping.unmap()
    }

    fn unmap(&self) -> Result<()> {
        // SAFETY: this mapping is our own, and everything that uses it ends first.
        unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.bytes) }
            .map_err(|errno| Error::errno("munmap", errno.raw_os_error()))
    }
}

impl Drop for DmaBufMapping {
    fn drop(&mut self) {
        report::release("CPU mapping", || self.unmap());
    }
}
