//! A buffer that grows without moving.

use std::fmt;
use std::ops::Deref;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
#[cfg(windows)]
use std::os::windows::io::OwnedHandle;
use std::sync::{Arc, MutexGuard};

use bytemuck::Pod;

use super::mapped::MappedMemory;
use crate::base::error::{Error, Failed, Result};
use crate::base::lock::Lock;
use crate::driver::location::Location;
use crate::mapped::migration_stats::MigrationStats;
use crate::memory::buffer::{DeviceBuffer, ExternalOwner, Refused, bytes_of};
use crate::memory::slice::{DeviceMemoryMut, DeviceSliceMut, Span};
use crate::stream::{Stream, StreamRef};

/// A buffer over [`MappedMemory`]: it grows and shrinks in place, and its address stays. It reads as a
/// [`DeviceBuffer`] does, and is written through [`as_mut_slice`](Self::as_mut_slice).
///
/// Dropping it waits for its stream, because memory cannot be unmapped while work uses it.
///
/// ```
/// use cuda_mem::Driver;
/// use cuda_mem::mapped::MappedMemory;
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let memory = MappedMemory::builder(&device).reserve(1 << 30).build(1 << 20)?;
/// let mut x = memory.into_buffer::<f32>(&stream, 1000)?;
/// x.as_mut_slice().fill(1.0)?;
/// let address = x.as_raw();
///
/// x.resize_zeroed(2 << 20)?; // 8 MiB
/// assert_eq!((x.as_raw(), x.len()), (address, 2 << 20));
/// assert_eq!(x.to_vec()?[999..1001], [1.0, 0.0]);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct GrowableBuffer<T: Pod> {
    buffer: DeviceBuffer<T>,
    memory: Arc<Lock<Option<MappedMemory>>>,
}

/// The memory, as the buffer's owner: it is released with the buffer.
struct KeptMapping(Arc<Lock<Option<MappedMemory>>>);

impl Drop for KeptMapping {
    fn drop(&mut self) {
        // Not under the lock.
        let memory = self.0.lock_unless_forked();
        drop(memory.map(|mut memory| memory.take()));
    }
}

impl ExternalOwner for KeptMapping {
    /// Submitted work may still use the memory; an unmap would take it away under that work (R145). If it is unknown
    /// whether there is any, the memory leaks.
    fn wait(&self, stream: StreamRef<'_>) -> Result<bool> {
        if self.0.lock()?.is_some() {
            stream.wait_unless_captured()?;
        }
        Ok(true)
    }

    fn release(self: Box<Self>, _: &Stream) -> Result<(), Refused> {
        Ok(())
    }

    fn is_open_to_host(&self, bytes: usize) -> Option<bool> {
        let memory = self.0.lock_unless_forked();
        let open = |memory: &MappedMemory| memory.is_open_to_host(bytes as u64, true);
        let is_open = memory.and_then(|memory| memory.as_ref().map(open));
        Some(is_open.is_some_and(|is_open| is_open.unwrap_or(false)))
    }

    fn room_bytes(&self) -> Option<usize> {
        let memory = self.0.lock_unless_forked()?;
        memory.as_ref().map(|memory| memory.mapped_bytes() as usize)
    }
}

/// The memory, after a check that it belongs to the buffer.
struct Own<'a>(MutexGuard<'a, Option<MappedMemory>>);

impl Own<'_> {
    fn memory(&mut self) -> Result<&mut MappedMemory> {
        self.0.as_mut().ok_or_else(Error::memory_in_use)
    }
}

/// `Ok` if the memory can hold this many elements at its address.
fn require_room<T: Pod>(memory: &MappedMemory, len: usize) -> Result<()> {
    let (bytes, room) = (bytes_of::<T>(len)?, memory.size_bytes());
    if bytes as u64 > room {
        return Err(Error::invalid(format!(
            "{len} elements are {bytes} bytes, and the memory has {room}"
        )));
    }
    // Addresses are multiples of the granularity, but some element types need a larger alignment.
    let (address, align) = (memory.address(), align_of::<T>() as u64);
    if !address.is_multiple_of(align) {
        return Err(Error::invalid(format!(
            "elements of {} begin at multiples of {align} bytes, and the memory is at {address:#x}; take elements that \
             are aligned to {} bytes at most",
            std::any::type_name::<T>(),
            memory.granularity()
        )));
    }
    Ok(())
}

