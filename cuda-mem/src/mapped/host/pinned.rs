//! Pinned memory as a host slice.

use std::ffi::c_void;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use super::device_address;
use super::in_flight::{HostMemory, InFlightBuffer, sealed};
use crate::base::error::{Error, Failed, OutOfMemory, Result, took_effect};
use crate::base::report;
use crate::driver::raw;
use crate::ledger::{self, Item, LedgerKind};
use crate::memory::buffer::bytes_of;
use crate::memory::resource::{HostFlags, RESOURCE_ALIGNMENT, require_known};
use crate::stream::Stream;
use crate::stream::context::Context;
use crate::stream::recording;

/// `len` elements of pinned memory: a slice on the host, which devices copy at full speed and without the host's help.
/// Zeroed on creation.
///
/// The slice can be copied like any other, and the copy waits. To copy without waiting, or to let kernels use the
/// memory, [lend](Self::lend) it to a stream.
///
/// Creating and dropping one takes milliseconds for large sizes, and dropping waits for the device: reuse it.
///
/// ```
/// # use cuda_mem::{Driver, MemoryPool};
/// # cuda_sim::use_if_no_driver();
/// # let device = Driver::load()?.device(0)?;
/// # let context = device.primary_context()?;
/// # let stream = context.stream()?;
/// # let pool = MemoryPool::builder(&device).build()?;
/// let mut staging = context.pinned::<f32>(1000)?;
/// staging.fill(1.5);
/// let mut buffer = pool.alloc::<f32>(&stream, 1000)?;
///
/// let staging = staging.lend(&stream)?;
/// staging.copy_to(&mut buffer)?;          // does not wait
/// let staging = staging.take_back()?;     // waits
/// assert_eq!(staging[999], 1.5);
/// assert_eq!(buffer.to_vec()?, [1.5; 1000]);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct PinnedBuffer<T: Pod> {
    /// Dangling if there are no bytes.
    at: NonNull<T>,
    len: usize,
    flags: HostFlags,
    context: Context,
}

// SAFETY: the memory is owned, and may be used and freed on any thread.
unsafe impl<T: Pod + Send> Send for PinnedBuffer<T> {}
// SAFETY: a shared borrow only reads.
unsafe impl<T: Pod + Sync> Sync for PinnedBuffer<T> {}

impl Context {
    /// Pinned memory of `len` elements, zeroed and [portable](HostFlags::PORTABLE), so that every device can copy it.
    /// No driver call if there are no bytes.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if the system cannot pin that much;
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the size exceeds the address space; otherwise as the driver
    /// answers.
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// let context = cuda_mem::Driver::load()?.device(0)?.primary_context()?;
    /// let mut words = context.pinned::<u32>(4)?;
    /// words[1] = 7;
    /// assert_eq!(*words, [0, 7, 0, 0]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias("cuMemHostAlloc", "cudaHostAlloc", "cudaMallocHost"))]
    #[track_caller]
    pub fn pinned<T: Pod>(&self, len: usize) -> Result<PinnedBuffer<T>> {
        self.pinned_with(len, HostFlags::default())
    }

    /// As [`pinned`](Self::pinned), with other flags. [Write-combined](HostFlags::WRITE_COMBINED) memory is very slow
    /// to read on the host.
    ///
    /// # Errors
    ///
    /// The same, and [`InvalidValue`](crate::ErrorKind::InvalidValue) for flags other than [`HostFlags`].
    #[doc(alias("cuMemHostAlloc", "CU_MEMHOSTALLOC_WRITECOMBINED"))]
    #[track_caller]
    pub fn pinned_with<T: Pod>(&self, len: usize, flags: HostFlags) -> Result<PinnedBuffer<T>> {
        const {
            assert!(
                align_of::<T>() <= RESOURCE_ALIGNMENT,
                "pinned memory is aligned to 256 bytes"
            );
        }
        let bytes = bytes_of::<T>(len)?;
        require_known(flags, HostFlags::all())?;
        let mut made = PinnedBuffer {
            at: NonNull::dangling(),
            len,
            flags,
            context: self.clone(),
        };
        if bytes == 0 {
            return Ok(made);
        }
        // Until memory is allocated, there is nothing to free.
        made.len = 0;
        let table = self.driver().table();
        let _current = self.bind()?;
        let at = recording::relaxed_while_capturing(table, || {
            // SAFETY: this context is current.
            unsafe { raw::host::allocate(table, bytes, flags.bits()) }
        });
        let at = at.map_err(|error| refused(error, bytes, flags))?;
        made.at = NonNull::new(at.cast()).ok_or_else(|| {
            Error::invalid(format!("the driver gave no address for {bytes} bytes"))
        })?;
        made.len = len;
        ledger::insert(made.item());
        // SAFETY: the driver handed out this many bytes just now, and nobody else has them.
        unsafe { made.at.cast::<u8>().write_bytes(0, bytes) };
        Ok(made)
    }

    /// Pinned memory with a copy of `from`.
    ///
    /// # Errors
    ///
    /// As [`pinned`](Self::pinned).
    #[doc(alias = "cuMemHostAlloc")]
    #[track_caller]
    pub fn pinned_from<T: Pod>(&self, from: &[T]) -> Result<PinnedBuffer<T>> {
        let mut made = self.pinned(from.len())?;
        made.copy_from_slice(from);
        Ok(made)
    }
}

