//! The simulated memory: address space from the operating system, and its bytes.

use std::ffi::c_int;
use std::os::fd::OwnedFd;

use cuda_driver_sys::CUresult;

use crate::export::Answer;
use crate::ipc::{Backing, SharedFile};
use crate::pieces::{Bases, Part, Pieces, pause};

/// A multiple of the page size of every supported machine.
const PAGE: u64 = 64 << 10;

/// A range of address space, released when dropped. Costs nothing until [`Mapping::commit`].
#[derive(Debug)]
pub(crate) struct Mapping {
    base: u64,
    len: u64,
    /// The file that other processes may map; `None` for unshareable memory.
    backing: Option<Backing>,
    /// Parts that others map in other ways, by offset.
    pieces: Pieces,
}

impl Mapping {
    /// Reserves address space without memory.
    pub(crate) fn reserve(len: u64) -> Answer<Self> {
        let len = len.max(1).next_multiple_of(PAGE);
        let size = usize::try_from(len).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Self {
            base: map(
                size,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
            )?,
            len,
            backing: None,
            pieces: Pieces::default(),
        })
    }

    /// As [`Mapping::reserve`], as long as its future backing file.
    pub(crate) fn shared(backing: Backing) -> Answer<Self> {
        let (len, number) = (backing.file.len(), backing.file.number());
        let size = usize::try_from(len).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(Self {
            base: map(size, libc::PROT_NONE, libc::MAP_SHARED, number)?,
            len,
            backing: Some(backing),
            pieces: Pieces::default(),
        })
    }

    /// Maps a whole file, which need not stay open.
    pub(crate) fn of_file(file: &SharedFile) -> Answer<Self> {
        let size = usize::try_from(file.len()).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        Ok(Self {
            base: map(size, access, libc::MAP_SHARED, file.number())?,
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
        let start = mapping.base.next_multiple_of(step);
        mapping.commit(start - mapping.base, len)?;
        Ok((mapping, start))
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        (self.base..self.base + self.len).contains(&address)
    }

    /// Makes a part accessible. The system provides the pages on first access.
    pub(crate) fn commit(&self, offset: u64, len: u64) -> Answer {
        // SAFETY: the range lies in this mapping, which only the simulator uses.
        let status = unsafe {
            libc::mprotect(
                pointer(self.at(offset, len)?),
                len as usize,
                libc::PROT_READ | libc::PROT_WRITE,
            )
        };
        if status == 0 {
            Ok(())
        } else {
            Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
        }
    }

    /// Releases the pages of a part, which then reads as zero. It stays accessible, so that a program with an ordering
    /// bug gets a sanitizer report and not a signal.
    ///
    /// Others that map a part of it keep its bytes, and do not see what comes there later.
    pub(crate) fn discard(&mut self, offset: u64, len: u64) {
        for (offset, len) in self.pieces.carve(offset, len) {
            self.renew(offset, len);
        }
        if let Some(backing) = &self.backing {
            return backing.discard(offset, len);
        }
        let Ok(address) = self.at(offset, len) else {
            return;
        };
        // SAFETY: the range lies in this mapping, whose pages are anonymous and private, so the advice changes no other
        // memory. A failure keeps the pages, which is harmless.
        unsafe { libc::madvise(pointer(address), len as usize, libc::MADV_DONTNEED) };
    }

    /// Replaces a file with fresh memory.
    fn renew(&self, offset: u64, len: u64) {
        let Ok(address) = self.at(offset, len) else {
            return;
        };
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: the range lies in this mapping, and no reference to it exists. A failure keeps the old content, which
        // is harmless.
        unsafe { libc::mmap(pointer(address), len as usize, access, kind, -1, 0) };
    }

    /// A file of exactly `len` bytes of this memory from an address on: see [`Pieces::whole`].
    pub(crate) fn whole(&mut self, address: u64, len: u64) -> Answer<OwnedFd> {
        let offset = self.offset_of(address, len)?;
        let _pause = pause();
        self.pieces.whole(Bases(&[self.base]), offset, len)
    }

    /// As much of this memory from an address on as one file covers: see [`Pieces::part`].
    pub(crate) fn part(&mut self, address: u64, len: u64) -> Answer<Part> {
        let offset = self.offset_of(address, len)?;
        let _pause = pause();
        self.pieces.part(Bases(&[self.base]), offset, len)
    }

    /// Offset in the mapping. NOT_SUPPORTED if the memory is already file-backed: a limit of the simulator.
    fn offset_of(&self, address: u64, len: u64) -> Answer<u64> {
        if self.backing.is_some() {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let offset = address.checked_sub(self.base);
        let offset = offset.ok_or(CUresult::CUDA_ERROR_UNKNOWN)?;
        self.at(offset, len)?;
        Ok(offset)
    }

    fn at(&self, offset: u64, len: u64) -> Answer<u64> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.base + offset),
            _ => Err(CUresult::CUDA_ERROR_UNKNOWN),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and is dropped only when no queue can access it any more.
        unsafe { libc::munmap(pointer(self.base), self.len as usize) };
    }
}

/// Maps new address space at an address of the system's choice.
pub(crate) fn map(len: usize, access: c_int, kind: c_int, file: c_int) -> Answer<u64> {
    let kind = kind | libc::MAP_NORESERVE;
    // SAFETY: a new mapping; no existing memory changes.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), len, access, kind, file, 0) };
    if base == libc::MAP_FAILED {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    Ok(base.expose_provenance() as u64)
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

    #[test]
    fn what_others_map_is_theirs_once_it_is_discarded() {
        let mut mapping = Mapping::reserve(4 * PAGE).expect("address space");
        mapping.commit(0, 4 * PAGE).expect("memory");
        let address = mapping.base() + PAGE;
        bytes::fill(address, 5_u8, 2 * PAGE as usize);
        let file = mapping.whole(address, 2 * PAGE).expect("a file");
        mapping.discard(0, 2 * PAGE);
        assert_eq!(&bytes::read(address, 1)[..], [0]);
        assert_eq!(&bytes::read(address + PAGE, 1)[..], [5]);
        bytes::fill(address, 6_u8, 1);
        let mut seen = [0];
        let file = std::fs::File::from(file);
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut seen, 0).expect("a byte");
        assert_eq!(seen, [5]);
        assert!(mapping.whole(address, 4 * PAGE).is_err(), "past the end");
    }
}
