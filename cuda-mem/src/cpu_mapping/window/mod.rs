//! CPU mappings: processor loads and stores on GPU memory.

mod choice;
#[cfg(target_os = "linux")]
mod dma_buf;
mod kind;
mod memory;
mod mmio;
mod open;
mod options;
mod staged;
mod view;

pub use choice::{CpuMappingChoice, CpuMappingInfo};
pub use kind::{CpuMappingKind, CpuMappingReason, MappingKind};
pub use options::{CpuMappingOptions, Mappable};

use std::cell::RefCell;
use std::fmt;
use std::ops::Range;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;
use cuda_driver_sys::gdr::gdr_info_v2_t;

use crate::base::error::{Error, Result};
use crate::ledger::{self, Item, LedgerKind};
use crate::memory::buffer::DeviceBuffer;
use staged::Staged;
use view::{Backend, View};

/// Elements of a buffer that the host loads and stores directly, immediately and in no stream order: flags that a
/// running kernel polls, doorbells, small messages and parameters.
///
/// There are several kinds of mapping ([`CpuMappingKind`]). The best available kind is taken; [`choice`](Self::choice)
/// tells which one, and why the others were not.
///
/// ```
/// use cuda_mem::Driver;
/// use cuda_mem::cpu_mapping::CpuMappingOptions;
///
/// # cuda_sim::use_if_no_driver();
/// let stream = Driver::load()?.device(0)?.primary_context()?.stream()?;
/// let options = CpuMappingOptions::new();
/// let mut mailbox = options.alloc::<u64>(&stream, 512)?;
///
/// let mut mapping = options.open(&mut mailbox)?;
/// mapping.store(0, 1)?;                // one store of 8 bytes
/// mapping.write(8, &[2, 3, 4])?;       // streaming stores
/// mapping.flush()?;                    // now the device has them
/// let mut seen = [0; 3];
/// mapping.read(8, &mut seen)?;
/// assert_eq!((mapping.load(0)?, seen), (1, [2, 3, 4]));
/// mapping.close()?;
///
/// assert_eq!(mailbox.to_vec()?[8..11], [2, 3, 4]);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
///
/// **Order.** Opening waits for the streams that use the buffer. After that the mapping and the device are not
/// synchronised. Work submitted after a write sees it. A running kernel sees it eventually, in no guaranteed order and,
/// beyond one aligned element of up to 8 bytes, not atomically. Write the message first, then the flag that announces
/// it.
///
/// **Waiting.** Loads and stores wait for nothing. A copy, by a mapping of kind [`Copies`](CpuMappingKind::Copies) or
/// beyond a [limit](CpuMappingOptions::write_limit), waits only for its own completion. Copies use a stream and 64 KiB
/// of pinned memory. They are created when a mapping of that kind opens or at the first copy beyond a limit, which may
/// wait for a running kernel. The context keeps them for the next mapping.
///
/// **Errors.** Every access outside the mapping is refused. Direct loads and stores cannot fail otherwise. Copies, by a
/// mapping of kind [`Copies`](CpuMappingKind::Copies) or beyond a limit, return the driver's errors.
///
/// Mappings do not exist in a fork: using one there ends the process.
///
/// The buffer is borrowed while the mapping is open, so its memory cannot be freed meanwhile (gdrcopy's
/// `invalidation_access_after_free`):
///
/// ```compile_fail,E0505
/// # use cuda_mem::DeviceBuffer;
/// # use cuda_mem::cpu_mapping::CpuMappingOptions;
/// # fn example(mut buffer: DeviceBuffer<u32>) -> Result<(), cuda_mem::Error> {
/// let mut mapping = CpuMappingOptions::new().open(&mut buffer)?;
/// drop(buffer); // error: it is borrowed
/// mapping.store(0, 1)?;
/// # Ok(())
/// # }
/// ```
///
/// and a closed mapping cannot be used any more (`invalidation_access_after_gdr_close`):
///
/// ```compile_fail,E0382
/// # use cuda_mem::DeviceBuffer;
/// # use cuda_mem::cpu_mapping::CpuMappingOptions;
/// # fn example(mut buffer: DeviceBuffer<u32>) -> Result<(), cuda_mem::Error> {
/// let mut mapping = CpuMappingOptions::new().open(&mut buffer)?;
/// mapping.close()?;
/// mapping.store(0, 1)?; // error: use of moved value
/// # Ok(())
/// # }
/// ```
///
/// Kernels get the buffer from [`buffer`](Self::buffer).
pub struct CpuMapping<'a, T: Pod> {
    /// `None` for copies and for empty mappings. Unmapped before the borrow of the memory ends.
    view: Option<View>,
    /// Created when the mapping opens if its kind is copies, otherwise on first use.
    copies: RefCell<Option<Staged>>,
    buffer: &'a mut DeviceBuffer<T>,
    elements: Range<usize>,
    choice: CpuMappingChoice,
    write_limit: usize,
    read_limit: usize,
}

