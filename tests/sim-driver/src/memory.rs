//! The simulated memory: address space from the operating system, and its bytes.

use cuda_driver_sys::CUresult;

use crate::export::Answer;
use crate::ipc::Backing;
use crate::pieces::Pieces;
use crate::system::{Range, SharedFile};

/// A multiple of the page size of every supported machine.
const PAGE: u64 = 64 << 10;

/// Memory of a driver that is as long as this begins at a multiple of it.
pub(crate) const LARGE_PAGE: u64 = 2 << 20;

/// A range of address space, released when dropped. Costs nothing until [`Mapping::commit`].
#[derive(Debug)]
pub(crate) struct Mapping {
    range: Range,
    len: u64,
    /// The file that other processes may map; `None` for unshareable memory.
    backing: Option<Backing>,
    /// Parts that others map in other ways, by offset.
    pub(crate) pieces: Pieces,
}

impl Mapping {
    /// Reserves address space without memory.
    pub(crate) fn reserve(len: u64) -> Answer<Self> {
        let len = len.max(1).next_multiple_of(PAGE);
        let size = usize::try_from(len).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Self {
            range: Range::reserve(size)?,
            len,
            backing: None,
            pieces: Pieces::default(),
        })
    }

    /// As [`Mapping::reserve`], as long as its future backing file.
    pub(crate) fn shared(backing: Backing) -> Answer<Self> {
        Ok(Self {
            range: backing.file.map(false)?,
            len: backing.file.len(),
            backing: Some(backing),
            pieces: Pieces::default(),
        })
    }

    /// Maps a whole file, which need not stay open.
    pub(crate) fn of_file(file: &SharedFile) -> Answer<Self> {
        Ok(Self {
            range: file.map(true)?,
            len: file.len(),
            backing: None,
            pieces: Pieces::default(),
        })
    }

    /// The file that other processes may import.
    pub(crate) fn backing(&mut self) -> Option<&mut Backing> {
        self.backing.as_mut()
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Address space with memory, aligned to `step`, and its start. Only `len` bytes from there are memory.
    pub(crate) fn allocate_aligned(len: u64, step: u64) -> Answer<(Self, u64)> {
        let len = len.max(1).next_multiple_of(PAGE);
        let mapping = Self::reserve(len + step)?;
        let start = mapping.base().next_multiple_of(step);
        mapping.commit(start - mapping.base(), len)?;
        Ok((mapping, start))
    }

    pub(crate) fn base(&self) -> u64 {
        self.range.base()
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        (self.base()..self.base() + self.len).contains(&address)
    }

    /// Makes a part accessible. The system provides the pages on first access.
    pub(crate) fn commit(&self, offset: u64, len: u64) -> Answer {
        self.range.commit(self.at(offset, len)?, len as usize)
    }

    /// Releases the pages of a part, which then reads as zero. It stays accessible, so that a program with an ordering
    /// bug gets a sanitizer report and not a signal.
    ///
    /// Others that map a part of it keep its bytes, and do not see what comes there later.
    pub(crate) fn discard(&mut self, offset: u64, len: u64) {
        self.pieces.carve_from(&self.range, offset, len);
        if let Some(backing) = &self.backing {
            return backing.discard(&self.range, offset, len);
        }
        if let Ok(address) = self.at(offset, len) {
            self.range.discard(address, len as usize);
        }
    }

    pub(crate) fn at(&self, offset: u64, len: u64) -> Answer<u64> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.base() + offset),
            _ => Err(CUresult::CUDA_ERROR_UNKNOWN),
        }
    }
}

