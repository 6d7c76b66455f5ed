//! Reserved addresses, and memory that is mapped there.

use std::ffi::c_int;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};

use cuda_driver_sys::CUresult;

use super::SharedFile;
use super::program::{add_own, remove_own};
use super::range::{reserve_aligned, unmap};
use crate::export::Answer;
use crate::memory::pointer;

/// Reserved addresses, released when dropped with all that is mapped there.
#[derive(Debug)]
pub(crate) struct AddressRange {
    base: u64,
    len: u64,
}

impl AddressRange {
    /// Reserves `len` bytes aligned to `align`, at `hint` if possible.
    pub(crate) fn reserve(len: u64, align: u64, hint: u64) -> Answer<Self> {
        let size = usize::try_from(len).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        if hint != 0
            && hint.is_multiple_of(align)
            && let Some(base) = reserve_at(hint, size)
        {
            return Ok(Self::new(base, len));
        }
        let base = reserve_aligned(len, align)?;
        Ok(Self::new(base, len))
    }

    fn new(base: u64, len: u64) -> Self {
        add_own(base, len);
        Self { base, len }
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Maps memory at a part of the addresses, which the caller has checked to be one. No work may run there.
    pub(crate) fn map(&mut self, at: u64, len: u64, source: Source) -> Answer {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_SHARED | libc::MAP_NORESERVE;
        replace(
            at,
            len,
            access,
            kind,
            (source.file, source.offset.cast_signed()),
        )
    }

    /// Removes what was mapped there by one call. No work may run there.
    pub(crate) fn unmap(&mut self, at: u64, len: u64) -> Answer {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        replace(at, len, libc::PROT_NONE, kind, (-1, 0))
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        remove_own(self.base);
        unmap(self.base, self.len);
    }
}

fn replace(at: u64, len: u64, access: i32, kind: i32, (file, offset): (i32, i64)) -> Answer {
    let kind = kind | libc::MAP_FIXED;
    let place = pointer(at);
    // SAFETY: the range lies in addresses that only their owner hands out; the simulator holds no reference to them, and
    // no work runs there, as the callers ensure.
    let base = unsafe { libc::mmap(place, len as usize, access, kind, file, offset) };
    if base == libc::MAP_FAILED {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    base.expose_provenance();
    Ok(())
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

/// A part of the common file of unshared memory.
#[derive(Debug)]
pub(crate) struct Part {
    offset: u64,
    len: u64,
}

/// Where memory to be mapped lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    file: c_int,
    offset: u64,
}

impl SharedFile {
    /// To map it at reserved addresses.
    pub(crate) fn source(&self) -> Source {
        Source {
            file: self.number(),
            offset: 0,
        }
    }
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

    /// To map a part at reserved addresses.
    pub(crate) fn source(&self, part: &Part) -> Source {
        Source {
            file: self.file.as_raw_fd(),
            offset: part.offset,
        }
    }

    /// A new part, zero until written.
    pub(crate) fn take(&mut self, len: u64) -> Answer<Part> {
        let offset = self.len;
        self.file
            .set_len(offset + len)
            .map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        self.len = offset + len;
        Ok(Part { offset, len })
    }

    /// Releases the pages of a part.
    pub(crate) fn give_back(&self, part: &Part) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (offset, len) = (part.offset.cast_signed(), part.len.cast_signed());
        // SAFETY: no pointers. A failure keeps the pages, which is harmless: they are never mapped again.
        unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, len) };
    }
}
