//! A range of address space.

use std::ptr::null;

use cuda_driver_sys::CUresult;
use windows_sys::Win32::System::Memory::{
    MEM_COMMIT, MEM_DECOMMIT, MEM_RESERVE, MEMORY_MAPPED_VIEW_ADDRESS, PAGE_NOACCESS,
    PAGE_READWRITE, UnmapViewOfFile, VirtualAlloc, VirtualFree,
};

use super::addresses::{free, reserve_at};
use crate::export::Answer;
use crate::memory::{LARGE_PAGE, pointer};

/// How often another thread may be faster.
const ATTEMPTS: u32 = 16;

/// A range of address space, released when dropped.
#[derive(Debug)]
pub(crate) struct Range {
    base: u64,
    len: usize,
    /// Of a section, or reserved.
    is_view: bool,
}

impl Range {
    /// Reserves address space without memory.
    pub(crate) fn reserve(len: usize) -> Answer<Self> {
        let base = match reserve_anywhere(len) {
            Some(base) if len as u64 >= LARGE_PAGE && !base.is_multiple_of(LARGE_PAGE) => {
                free(base);
                // Where other threads are faster each time, the address is not that of a large page.
                reserve_aligned(len).or_else(|| reserve_anywhere(len))
            }
            base => base,
        };
        Ok(Self {
            base: base.ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?,
            len,
            is_view: false,
        })
    }

    /// Takes over a view of a section.
    pub(super) fn of_view(base: u64, len: usize) -> Self {
        Self {
            base,
            len,
            is_view: true,
        }
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Makes a part accessible, which the caller has checked to be one. The system provides the pages on first access.
    pub(crate) fn commit(&self, at: u64, len: usize) -> Answer {
        commit(at, len)
    }

    /// Releases the pages of a part without a file, which stays accessible and reads as zero.
    pub(crate) fn discard(&self, at: u64, len: usize) {
        // SAFETY: the range lies in this reservation, and the simulator holds no reference to it. A failure keeps the
        // pages.
        unsafe { VirtualFree(pointer(at), len, MEM_DECOMMIT) };
        // If the system has none left, an access stops the program, as it would in the end anyway.
        let _ = commit(at, len);
    }
}

fn reserve_anywhere(len: usize) -> Option<u64> {
    // SAFETY: new address space; no existing memory changes.
    let base = unsafe { VirtualAlloc(null(), len, MEM_RESERVE, PAGE_NOACCESS) };
    (!base.is_null()).then(|| base.expose_provenance() as u64)
}

/// Begins at a large page, as memory of a driver of this length does. The system reserves at 64 KiB.
fn reserve_aligned(len: usize) -> Option<u64> {
    (0..ATTEMPTS).find_map(|_| {
        let wide = reserve_anywhere(len + LARGE_PAGE as usize)?;
        free(wide);
        let base = wide.next_multiple_of(LARGE_PAGE);
        reserve_at(base, len as u64).then_some(base)
    })
}

impl Drop for Range {
    fn drop(&mut self) {
        if self.is_view {
            unmap_view(self.base);
        } else {
            free(self.base);
        }
    }
}

/// Commits pages, reserved ones or those of a view; committed ones stay as they are.
pub(super) fn commit(at: u64, len: usize) -> Answer {
    // SAFETY: the callers own the range, and pages that are committed keep their content.
    let found = unsafe { VirtualAlloc(pointer(at), len, MEM_COMMIT, PAGE_READWRITE) };
    if found.is_null() {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    Ok(())
}

/// The caller owns the view, and nothing uses it any more.
pub(super) fn unmap_view(base: u64) {
    let view = MEMORY_MAPPED_VIEW_ADDRESS {
        Value: pointer(base),
    };
    // SAFETY: the caller's view.
    unsafe { UnmapViewOfFile(view) };
}