impl<T: Pod> GrowableBuffer<T> {
    #[track_caller]
    pub(super) fn new(
        mut memory: MappedMemory,
        stream: &Stream,
        len: usize,
    ) -> Result<Self, Failed<MappedMemory>> {
        // No closures here: the ledger would list their lines.
        let mut ready = require_room::<T>(&memory, len);
        if ready.is_ok() {
            ready = memory.ready_for(stream);
        }
        if let Err(error) = ready {
            return Err(Failed::new(error, memory));
        }
        let (address, device) = (memory.address(), memory.device());
        let memory = Arc::new(Lock::new(Some(memory)));
        let keep = Box::new(KeptMapping(Arc::clone(&memory)));
        // SAFETY: the memory is mapped there and accessible; it stays until the buffer tells its end, and the stream
        // is waited for then.
        let buffer = unsafe { DeviceBuffer::kept(stream, device, address, len, keep) };
        Ok(Self { buffer, memory })
    }

    /// The number of elements that the present memory can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.buffer.room()
    }

    /// The maximum number of elements at this address, with present and future memory.
    #[must_use]
    pub fn max_len(&self) -> usize {
        let memory = self.memory.lock_unless_forked();
        let reserved = memory.map_or(0, |memory| {
            memory.as_ref().map_or(0, MappedMemory::reserved_bytes)
        });
        (reserved as usize)
            .checked_div(size_of::<T>())
            .unwrap_or(usize::MAX)
    }

    /// Statistics of mappings and moves. See [`MappedMemory::migrations`].
    #[must_use]
    pub fn migrations(&self) -> MigrationStats {
        self.noted(MappedMemory::migrations)
    }

    /// The same for one location: what was mapped of its memory, and what was moved there. Memory that moves back and
    /// forth shows as growth of both counts. See [`MappedMemory::migrations_to`].
    ///
    /// ```
    /// use cuda_mem::Driver;
    /// use cuda_mem::driver::Location;
    /// use cuda_mem::mapped::MappedMemory;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let mut x = MappedMemory::builder(&device).build(1 << 20)?.into_buffer::<u8>(&stream, 100)?;
    /// x.move_memory_to(Location::HostNuma(0))?;
    /// assert_eq!(x.migrations_to(Location::HostNuma(0)).moves, 1);
    /// assert_eq!(x.migrations_to(Location::Device(device)).moves, 0);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[must_use]
    pub fn migrations_to(&self, place: Location) -> MigrationStats {
        self.noted(|memory| memory.migrations_to(place))
    }

    /// The statistics of the memory; zero in a forked process.
    fn noted(&self, ask: impl FnOnce(&MappedMemory) -> MigrationStats) -> MigrationStats {
        let memory = self.memory.lock_unless_forked();
        let migrations = memory.and_then(|memory| memory.as_ref().map(ask));
        migrations.unwrap_or_default()
    }

    fn own(&self) -> Result<Own<'_>> {
        Ok(Own(self.memory.lock()?))
    }

    /// All elements, to be written in the order of the stream, or of another one.
    ///
    /// It is not a `&mut` to the buffer inside, which could be used to exchange that for another: the buffer stays where
    /// its memory is.
    ///
    /// ```compile_fail,E0308
    /// # use cuda_mem::DeviceBuffer;
    /// # use cuda_mem::mapped::GrowableBuffer;
    /// # fn example(buffer: &mut GrowableBuffer<u8>, mut other: DeviceBuffer<u8>) {
    /// std::mem::swap(buffer, &mut other); // error: mismatched types
    /// # }
    /// ```
    pub fn as_mut_slice(&mut self) -> DeviceSliceMut<'_, T> {
        self.buffer.as_mut_slice()
    }

    /// See [`DeviceBuffer::set_stream`].
    ///
    /// # Errors
    ///
    /// The same errors.
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn set_stream(&mut self, other: &Stream) -> Result<()> {
        self.buffer.set_stream(other)
    }

    /// For operations that write in stream order. Callers must not replace the buffer by another one.
    pub(crate) fn inner(&mut self) -> &mut DeviceBuffer<T> {
        &mut self.buffer
    }

    /// Sets the number of elements; new ones contain whatever the memory holds. Memory is added if there is too
    /// little; none is released. Does not wait.
    ///
    /// # Errors
    ///
    /// As [`MappedMemory::grow_to`]. Nothing is changed then.
    #[track_caller]
    pub fn resize_uninit(&mut self, len: usize) -> Result<()> {
        let bytes = bytes_of::<T>(len)?;
        self.own()?.memory()?.grow_to(bytes as u64)?;
        self.buffer.set_len(len);
        Ok(())
    }

    /// Sets the number of elements; new ones are zeroed, in the order of the stream.
    ///
    /// # Errors
    ///
    /// As [`resize_uninit`](Self::resize_uninit), and as the driver answers.
    #[doc(alias = "cuMemsetD8Async")]
    #[track_caller]
    pub fn resize_zeroed(&mut self, len: usize) -> Result<()> {
        let before = self.buffer.len();
        self.resize_uninit(len)?;
        if len > before {
            let zeroed = self
                .buffer
                .slice_mut(before..)
                .and_then(|mut new| new.zero());
            if zeroed.is_err() {
                self.buffer.set_len(before);
            }
            return zeroed;
        }
        Ok(())
    }

    /// Appends the elements of a host slice; the address stays. Memory is added if there is too little: a whole number
    /// of [granules](MappedMemory::granularity), in bytes, in one piece. Synchronises the stream: the slice may be
    /// changed when this returns.
    ///
    /// # Errors
    ///
    /// As [`resize_uninit`](Self::resize_uninit), so [`InvalidValue`](crate::ErrorKind::InvalidValue) beyond what is
    /// [reserved](super::MappedMemoryBuilder::reserve); [`Capturing`](crate::ErrorKind::Capturing) on a stream that
    /// this crate captures; and as [`DeviceBuffer::copy_from`]. The elements are unchanged then. Memory that was added
    /// before the copy failed stays, as [`capacity`](Self::capacity).
    ///
    /// ```
    /// use cuda_mem::Driver;
    /// use cuda_mem::mapped::MappedMemory;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// // Addresses for 1 GiB, and as little memory as there can be.
    /// let memory = MappedMemory::builder(&device).reserve(1 << 30).build(1)?;
    /// let mut tokens = memory.into_buffer::<u32>(&stream, 0)?;
    /// let address = tokens.as_raw();
    ///
    /// for step in 0..3 {
    ///     tokens.extend_from_slice(&vec![step; 1 << 20])?; // 4 MiB each
    /// }
    /// assert_eq!((tokens.as_raw(), tokens.len()), (address, 3 << 20));
    /// assert_eq!(tokens.to_vec()?[(1 << 20) - 1..=1 << 20], [0, 1]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias("cuMemMap", "cuMemcpyHtoDAsync"))]
    #[track_caller]
    pub fn extend_from_slice(&mut self, from: &[T]) -> Result<()> {
        if from.is_empty() {
            return Ok(());
        }
        let before = self.buffer.len();
        let len = before.checked_add(from.len()).ok_or_else(|| {
            Error::invalid(format!(
                "{} elements more than {before} cannot be counted",
                from.len()
            ))
        })?;
        // Checked before memory is added for a copy that would be refused.
        let stream = self.buffer.stream();
        stream.as_ref().refuse_recorded()?;
        self.resize_uninit(len)?;
        let copied = self
            .buffer
            .slice_mut(before..)
            .and_then(|mut new| new.copy_from(from));
        if copied.is_err() {
            self.buffer.set_len(before);
        }
        copied
    }

    /// Zeroes all mapped bytes, including those beyond the elements, in the order of the stream.
    pub(crate) fn zero_all(&mut self) -> Result<()> {
        self.buffer.wait_for_pending_uses()?;
        let bytes = self.own()?.memory()?.mapped_bytes() as usize;
        let (stream, device) = (self.buffer.stream(), self.buffer.device());
        // SAFETY: so many bytes are mapped there, and the stream's device may write them. They are this buffer's alone,
        // and nobody else's stream uses them: that was waited for just now.
        let all = unsafe { Span::<u8>::new(self.buffer.as_raw(), bytes, stream, device) };
        all.fill_bytes(0)
    }

    /// Releases memory that the elements do not need, in the pieces in which it was added. Waits for the stream.
    ///
    /// # Errors
    ///
    /// Any driver error; the elements stay.
    #[doc(alias("cuMemUnmap", "cuMemRelease"))]
    pub fn shrink_to_fit(&mut self) -> Result<()> {
        self.finish()?;
        let bytes = self.buffer.size_bytes() as u64;
        let mut own = self.own()?;
        let memory = own.memory()?;
        let (shrunk, device) = (memory.shrink_to(bytes), memory.device());
        drop(own);
        self.buffer.set_device(device);
        shrunk
    }

    /// Moves the elements to memory of another location; the address stays. Waits for the stream.
    ///
    /// # Errors
    ///
    /// As [`MappedMemory::move_to`]. If memory is not mapped at the address after an error, its elements are hidden and
    /// the buffer is shorter. Unless the memory is lost, [`resize_uninit`](Self::resize_uninit) tries to map it again,
    /// and then the elements have their old contents.
    #[track_caller]
    pub fn move_memory_to(&mut self, location: Location) -> Result<()> {
        self.finish()?;
        let stream = self.buffer.stream().clone();
        let mut own = self.own()?;
        let memory = own.memory()?;
        let moved = memory.move_to(location, &stream);
        let (device, there) = (memory.device(), memory.mapped_bytes() as usize);
        drop(own);
        self.buffer.set_device(device);
        if moved.is_err()
            && let Some(shown) = there.checked_div(size_of::<T>())
        {
            self.buffer.set_len(self.buffer.len().min(shown));
        }
        moved
    }

    /// Waits until nothing uses the memory any more, as seen by the host.
    fn finish(&mut self) -> Result<()> {
        self.buffer.wait_for_pending_uses()?;
        self.buffer.stream().as_ref().wait_unless_captured()
    }

    /// The elements, for the host to read, if it is host memory to which the host has
    /// [access](super::MappedMemoryBuilder::accessible_from). Synchronises the buffer's stream, after it has waited for
    /// pending writes of other streams. While the slice is borrowed nothing writes to the buffer; devices may read it
    /// too.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) for other memory; otherwise any driver error.
    ///
    /// ```
    /// use cuda_mem::Driver;
    /// use cuda_mem::driver::Location;
    /// use cuda_mem::mapped::MappedMemory;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let memory = MappedMemory::builder_at(device.driver(), Location::HostNuma(0))
    ///     .accessible_from([Location::Device(device), Location::HostNuma(0)])
    ///     .build(1 << 20)?;
    /// let mut numbers = memory.into_buffer::<u32>(&stream, 100)?;
    /// numbers.as_mut_slice().fill(3)?;
    /// numbers.host_mut()?[0] = 4;
    /// assert_eq!(numbers.host()?[..2], [4, 3]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias("cuStreamSynchronize", "cuMemGetAccess"))]
    pub fn host(&self) -> Result<&[T]> {
        self.require_host(false)?;
        // SAFETY: the memory is this buffer's own, of the host, mapped with access for it, and whole pages. It stays so
        // while the buffer is borrowed. That its address is aligned for the elements was asked when the buffer was made.
        unsafe { self.buffer.host_slice() }
    }

    /// The elements, for the host to change. Synchronises the buffer's stream, after it has waited for other streams
    /// that still use the buffer. While the slice is borrowed no device uses the buffer.
    ///
    /// # Errors
    ///
    /// As [`host`](Self::host).
    #[doc(alias = "cuStreamSynchronize")]
    pub fn host_mut(&mut self) -> Result<&mut [T]> {
        self.require_host(true)?;
        // SAFETY: as in `host`.
        unsafe { self.buffer.host_slice_mut() }
    }

    fn require_host(&self, writes: bool) -> Result<()> {
        let mut own = self.own()?;
        let memory = own.memory()?;
        if memory.is_open_to_host(self.buffer.size_bytes() as u64, writes)? {
            return Ok(());
        }
        Err(Error::not_supported(format!(
            "the host does not reach {}; take memory of the host, give the host access, or copy",
            memory.in_words()
        )))
    }

    /// The same memory as a buffer of fixed size. The memory is released when that buffer is dropped, as with this one.
    #[must_use]
    pub fn into_buffer(self) -> DeviceBuffer<T> {
        self.buffer
    }

    /// A descriptor and a size in bytes for each of its [parts](MappedMemory::parts), in address order. Another process
    /// needs both: there `import_fd` of [`PhysicalMemory`](super::PhysicalMemory) and
    /// [`build_from`](super::MappedMemoryBuilder::build_from) make a buffer of them. Does not wait: the stream must have
    /// completed whatever the other process may read.
    ///
    /// # Errors
    ///
    /// As [`PhysicalMemory::export_fd`](super::PhysicalMemory::export_fd).
    #[cfg(target_os = "linux")]
    #[doc(alias = "cuMemExportToShareableHandle")]
    pub fn export_fds(&self) -> Result<Vec<(OwnedFd, u64)>> {
        let mut own = self.own()?;
        let parts = own.memory()?.parts();
        parts
            .map(|part| Ok((part.export_fd()?, part.size_bytes())))
            .collect()
    }

    /// A handle and a size in bytes for each of its [parts](MappedMemory::parts), in address order. Another process, into
    /// which the handles are duplicated, needs both: there `import_handle` of
    /// [`PhysicalMemory`](super::PhysicalMemory) and [`build_from`](super::MappedMemoryBuilder::build_from) make a buffer
    /// of them. Does not wait: the stream must have completed whatever the other process may read.
    ///
    /// # Errors
    ///
    /// As [`PhysicalMemory::export_handle`](super::PhysicalMemory::export_handle).
    #[cfg(windows)]
    #[doc(alias = "cuMemExportToShareableHandle")]
    pub fn export_handles(&self) -> Result<Vec<(OwnedHandle, u64)>> {
        let mut own = self.own()?;
        let parts = own.memory()?.parts();
        parts
            .map(|part| Ok((part.export_handle()?, part.size_bytes())))
            .collect()
    }

    /// Unmaps and frees the memory, as dropping does, and returns the result. Waits for the stream.
    ///
    /// # Errors
    ///
    /// Any driver error to the wait, and [`Capturing`](crate::ErrorKind::Capturing) while the stream is captured;
    /// the buffer comes back. If memory cannot be unmapped afterwards,
    /// [`on_drop_failure`](crate::base::on_drop_failure) is called.
    #[doc(alias("cuMemUnmap", "cuMemAddressFree", "cuMemRelease"))]
    pub fn free(self) -> Result<(), Failed<Self>> {
        let Self { buffer, memory } = self;
        let freed = buffer.free();
        freed.map_err(|failed| failed.map(|buffer| Self { buffer, memory }))
    }

    /// Waits for the stream, and returns the memory when all work with it is done.
    ///
    /// # Errors
    ///
    /// Any driver error; the buffer comes back.
    pub fn into_memory(mut self) -> Result<MappedMemory, Failed<Self>> {
        let taken = self
            .finish()
            .and_then(|()| self.own()?.0.take().ok_or_else(Error::memory_in_use));
        match taken {
            // The buffer no longer has anything to release.
            Ok(memory) => Ok(memory),
            Err(error) => Err(Failed::new(error, self)),
        }
    }
}

impl<T: Pod> Deref for GrowableBuffer<T> {
    type Target = DeviceBuffer<T>;

    fn deref(&self) -> &DeviceBuffer<T> {
        &self.buffer
    }
}

impl<T: Pod> DeviceMemoryMut for GrowableBuffer<T> {
    fn as_mut_slice(&mut self) -> DeviceSliceMut<'_, T> {
        self.buffer.as_mut_slice()
    }
}

impl<T: Pod> fmt::Debug for GrowableBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = self.memory.lock_unless_forked();
        let memory = memory.as_ref().and_then(|memory| memory.as_ref());
        f.debug_struct("GrowableBuffer")
            .field("buffer", &self.buffer)
            .field("memory", &memory)
            .finish()
    }
}
