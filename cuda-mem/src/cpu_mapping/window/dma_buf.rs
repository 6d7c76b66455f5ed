//! Dma-bufs that are mapped for the processor.

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

// SAFETY: a mapping is the process's, and not tied to a thread.
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
        // SAFETY: a new mapping, where the system chooses: nothing that is there changes. The descriptor is not needed
        // any more once it is mapped.
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

    /// Where the range begins, for loads and stores.
    pub(super) fn start(&self) -> NonNull<u8> {
        // SAFETY: the offset is less than a page, and whole pages are mapped.
        unsafe { self.at.add(self.offset) }
    }

    /// In a fork, which has no such mapping, another may be at its address by now.
    pub(super) fn close(self) -> Result<()> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        let mapping = std::mem::ManuallyDrop::new(self);
        mapping.unmap()
    }

    fn unmap(&self) -> Result<()> {
        // SAFETY: this mapping is our own, and what looks at it ends before it.
        unsafe { rustix::mm::munmap(self.at.as_ptr().cast(), self.bytes) }
            .map_err(|errno| Error::errno("munmap", errno.raw_os_error()))
    }
}

impl Drop for DmaBufMapping {
    fn drop(&mut self) {
        report::release("window", || self.unmap());
    }
}