/// The device's memory figures are irrelevant here: the host ran out of memory.
#[cold]
fn refused(error: Error, bytes: usize, flags: HostFlags) -> Error {
    error
        .asked(|| format!("{bytes} bytes of pinned memory, {flags}"))
        .with_memory(|| OutOfMemory {
            asked: bytes as u64,
            ..OutOfMemory::default()
        })
}

impl<T: Pod> PinnedBuffer<T> {
    /// Number of bytes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// The context that it was created in, which it keeps alive.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    fn raw(&self) -> *mut c_void {
        self.at.as_ptr().cast()
    }

    /// The flags of the memory, as the driver reports them; there may be more than were requested.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuMemHostGetFlags")]
    pub fn flags(&self) -> Result<HostFlags> {
        if self.size_bytes() == 0 {
            return Ok(self.flags);
        }
        let _current = self.context.bind()?;
        // SAFETY: the memory is from `cuMemHostAlloc`, and its context is current.
        let flags = unsafe { raw::host::flags(self.context.driver().table(), self.raw()) }?;
        Ok(HostFlags::from_bits_retain(flags))
    }

    /// The address of the memory on the device of `context`; 0 if there are no bytes. It is usually the same as the
    /// host's, but the driver does not guarantee that for write-combined memory.
    ///
    /// If you pass it to a device, make sure that the host neither uses nor drops the slice until the device is done. A
    /// [`lend`](Self::lend) ensures that by itself.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the context is of another driver, or its device cannot
    /// access the memory; otherwise any driver error.
    #[doc(alias = "cuMemHostGetDevicePointer")]
    pub fn device_address(&self, context: &Context) -> Result<CUdeviceptr> {
        let drivers = (self.context.driver(), context.driver());
        drivers
            .0
            .require_same(drivers.1, format_args!("the pinned memory and the context"))?;
        if self.size_bytes() == 0 {
            return Ok(0);
        }
        // SAFETY: the memory is pinned, of this driver's.
        unsafe { device_address(context, self.raw()) }
    }

    /// Lends the memory to a stream: copies and kernels there use it without the host waiting. The host can access it
    /// again after [`take_back`](InFlightBuffer::take_back).
    ///
    /// # Errors
    ///
    /// As [`device_address`](Self::device_address). The memory comes back with the error.
    #[doc(alias = "cuMemHostGetDevicePointer")]
    pub fn lend(self, stream: &Stream) -> Result<InFlightBuffer<Self>, Failed<Self>>
    where
        Self: HostMemory,
    {
        match self.device_address(stream.context()) {
            // SAFETY: the memory is this value's own, and all borrows of it are over.
            Ok(address) => Ok(unsafe { InFlightBuffer::new(self, address, stream) }),
            Err(error) => Err(Failed::new(error, self)),
        }
    }

    /// Frees the memory, as dropping does, and returns the result. Waits for the device.
    ///
    /// # Errors
    ///
    /// Any driver error. The memory comes back with the error, unless the driver may have freed it anyway.
    #[doc(alias = "cuMemFreeHost")]
    pub fn free(mut self) -> Result<(), Failed<Self>> {
        match self.release() {
            Ok(()) => Ok(()),
            Err(error) if self.len == 0 => Err(Failed::lost(error)),
            Err(error) => Err(Failed::new(error, self)),
        }
    }

    /// The entry in the ledger.
    fn item(&self) -> Item {
        Item::new(LedgerKind::PinnedMemory, self.at.as_ptr())
            .of(self.context.driver())
            .bytes(self.size_bytes())
    }

    /// Frees the memory, if there is any; afterwards there is none, unless the driver certainly did nothing.
    fn release(&mut self) -> Result<()> {
        if self.size_bytes() == 0 {
            return Ok(());
        }
        if report::is_forked() {
            return Err(Error::forked());
        }
        let table = self.context.driver().table();
        let item = self.item();
        let ended = ledger::remove(&item);
        // SAFETY: the memory is from `cuMemHostAlloc` and this value's own; streams that used it were
        // waited for when the memory came back.
        let freed = recording::with_relaxed_capture_mode(table, || unsafe {
            raw::host::free(table, self.raw())
        });
        if took_effect(&freed) {
            self.at = NonNull::dangling();
            self.len = 0;
        } else {
            ledger::restore(&item, ended);
        }
        freed
    }
}

impl<T: Pod + Send + Sync> HostMemory for PinnedBuffer<T> {}

impl<T: Pod + Send + Sync> sealed::Range for PinnedBuffer<T> {
    type Element = T;

    fn range(&self) -> (NonNull<T>, usize) {
        (self.at, self.len)
    }

    fn is_writable(&self) -> bool {
        true
    }
}

impl<T: Pod> Deref for PinnedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the memory is this value's own, was zeroed, and holds values of `T` whatever is written;
        // no stream has it, as it is not in flight.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.len) }
    }
}

impl<T: Pod> DerefMut for PinnedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and this is the only borrow.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.len) }
    }
}

impl<T: Pod> Drop for PinnedBuffer<T> {
    fn drop(&mut self) {
        report::release("pinned buffer", || self.release());
    }
}

impl<T: Pod> fmt::Debug for PinnedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBuffer")
            .field("address", &self.at)
            .field("len", &self.len)
            .field("element", &std::any::type_name::<T>())
            .field("flags", &self.flags)
            .finish_non_exhaustive()
    }
}