pub(crate) fn pointer<T>(address: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Reads and writes simulated memory. Addresses are checked at submission; host addresses are the program's, as with
/// the real driver.
pub(crate) mod bytes {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    use super::pointer;

    pub(crate) fn copy(to: u64, from: u64, len: usize) {
        // SAFETY: both ranges were checked against the allocations at submission, or are host memory that the program
        // keeps valid until the copy is done. Nothing in the simulator holds a reference to them.
        unsafe { std::ptr::copy(pointer::<u8>(from).cast_const(), pointer::<u8>(to), len) };
    }

    pub(crate) fn write(to: u64, bytes: &[u8]) {
        // SAFETY: as in `copy`; the simulator owns `bytes`.
        unsafe { std::ptr::copy(bytes.as_ptr(), pointer::<u8>(to), bytes.len()) };
    }

    /// Reads bytes at an address of the program.
    pub(crate) fn read(from: u64, len: usize) -> Box<[u8]> {
        let mut bytes = vec![0; len].into_boxed_slice();
        // SAFETY: as in `copy`; the target is new and exactly `len` long.
        unsafe { std::ptr::copy(pointer::<u8>(from).cast_const(), bytes.as_mut_ptr(), len) };
        bytes
    }

    /// Adds numbers one by one; the ranges may coincide.
    pub(crate) fn add(sum: u64, left: u64, right: u64, count: usize) {
        let number = |base: u64, index: usize| pointer::<f32>(base).wrapping_add(index);
        for index in 0..count {
            // SAFETY: as in `copy`; the alignment was checked at submission.
            let left = unsafe { number(left, index).read() };
            // SAFETY: as above.
            let right = unsafe { number(right, index).read() };
            // SAFETY: as above.
            unsafe { number(sum, index).write(left + right) };
        }
    }

    /// `value` must be an integer.
    pub(crate) fn fill<T: Copy>(to: u64, value: T, count: usize) {
        // SAFETY: as in `copy`; the address is a multiple of the size of `T`, checked at submission as by the driver.
        let range = unsafe {
            std::slice::from_raw_parts_mut(pointer::<std::mem::MaybeUninit<T>>(to), count)
        };
        // SAFETY: an integer of these bytes, without padding.
        let bytes =
            unsafe { std::slice::from_raw_parts((&raw const value).cast::<u8>(), size_of::<T>()) };
        match bytes {
            // Without optimisation this is much faster than a fill by elements.
            [first, others @ ..] if others.iter().all(|other| other == first) => {
                // SAFETY: the same range, whose bytes may have any value.
                unsafe {
                    range
                        .as_mut_ptr()
                        .cast::<u8>()
                        .write_bytes(*first, size_of_val(range))
                };
            }
            _ => range.fill(std::mem::MaybeUninit::new(value)),
        }
    }

    /// Waits until the word is stored there; `false` after `patience`.
    pub(crate) fn wait_for(at: u64, word: u32, patience: Duration) -> bool {
        let start = Instant::now();
        loop {
            // SAFETY: as in `fill`; the host may store there concurrently, with one store.
            if unsafe { atomic(at) }.load(Ordering::Acquire) == word {
                return true;
            }
            if start.elapsed() >= patience {
                return false;
            }
            // The thread that stores it may need this processor.
            std::thread::yield_now();
        }
    }

    /// Stores a word that a waiter polls.
    pub(crate) fn tell(at: u64, word: u32) {
        // SAFETY: as in `wait_for`.
        unsafe { atomic(at) }.store(word, Ordering::Release);
    }

    /// # Safety
    ///
    /// The address is that of a word in simulated memory, and a multiple of 4.
    unsafe fn atomic<'a>(at: u64) -> &'a AtomicU32 {
        // SAFETY: the caller's promises.
        unsafe { AtomicU32::from_ptr(pointer(at)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_can_begin_at_a_multiple() {
        let (mapping, start) = Mapping::allocate_aligned(5, 2 << 20).expect("memory");
        assert!(start.is_multiple_of(2 << 20) && mapping.contains(start + 4));
        bytes::fill(start, 7_u8, 5);
        assert_eq!(&bytes::read(start, 6)[..], [7, 7, 7, 7, 7, 0]);
    }

    #[test]
    fn reserved_memory_is_there_once_committed_and_zero_once_discarded() {
        let mut mapping = Mapping::reserve(1 << 30).expect("address space");
        mapping.commit(PAGE, PAGE).expect("memory");
        let address = mapping.base() + PAGE;
        bytes::fill(address, 0x0102_0304_u32, 4);
        assert_eq!(&bytes::read(address, 5)[..], [4, 3, 2, 1, 4]);
        bytes::copy(address + 1, address, 8);
        assert_eq!(&bytes::read(address, 3)[..], [4, 4, 3]);
        mapping.discard(PAGE, PAGE);
        assert_eq!(&bytes::read(address, 2)[..], [0, 0]);
        assert!(mapping.commit(1 << 30, PAGE).is_err());
    }
}
