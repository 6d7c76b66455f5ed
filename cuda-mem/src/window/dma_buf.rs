//! Dma-bufs: descriptors of device memory, for network cards and for the processor.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use crate::buffer::DeviceBuffer;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::{pages, raw, report};

/// A descriptor of device memory that drivers of other devices take: a network card reads and writes the memory
/// through it. From [`DeviceBuffer::export_dma_buf`].
///
/// It borrows the buffer, whose memory must not be given back while anybody uses it. A descriptor that was duplicated
/// ([`BorrowedFd::try_clone_to_owned`]) is not watched any more: then the program sees to that.
#[derive(Debug)]
pub struct DmaBuf<'a> {
    descriptor: OwnedFd,
    offset: usize,
    bytes: usize,
    buffer: std::marker::PhantomData<&'a ()>,
}

impl DmaBuf<'_> {
    /// Where the buffer's first byte is in it, in bytes: it begins with a whole page of the host.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// How many bytes it shows: whole pages of the host.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.bytes
    }
}

impl AsFd for DmaBuf<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl<T: Pod> DeviceBuffer<T> {
    /// The buffer's memory as a dma-buf: all of it, in whole pages of the host (usually 4 KiB). What else lies on its
    /// first and last page is in it too, so let the buffer fill whole pages if that matters. Waits for nothing. Needs
    /// CUDA 11.7 and a device that says so ([`GpuDirect::dma_buf`](crate::GpuDirect)).
    ///
    /// Before others write to the memory, see [`set_sync_memops`](Self::set_sync_memops).
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for a buffer without bytes, and for memory that is not a
    /// device's; [`NotSupported`](crate::ErrorKind::NotSupported) if the device or its kernel modules do not give any,
    /// and for `over_pcie` where the device has one way only. Else as the driver answers.
    ///
    /// ```
    /// # use cuda_mem::{Driver, MappedMemory};
    /// # cuda_sim::use_if_no_driver();
    /// # let device = Driver::load()?.device(0)?;
    /// # let stream = device.primary_context()?.stream()?;
    /// use std::os::fd::AsFd;
    ///
    /// let memory = MappedMemory::builder(&device).gpu_direct_rdma(true).map(2 << 20)?;
    /// let buffer = memory.into_buffer::<u8>(&stream, 2 << 20)?;
    /// let shown = buffer.export_dma_buf(false)?;
    /// assert_eq!(shown.size_bytes(), 2 << 20);
    /// let _for_the_network_card = shown.as_fd();
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias("cuMemGetHandleForAddressRange", "CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD"))]
    pub fn export_dma_buf(&self, over_pcie: bool) -> Result<DmaBuf<'_>> {
        let (descriptor, offset, bytes) = descriptor(
            self.stream().context(),
            self.as_raw(),
            self.size_bytes(),
            over_pcie,
        )?;
        Ok(DmaBuf {
            descriptor,
            offset,
            bytes,
            buffer: std::marker::PhantomData,
        })
    }
}

/// The pages around a range: their descriptor, where the range begins in them, and their bytes.
fn descriptor(
    context: &Context,
    address: CUdeviceptr,
    bytes: usize,
    over_pcie: bool,
) -> Result<(OwnedFd, usize, usize)> {
    if bytes == 0 {
        return Err(Error::invalid("a dma-buf of no bytes".to_owned()));
    }
    let (first, whole) = pages::around((address, bytes), pages::host_page())
        .ok_or_else(|| Error::invalid(format!("{bytes} bytes at {address:#x} are too many")))?;
    let table = context.driver().table();
    let _current = context.bind()?;
    // SAFETY: a context is current (R166), and the driver checks the range.
    let raw = unsafe { raw::gpu_direct::dma_buf(table, (first, whole), over_pcie) }
        .map_err(|error| error.asked(|| format!("a dma-buf of {whole} bytes at {first:#x}")))?;
    // SAFETY: the descriptor was made for us just now.
    let descriptor = unsafe { OwnedFd::from_raw_fd(raw) };
    Ok((descriptor, (address - first) as usize, whole))
}

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
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let (descriptor, offset, bytes) = descriptor(context, address, bytes, over_pcie)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, where the system chooses: nothing that is there changes. The descriptor is not needed
        // any more once it is mapped.
        let mapped = unsafe {
            mmap(
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

    pub(super) fn close(self) -> Result<()> {
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