impl<T: Pod> CpuMapping<'_, T> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// Number of bytes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.len() * size_of::<T>()
    }

    /// Device address of the first element.
    #[must_use]
    pub fn address(&self) -> CUdeviceptr {
        self.buffer.as_raw() + (self.elements.start * size_of::<T>()) as u64
    }

    /// The buffer, for kernels and copies while the mapping is open.
    #[must_use]
    pub fn buffer(&self) -> &DeviceBuffer<T> {
        self.buffer
    }

    /// The kind of this mapping.
    #[must_use]
    pub fn kind(&self) -> CpuMappingKind {
        self.choice.kind().unwrap_or(CpuMappingKind::Copies)
    }

    /// The kind of this mapping, and why the other kinds were not taken.
    #[must_use]
    pub fn choice(&self) -> &CpuMappingChoice {
        &self.choice
    }

    /// How the processor treats accesses; `None` for copies.
    #[must_use]
    pub fn mapping(&self) -> Option<MappingKind> {
        self.view.as_ref().map(View::kind)
    }

    /// Stores one element, with one store if its address is a multiple of its size. The store has left the processor
    /// when this returns, but may still be on the bus; see [`flush`](Self::flush). Elements have 1, 2, 4 or 8 bytes;
    /// others do not compile. A mapping of kind copies waits for its copy.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for an element outside the mapping. For a mapping of kind copies
    /// also any driver error.
    #[inline]
    pub fn store(&mut self, index: usize, value: T) -> Result<()> {
        let offset = self.offset(index, 1)?;
        match &mut self.view {
            Some(view) => {
                view.store(offset, value);
                Ok(())
            }
            None => self.write_by_copy(offset, bytemuck::bytes_of(&value)),
        }
    }

    /// Loads one element, with one load if its address is a multiple of its size. Otherwise as [`store`](Self::store).
    ///
    /// # Errors
    ///
    /// As [`store`](Self::store).
    #[inline]
    pub fn load(&self, index: usize) -> Result<T> {
        let offset = self.offset(index, 1)?;
        if let Some(view) = &self.view {
            return Ok(view.load(offset));
        }
        let mut value = T::zeroed();
        self.read_by_copy(offset, bytemuck::bytes_of_mut(&mut value))?;
        Ok(value)
    }

    /// Writes elements from index `start` on: by streaming stores, or by a driver copy beyond the
    /// [limit](CpuMappingOptions::write_limit). All stores have left the processor when this returns.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for elements outside the mapping; then nothing is copied. For a
    /// driver copy also any driver error; then a part may have been copied.
    pub fn write(&mut self, start: usize, from: &[T]) -> Result<()> {
        self.write_bytes_at(self.offset(start, from.len())?, bytemuck::cast_slice(from))
    }

    /// Reads elements from index `start` on: by streaming loads, or by a driver copy beyond the
    /// [limit](CpuMappingOptions::read_limit).
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn read(&self, start: usize, to: &mut [T]) -> Result<()> {
        self.read_bytes_at(self.offset(start, to.len())?, bytemuck::cast_slice_mut(to))
    }

    /// As [`write`](Self::write), from any byte offset.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn write_bytes(&mut self, offset: usize, from: &[u8]) -> Result<()> {
        self.write_bytes_at(self.within(offset, from.len())?, from)
    }

    /// As [`read`](Self::read), from any byte offset.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_bytes(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        self.read_bytes_at(self.within(offset, to.len())?, to)
    }

    /// Returns when everything written has arrived in memory. It makes one load after the stores, whose result cannot
    /// overtake them. Does nothing for host memory and for copies.
    ///
    /// # Errors
    ///
    /// None today.
    pub fn flush(&mut self) -> Result<()> {
        if let Some(view) = &mut self.view {
            view.flush();
        }
        Ok(())
    }

    /// What gdrcopy reports about the memory that it pinned; `None` for other kinds.
    ///
    /// # Errors
    ///
    /// Any error that the library reports.
    #[doc(alias("gdr_get_info", "gdr_get_info_v2"))]
    pub fn gdr_info(&self) -> Result<Option<gdr_info_v2_t>> {
        self.pinned().map(|mapping| mapping.info()).transpose()
    }

    /// Whether the driver revoked gdrcopy's mapping. It does so when the memory is freed, which cannot happen while
    /// this mapping is open. `false` for other kinds.
    ///
    /// # Errors
    ///
    /// Any error that the library reports.
    #[doc(alias = "gdr_get_callback_flag")]
    pub fn is_revoked(&self) -> Result<bool> {
        self.pinned()
            .map_or(Ok(false), |mapping| mapping.is_revoked())
    }

    fn pinned(&self) -> Option<&crate::cpu_mapping::gdr::GdrMapping> {
        match self.view.as_ref()?.backend() {
            Backend::Gdr(mapping) => Some(mapping),
            _ => None,
        }
    }

    /// Closes the mapping, as dropping it does, and returns any error. Waits for nothing, unless the mapping used
    /// driver copies and the context already keeps the stages of eight others.
    ///
    /// # Errors
    ///
    /// Any error of unmapping and unpinning; the mapping is closed nevertheless.
    #[doc(alias("gdr_unmap", "gdr_unpin_buffer"))]
    pub fn close(mut self) -> Result<()> {
        self.view.take().map_or(Ok(()), View::close)
    }

    /// Byte offset of element `start`, if `len` elements from there lie in the mapping.
    #[inline]
    fn offset(&self, start: usize, len: usize) -> Result<usize> {
        match start.checked_add(len) {
            Some(end) if end <= self.len() => Ok(start * size_of::<T>()),
            _ => Err(outside("elements", start, len, self.len())),
        }
    }

    fn within(&self, offset: usize, len: usize) -> Result<usize> {
        match offset.checked_add(len) {
            Some(end) if end <= self.size_bytes() => Ok(offset),
            _ => Err(outside("bytes", offset, len, self.size_bytes())),
        }
    }

    fn write_bytes_at(&mut self, offset: usize, from: &[u8]) -> Result<()> {
        match &mut self.view {
            Some(view) if from.len() <= self.write_limit => {
                view.write(offset, from);
                Ok(())
            }
            _ => self.write_by_copy(offset, from),
        }
    }

    fn read_bytes_at(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        match &self.view {
            Some(view) if to.len() <= self.read_limit => {
                view.read(offset, to);
                Ok(())
            }
            _ => self.read_by_copy(offset, to),
        }
    }

    fn write_by_copy(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.by_copy(from.len(), |copies| {
            // SAFETY: the range is within the buffer, whose memory is valid: the host waited for the earlier work.
            unsafe { copies.write(self.address() + offset as u64, from) }
        })
    }

    fn read_by_copy(&self, offset: usize, to: &mut [u8]) -> Result<()> {
        self.by_copy(to.len(), |copies| {
            // SAFETY: as above.
            unsafe { copies.read(self.address() + offset as u64, to) }
        })
    }

    /// Calls the driver only for at least one byte.
    fn by_copy(&self, bytes: usize, copy: impl FnOnce(&mut Staged) -> Result<()>) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let mut copies = self.copies.borrow_mut();
        if let Some(copies) = &mut *copies {
            return copy(copies);
        }
        copy(copies.insert(self.stage()?))
    }

    fn stage(&self) -> Result<Staged> {
        Staged::new(
            self.buffer.stream().context(),
            self.buffer.device().is_some(),
        )
    }

    fn item(&self) -> Item {
        let stream = self.buffer.stream();
        Item::new(LedgerKind::CpuMapping, self.address())
            .of(stream.device().driver())
            .on(self.buffer.device())
    }
}

#[cold]
fn outside(what: &str, start: usize, len: usize, all: usize) -> Error {
    Error::invalid(format!(
        "{len} {what} from {start} on are not in a window of {all}"
    ))
}

impl<T: Pod> Drop for CpuMapping<'_, T> {
    fn drop(&mut self) {
        ledger::remove(&self.item());
    }
}

impl<T: Pod> fmt::Debug for CpuMapping<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CpuMapping")
            .field("kind", &self.kind())
            .field("mapping", &self.mapping())
            .field("elements", &self.elements)
            .field("buffer", &self.buffer)
            .finish()
    }
}

// Its parts are owned or borrowed exclusively, and not tied to a thread. Not `Sync`: copies share their staging memory,
// and two threads storing to one element would race.
const _: () = {
    const fn assert<T: Send>() {}
    assert::<CpuMapping<'_, u8>>();
};
