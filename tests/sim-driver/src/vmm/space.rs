//! The address space of reservations, and the file of physical memory: the operating-system part.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use cuda_driver_sys::CUresult;

use crate::export::Answer;
use crate::ipc::SharedFile;
use crate::memory::{map, pointer};

/// The process's addresses that belong to reservations. It has its own lock, never taken before that of the state:
/// running streams hold it, so that nothing is unmapped while they use it.
static SPACE: RwLock<Space> = RwLock::new(Space {
    reserved: BTreeMap::new(),
    mapped: BTreeMap::new(),
});

/// Ranges by start, with their ends.
#[derive(Debug)]
struct Space {
    reserved: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, u64>,
}

fn write() -> RwLockWriteGuard<'static, Space> {
    SPACE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps work from touching mapped memory while it lives. Waits for running work.
pub(super) fn pause() -> impl Drop {
    write()
}

impl Space {
    /// Whether a range overlaps no reservation.
    fn is_elsewhere(&self, start: u64, end: u64) -> bool {
        let before = self.reserved.range(..end).next_back();
        before.is_none_or(|(_, reserved)| *reserved <= start)
    }

    /// Whether every byte of a range is mapped.
    fn is_mapped(&self, start: u64, end: u64) -> bool {
        let mut at = start;
        while at < end {
            match self.mapped.range(..=at).next_back() {
                Some((_, mapped)) if *mapped > at => at = *mapped,
                _ => return false,
            }
        }
        true
    }
}

