//! Reserved addresses, and memory that is mapped there.
//!
//! Windows maps a section only at free addresses, and frees a reservation only as a whole. So a reservation consists of
//! pieces, and one is divided where memory is to be mapped. For a moment the addresses are free; they lie where the system
//! puts nothing by itself. Newer versions have placeholders for this, which Wine 8 has not.

use std::collections::BTreeMap;
use std::os::windows::io::OwnedHandle;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_driver_sys::CUresult;
use windows_sys::Win32::System::Memory::{
    MEM_RELEASE, MEM_RESERVE, PAGE_NOACCESS, VirtualAlloc, VirtualFree,
};

use super::file::{map_all, section};
use super::range::unmap_view;
use crate::export::Answer;
use crate::memory::pointer;

/// Where reservations begin, and where they end. The system puts programs and their heaps elsewhere. Like those of a
/// driver, the addresses are multiples of large pages, and of nothing larger by themselves.
const FIRST: u64 = 0x1000_0020_0000;
const LAST: u64 = 0x6000_0000_0000;

/// The distance of reservations at least, in bytes.
const STEP: u64 = 1 << 30;

/// How many taken addresses are tried before a reservation fails.
const ATTEMPTS: u32 = 10_000;

/// A piece of a reservation.
#[derive(Debug)]
struct Piece {
    len: u64,
    is_view: bool,
}

/// Reserved addresses, released when dropped with all that is mapped there.
#[derive(Debug)]
pub(crate) struct AddressRange {
    base: u64,
    len: u64,
    /// By address; they cover the range.
    pieces: BTreeMap<u64, Piece>,
}

impl AddressRange {
    /// Reserves `len` bytes aligned to `align`, at `hint` if possible.
    pub(crate) fn reserve(len: u64, align: u64, hint: u64) -> Answer<Self> {
        let base = if hint.is_multiple_of(align) && reserve_at(hint, len) {
            hint
        } else {
            find(len, align)?
        };
        let pieces = BTreeMap::from([(
            base,
            Piece {
                len,
                is_view: false,
            },
        )]);
        Ok(Self { base, len, pieces })
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Maps memory at a part of the addresses, which the caller has checked to be one. No work may run there.
    pub(crate) fn map(&mut self, at: u64, len: u64, source: Source<'_>) -> Answer {
        let unknown = CUresult::CUDA_ERROR_UNKNOWN;
        let (&start, piece) = self.pieces.range(..=at).next_back().ok_or(unknown)?;
        let end = start + piece.len;
        if piece.is_view || at + len > end {
            return Err(unknown);
        }
        free(start);
        self.pieces.remove(&start);
        let before = self.put_back(start, at - start);
        let behind = self.put_back(at + len, end - (at + len));
        let mapped = map_all(source.0, source.1, len, at);
        let is_view = mapped.is_ok();
        if is_view || reserve_at(at, len) {
            self.pieces.insert(at, Piece { len, is_view });
        }
        mapped.and(before).and(behind)
    }

    /// Removes what was mapped there by one call. No work may run there.
    pub(crate) fn unmap(&mut self, at: u64, len: u64) -> Answer {
        let piece = self.pieces.get(&at);
        if !piece.is_some_and(|piece| piece.is_view && piece.len == len) {
            return Err(CUresult::CUDA_ERROR_UNKNOWN);
        }
        unmap_view(at);
        self.pieces.remove(&at);
        // Joined with its neighbours, so that larger memory fits there again.
        let (mut start, mut end) = (at, at + len);
        if let Some((&before, piece)) = self.pieces.range(..at).next_back()
            && !piece.is_view
            && before + piece.len == at
        {
            start = before;
        }
        if let Some(piece) = self.pieces.get(&end)
            && !piece.is_view
        {
            end += piece.len;
        }
        for piece in [start, at + len] {
            if self.pieces.get(&piece).is_some_and(|piece| !piece.is_view) {
                free(piece);
                self.pieces.remove(&piece);
            }
        }
        self.put_back(start, end - start)
    }

    /// Reserves addresses again that were free for a moment.
    fn put_back(&mut self, at: u64, len: u64) -> Answer {
        if len == 0 {
            return Ok(());
        }
        if !reserve_at(at, len) {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let is_view = false;
        self.pieces.insert(at, Piece { len, is_view });
        Ok(())
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        for (&at, piece) in &self.pieces {
            if piece.is_view {
                unmap_view(at);
            } else {
                free(at);
            }
        }
    }
}

/// Reserves addresses where other copies of the simulator, and the program, have none.
fn find(len: u64, align: u64) -> Answer<u64> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let width = len.checked_next_multiple_of(STEP);
    let width = width.ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    for _ in 0..ATTEMPTS {
        let next = NEXT.fetch_add(width.max(align), Ordering::Relaxed);
        // Goes round: what was released there is free again.
        let base = (FIRST + next % (LAST - FIRST)).next_multiple_of(align);
        if reserve_at(base, len) {
            return Ok(base);
        }
    }
    Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
}

/// Reserves exactly these addresses, if they are free.
pub(super) fn reserve_at(at: u64, len: u64) -> bool {
    let Ok(len) = usize::try_from(len) else {
        return false;
    };
    if at == 0 {
        return false;
    }
    // SAFETY: new address space; no existing memory changes.
    let found = unsafe { VirtualAlloc(pointer(at), len, MEM_RESERVE, PAGE_NOACCESS) };
    let found = found.expose_provenance() as u64;
    if found != 0 && found != at {
        free(found);
    }
    found == at
}

/// Releases one reservation, in which nothing is mapped.
pub(super) fn free(at: u64) {
    // SAFETY: the callers own it, and no work runs there.
    unsafe { VirtualFree(pointer(at), 0, MEM_RELEASE) };
}

/// Where memory to be mapped lies: a section, and an offset in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a>(pub(super) &'a OwnedHandle, pub(super) u64);

/// Unshared memory.
#[derive(Debug)]
pub(crate) struct Part(OwnedHandle);

/// Makes unshared physical memory. Each allocation is a section.
#[derive(Debug)]
pub(crate) struct Memory;

impl Memory {
    pub(crate) fn new() -> Answer<Self> {
        Ok(Self)
    }

    /// To map a part at reserved addresses.
    pub(crate) fn source<'a>(&self, part: &'a Part) -> Source<'a> {
        Source(&part.0, 0)
    }

    /// A new part, zero until written.
    pub(crate) fn take(&mut self, len: u64) -> Answer<Part> {
        section(len).map(Part)
    }

    /// Releases the pages of a part. The system does so when it is closed.
    pub(crate) fn give_back(&self, _part: &Part) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_that_is_not_aligned_leaves_nothing_reserved() {
        const STEP: u64 = 64 << 10;
        let made = AddressRange::reserve(STEP, 1 << 30, 0).expect("address space");
        let hint = made.base() + STEP;
        let other = AddressRange::reserve(STEP, 1 << 30, hint).expect("address space");
        assert_ne!(other.base(), hint);
        let again = AddressRange::reserve(STEP, STEP, hint).expect("address space");
        assert_eq!(again.base(), hint);
    }
}
