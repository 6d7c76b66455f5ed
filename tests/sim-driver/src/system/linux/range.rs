//! A range of address space.

use std::ffi::c_int;

use cuda_driver_sys::CUresult;
use cuda_sim_support::page::host_page;

use super::program::{add_own, remove_own};
use crate::export::Answer;
use crate::memory::{LARGE_PAGE, pointer};

/// A range of address space, released when dropped.
#[derive(Debug)]
pub(crate) struct Range {
    base: u64,
    len: usize,
}

impl Range {
    /// Reserves address space without memory.
    pub(crate) fn reserve(len: usize) -> Answer<Self> {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        Self::new(len, libc::PROT_NONE, kind, -1)
    }

    /// Maps a file, accessible or not.
    pub(super) fn of_file(file: c_int, len: usize, is_open: bool) -> Answer<Self> {
        let access = match is_open {
            true => libc::PROT_READ | libc::PROT_WRITE,
            false => libc::PROT_NONE,
        };
        Self::new(len, access, libc::MAP_SHARED, file)
    }

    fn new(len: usize, access: c_int, kind: c_int, file: c_int) -> Answer<Self> {
        let base = map_aligned(len, access, kind, file)?;
        add_own(base, len as u64);
        Ok(Self { base, len })
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Makes a part accessible, which the caller has checked to be one. The system provides the pages on first access.
    pub(crate) fn commit(&self, at: u64, len: usize) -> Answer {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // The system takes whole pages only.
        let first = at - at % host_page();
        let len = len + (at - first) as usize;
        // SAFETY: the range lies in this mapping, which only the simulator uses.
        match unsafe { libc::mprotect(pointer(first), len, access) } {
            0 => Ok(()),
            _ => Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY),
        }
    }

    /// Releases the pages of a part without a file, which stays accessible and reads as zero.
    pub(crate) fn discard(&self, at: u64, len: usize) {
        // SAFETY: the range lies in this mapping, whose pages are anonymous and private, so the advice changes no other
        // memory. A failure keeps the pages, which is harmless.
        unsafe { libc::madvise(pointer(at), len, libc::MADV_DONTNEED) };
    }

    /// Replaces files in a part with fresh memory.
    pub(crate) fn renew(&self, at: u64, len: usize) {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
        // SAFETY: the range lies in this mapping, and no reference to it exists. A failure keeps the old content, which
        // is harmless.
        unsafe { libc::mmap(pointer(at), len, access, kind, -1, 0) };
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        remove_own(self.base);
        unmap(self.base, self.len as u64);
    }
}

/// As [`map`]. What is as long as a large page begins at one, as memory of a driver does; kernels before 6.7 give addresses
/// anywhere. There is mostly room just below; a wider reservation, whose rest is given back, costs an emulator a record of
/// all of it.
fn map_aligned(len: usize, access: c_int, kind: c_int, file: c_int) -> Answer<u64> {
    let mut hint = 0;
    for _ in 0..2 {
        let base = map(hint, len, access, kind, file)?;
        if (len as u64) < LARGE_PAGE || base.is_multiple_of(LARGE_PAGE) {
            return Ok(base);
        }
        unmap(base, len as u64);
        hint = base - base % LARGE_PAGE;
    }
    map_at_a_large_page(len, access, kind, file)
}

fn map_at_a_large_page(len: usize, access: c_int, kind: c_int, file: c_int) -> Answer<u64> {
    let base = reserve_aligned(len as u64, LARGE_PAGE)?;
    let kind = kind | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: these addresses were reserved just now, and no reference to them exists.
    let mapped = unsafe { libc::mmap(pointer(base), len, access, kind, file, 0) };
    if mapped == libc::MAP_FAILED {
        unmap(base, len as u64);
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    Ok(base)
}

/// Reserves addresses that begin at a multiple of `align`: within more of them, of which the rest is given back.
pub(super) fn reserve_aligned(len: u64, align: u64) -> Answer<u64> {
    let wide_len = len
        .checked_add(align)
        .and_then(|wide| wide.checked_next_multiple_of(host_page()));
    let wide_len = wide_len.ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let size = usize::try_from(wide_len).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let wide = map(0, size, libc::PROT_NONE, kind, -1)?;
    let base = wide.next_multiple_of(align);
    let end = base + len.next_multiple_of(host_page());
    unmap(wide, base - wide);
    unmap(end, (wide + wide_len).saturating_sub(end));
    Ok(base)
}

/// Removes a mapping to which no reference exists, or a part of one.
pub(super) fn unmap(at: u64, len: u64) {
    if len > 0 {
        // SAFETY: the callers own it, and no queue can access it.
        unsafe { libc::munmap(pointer(at), len as usize) };
    }
}

/// Maps new address space: at `hint` if it is free there and not 0, and elsewhere otherwise.
fn map(hint: u64, len: usize, access: c_int, kind: c_int, file: c_int) -> Answer<u64> {
    let kind = kind | libc::MAP_NORESERVE;
    // SAFETY: a new mapping; no existing memory changes.
    let base = unsafe { libc::mmap(pointer(hint), len, access, kind, file, 0) };
    if base == libc::MAP_FAILED {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    Ok(base.expose_provenance() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_mappings_begin_at_a_large_page_whatever_the_kernel_gives() {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let len = LARGE_PAGE as usize + 4096;
        for _ in 0..8 {
            let base = map_at_a_large_page(len, access, kind, -1).expect("address space");
            assert!(base.is_multiple_of(LARGE_PAGE), "{base:x}");
            for at in [base, base + len as u64 - 1] {
                // SAFETY: the byte lies in the mapping, which nothing else uses.
                unsafe { pointer::<u8>(at).write(1) };
            }
            unmap(base, len as u64);
        }
    }
}