/// Prevents mapping and unmapping while it lives.
#[derive(Debug)]
pub(crate) struct Hold(#[expect(dead_code, reason = "held")] RwLockReadGuard<'static, Space>);

/// Keeps these ranges (start and length) unchanged while work uses them. `Err` is the start of one that is reserved but
/// not mapped. Only holders of ranges in reservations block others.
pub(crate) fn hold(ranges: &[(u64, usize)]) -> Result<Option<Hold>, u64> {
    let space = SPACE.read().unwrap_or_else(PoisonError::into_inner);
    let mut is_needed = false;
    for &(start, len) in ranges {
        let end = start.saturating_add(len as u64);
        if !space.is_elsewhere(start, end) {
            is_needed = true;
            if !space.is_mapped(start, end) {
                return Err(start);
            }
        }
    }
    Ok(is_needed.then_some(Hold(space)))
}

/// Reserved addresses, released when dropped. Cost nothing until something is mapped there.
#[derive(Debug)]
pub(crate) struct Addresses {
    base: u64,
    len: u64,
}

impl Addresses {
    /// Reserves `len` bytes aligned to `align`, at `hint` if possible.
    pub(crate) fn reserve(len: u64, align: u64, hint: u64) -> Answer<Self> {
        let size = |len: u64| usize::try_from(len).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let mut space = write();
        if hint != 0
            && hint.is_multiple_of(align)
            && let Some(base) = reserve_at(hint, size(len)?)
        {
            space.reserved.insert(base, base + len);
            return Ok(Self { base, len });
        }
        let wide = len
            .checked_add(align)
            .ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let found = map(size(wide)?, libc::PROT_NONE, kind, -1)?;
        let base = found.next_multiple_of(align);
        let (before, behind) = (base - found, found + wide - (base + len));
        for (start, len) in [(found, before), (base + len, behind)] {
            if len > 0 {
                // SAFETY: a part of the mapping just created, which nothing else uses.
                unsafe { libc::munmap(pointer(start), len as usize) };
            }
        }
        space.reserved.insert(base, base + len);
        Ok(Self { base, len })
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    fn contains(&self, at: u64, len: u64) -> bool {
        let end = at.checked_add(len);
        at >= self.base && end.is_some_and(|end| end <= self.base + self.len)
    }

    /// Maps a part of the memory to a part of the addresses.
    pub(crate) fn map(&self, at: u64, len: u64, (file, offset): (c_int, u64)) -> Answer {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let mut space = write();
        self.replace(at, len, access, kind, (file, offset.cast_signed()))?;
        space.mapped.insert(at, at + len);
        Ok(())
    }

    /// Removes one mapping, once no running work uses it. Later work finds nothing there.
    pub(crate) fn unmap(&self, at: u64, len: u64) -> Answer {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let mut space = write();
        space.mapped.remove(&at);
        self.replace(at, len, libc::PROT_NONE, kind, (-1, 0))
    }

    /// The caller holds the lock on the space.
    fn replace(
        &self,
        at: u64,
        len: u64,
        access: i32,
        kind: i32,
        (file, offset): (i32, i64),
    ) -> Answer {
        if !self.contains(at, len) {
            return Err(CUresult::CUDA_ERROR_UNKNOWN);
        }
        let kind = kind | libc::MAP_FIXED;
        let place = pointer(at);
        // SAFETY: the range lies in addresses that only this value hands out; the simulator holds no reference to them,
        // and no work runs there, because the caller holds the lock on the space.
        let base = unsafe { libc::mmap(place, len as usize, access, kind, file, offset) };
        if base == libc::MAP_FAILED {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        base.expose_provenance();
        Ok(())
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        let mut space = write();
        space.reserved.remove(&self.base);
        let end = self.base + self.len;
        space
            .mapped
            .retain(|start, _| !(self.base..end).contains(start));
        // SAFETY: this value owns the addresses, and is dropped only when no queue can reach them any more.
        unsafe { libc::munmap(pointer(self.base), self.len as usize) };
    }
}

/// Reserves address space at exactly this address, unless it is occupied.
fn reserve_at(hint: u64, len: usize) -> Option<u64> {
    let kind =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a new mapping, which replaces nothing.
    let base = unsafe { libc::mmap(pointer(hint), len, libc::PROT_NONE, kind, -1, 0) };
    if base == libc::MAP_FAILED {
        return None;
    }
    let found = base.expose_provenance() as u64;
    if found == hint {
        return Some(found);
    }
    // Systems that do not know the flag treat the address as a hint.
    // SAFETY: the mapping just created.
    unsafe { libc::munmap(base, len) };
    None
}

/// Location of the bytes of physical memory.
#[derive(Debug)]
pub(crate) enum Bytes {
    /// At this offset in the common file.
    Part(u64),
    /// In its own file, which other processes may open.
    Shared(SharedFile),
}

/// The bytes of all unshared physical memory: one file, so that the number of open files is no limit. Each allocation
/// has its own part, which is never reused.
#[derive(Debug)]
pub(crate) struct Memory {
    file: File,
    len: u64,
}

impl Memory {
    pub(crate) fn new() -> Answer<Self> {
        // SAFETY: the name is a zero-terminated literal.
        let number =
            unsafe { libc::memfd_create(c"cuda-sim physical".as_ptr(), libc::MFD_CLOEXEC) };
        if number < 0 {
            return Err(CUresult::CUDA_ERROR_OPERATING_SYSTEM);
        }
        // SAFETY: the system has just created it for this call.
        let file = unsafe { File::from_raw_fd(number) };
        Ok(Self { file, len: 0 })
    }

    pub(crate) fn number(&self) -> c_int {
        self.file.as_raw_fd()
    }

    /// The offset of a new part, zero until written.
    pub(crate) fn take(&mut self, len: u64) -> Answer<u64> {
        let offset = self.len;
        self.file
            .set_len(offset + len)
            .map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        self.len = offset + len;
        Ok(offset)
    }

    /// Releases the pages of a part.
    pub(crate) fn give_back(&self, offset: u64, len: u64) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (offset, len) = (offset.cast_signed(), len.cast_signed());
        // SAFETY: no pointers. A failure keeps the pages, which is harmless: they are never mapped again.
        unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::bytes;

    const STEP: u64 = 2 << 20;

    #[test]
    fn memory_comes_and_goes_and_is_the_same_wherever_it_is_mapped() {
        let addresses = Addresses::reserve(1 << 40, STEP, 0).expect("address space");
        let base = addresses.base();
        assert!(base.is_multiple_of(STEP));
        let mut memory = Memory::new().expect("a file");
        let [one, two] = [0, 1].map(|_| memory.take(STEP).expect("memory"));
        assert!(hold(&[(base, 1)]).is_err(), "nothing is there");
        addresses
            .map(base, STEP, (memory.number(), one))
            .expect("mapped");
        addresses
            .map(base + STEP, STEP, (memory.number(), two))
            .expect("mapped");
        let across = [(base + STEP - 4, 8)];
        assert!(hold(&across).is_ok_and(|hold| hold.is_some()));
        bytes::fill(base + STEP - 4, 7_u8, 8);
        addresses.unmap(base + STEP, STEP).expect("unmapped");
        assert!(hold(&across).is_err());
        let elsewhere = base + 64 * STEP;
        addresses
            .map(elsewhere, STEP, (memory.number(), two))
            .expect("mapped");
        assert_eq!(&bytes::read(elsewhere, 5)[..], [7, 7, 7, 7, 0]);
        memory.give_back(two, STEP);
        assert_eq!(&bytes::read(elsewhere, 1)[..], [0]);
        drop(addresses);
        assert!(hold(&across).is_ok_and(|hold| hold.is_none()));
    }

    #[test]
    fn an_address_can_be_asked_for() {
        let first = Addresses::reserve(STEP, 1 << 30, 0).expect("address space");
        let base = first.base();
        assert!(base.is_multiple_of(1 << 30));
        let other = Addresses::reserve(STEP, STEP, base).expect("address space");
        assert_ne!(other.base(), base, "taken");
        drop(first);
        let again = Addresses::reserve(STEP, STEP, base).expect("address space");
        assert_eq!(again.base(), base);
    }
}
