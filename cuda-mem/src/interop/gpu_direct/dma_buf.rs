//! Dma-bufs: descriptors of device memory, for drivers of other devices and for the CPU.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use crate::base::error::{Error, Result};
use crate::base::pages;
use crate::driver::raw;
use crate::memory::buffer::DeviceBuffer;
use crate::stream::context::Context;

/// A descriptor of device memory for drivers of other devices: a network card reads and writes the memory through it.
/// From [`DeviceBuffer::export_dma_buf`].
///
/// It borrows the buffer, whose memory must not be freed while a device uses it. Duplicates of the descriptor
/// ([`BorrowedFd::try_clone_to_owned`]) are not tracked: the program must ensure this for them.
#[derive(Debug)]
pub struct DmaBuf<'a> {
    descriptor: OwnedFd,
    offset: usize,
    bytes: usize,
    buffer: std::marker::PhantomData<&'a ()>,
}

impl DmaBuf<'_> {
    /// The offset of the buffer's first byte in it, in bytes: it begins with a whole page of the host.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Its size in bytes: whole pages of the host.
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
    /// The buffer's memory as a dma-buf: all of it, in whole pages of the host (usually 4 KiB). Other data on its first
    /// and last page is included, so let the buffer fill whole pages if that matters. Does not wait. Needs CUDA 11.7
    /// and a device that supports it ([`GpuDirect::dma_buf`](crate::interop::GpuDirect)).
    ///
    /// Before other devices write to the memory, see [`set_sync_memops`](Self::set_sync_memops).
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for a buffer without bytes, and for memory that is not device
    /// memory; [`NotSupported`](crate::ErrorKind::NotSupported) if the device or its kernel modules cannot export
    /// dma-bufs. Otherwise any driver error.
    ///
    /// ```
    /// # use cuda_mem::Driver;
    /// # use cuda_mem::mapped::MappedMemory;
    /// # cuda_sim::use_if_no_driver();
    /// # let device = Driver::load()?.device(0)?;
    /// # let stream = device.primary_context()?.stream()?;
    /// use std::os::fd::AsFd;
    ///
    /// let memory = MappedMemory::builder(&device).gpu_direct_rdma(true).build(2 << 20)?;
    /// let buffer = memory.into_buffer::<u8>(&stream, 2 << 20)?;
    /// let shown = buffer.export_dma_buf()?;
    /// assert_eq!(shown.size_bytes(), 2 << 20);
    /// let _for_the_network_card = shown.as_fd();
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias("cuMemGetHandleForAddressRange", "CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD"))]
    pub fn export_dma_buf(&self) -> Result<DmaBuf<'_>> {
        self.dma_buf(false)
    }

    /// As [`export_dma_buf`](Self::export_dma_buf), for devices that access the memory over PCIe even where a coherent
    /// link exists. Needs CUDA 12.8.
    ///
    /// # Errors
    ///
    /// The same, and [`NotSupported`](crate::ErrorKind::NotSupported) where the device has only one path.
    #[doc(alias = "CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE")]
    pub fn export_dma_buf_over_pcie(&self) -> Result<DmaBuf<'_>> {
        self.dma_buf(true)
    }

    fn dma_buf(&self, over_pcie: bool) -> Result<DmaBuf<'_>> {
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

/// The whole pages that contain a range: their descriptor, the offset of the range in them, and their size in bytes.
pub(crate) fn descriptor(
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
    let descriptor = unsafe { raw::dma_buf::export(table, (first, whole), over_pcie) }
        .map_err(|error| error.asked(|| format!("a dma-buf of {whole} bytes at {first:#x}")))?;
    Ok((descriptor, (address - first) as usize, whole))
}
