//! Memory that others map too: files replace parts of it.
//!
//! A part becomes a file only on the first request. Each requester gets a separate, locked descriptor. The lock lasts
//! as long as the descriptor, its copies and the mappings made from it, which tells unused pieces from used ones.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::{Arc, PoisonError, RwLockWriteGuard};

use cuda_driver_sys::CUresult;

use super::RUNNING;
use crate::export::Answer;
use crate::memory::{bytes, pointer};
use crate::system::{Range, anonymous_file};

/// Prevents work from running while it lives. Waits for running work.
pub(crate) fn pause() -> RwLockWriteGuard<'static, ()> {
    RUNNING.write().unwrap_or_else(PoisonError::into_inner)
}

/// Bytes are moved in steps of this size; zeroed steps are not moved.
const STEP: u64 = 64 << 10;

/// A file that represents a part of some memory outside this process.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) file: OwnedFd,
    /// Its offset and length in the file.
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// A file, or part of one, that replaces memory.
#[derive(Clone, Debug)]
struct Piece {
    file: Arc<File>,
    offset: u64,
    len: u64,
}

impl Piece {
    fn is_whole(&self) -> bool {
        let len = self.file.metadata().map(|about| about.len());
        self.offset == 0 && len.is_ok_and(|len| len == self.len)
    }

    /// Whether the file is open or mapped anywhere else.
    fn is_used(&self) -> bool {
        // SAFETY: no pointers.
        let lock = |kind| unsafe { libc::flock(self.file.as_raw_fd(), kind) };
        if lock(libc::LOCK_EX | libc::LOCK_NB) != 0 {
            return true;
        }
        lock(libc::LOCK_UN);
        false
    }

    /// A descriptor that marks the piece as used while any copy or mapping of it exists.
    fn share(&self) -> Answer<OwnedFd> {
        let file = reopen(self.file.as_raw_fd(), true)?;
        // SAFETY: no pointers.
        match unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_SH) } {
            0 => Ok(file),
            _ => Err(CUresult::CUDA_ERROR_OPERATING_SYSTEM),
        }
    }

    /// Maps it over the memory at these addresses.
    fn place(&self, places: &[u64]) -> Answer {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED;
        let (file, offset) = (self.file.as_raw_fd(), self.offset.cast_signed());
        for &at in places {
            // SAFETY: the range lies in simulated memory, to which no reference is held; the callers of this module
            // ensure that no work runs there.
            let base =
                unsafe { libc::mmap(pointer(at), self.len as usize, access, kind, file, offset) };
            if base == libc::MAP_FAILED {
                return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
            }
            base.expose_provenance();
        }
        Ok(())
    }
}

/// Opens the same file again. A file that cannot be read cannot be mapped at all.
pub(crate) fn reopen(number: c_int, is_readable: bool) -> Answer<OwnedFd> {
    std::fs::OpenOptions::new()
        .read(is_readable)
        .write(true)
        .custom_flags(libc::O_CLOEXEC)
        .open(format!("/proc/self/fd/{number}"))
        .map(OwnedFd::from)
        .map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)
}

/// The addresses where some memory is mapped: one, or several aliases.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bases<'a>(pub(crate) &'a [u64]);

impl Bases<'_> {
    fn at(self, offset: u64) -> Vec<u64> {
        self.0.iter().map(|base| base + offset).collect()
    }
}

/// The pieces of some memory, by offset. They do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Pieces(BTreeMap<u64, Piece>);

impl Pieces {
    fn overlapping(&self, offset: u64, len: u64) -> Vec<u64> {
        let before = self.0.range(..offset + len).rev();
        let found = before.take_while(|(start, piece)| **start + piece.len > offset);
        found.map(|(start, _)| *start).collect()
    }

    /// A file of exactly this part. NOT_SUPPORTED if it overlaps another piece in use: a limit of the simulator. No
    /// work may run, and there must be at least one base.
    pub(crate) fn whole(&mut self, bases: Bases<'_>, offset: u64, len: u64) -> Answer<OwnedFd> {
        if let Some(piece) = self.0.get(&offset)
            && piece.len == len
            && piece.is_whole()
        {
            return piece.share();
        }
        let others = self.overlapping(offset, len);
        let mut found = others.iter().filter_map(|start| self.0.get(start));
        if found.any(Piece::is_used) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        self.make(bases, offset, len)?.share()
    }

    /// A file for as much of this part from its start as one file covers. Same conditions.
    pub(crate) fn part(&mut self, bases: Bases<'_>, offset: u64, len: u64) -> Answer<Part> {
        let of = |start: u64, piece: &Piece| -> Answer<Part> {
            let skipped = offset - start;
            Ok(Part {
                file: piece.share()?,
                offset: piece.offset + skipped,
                len: len.min(piece.len - skipped),
            })
        };
        if let Some((start, piece)) = self.0.range(..=offset).next_back()
            && start + piece.len > offset
        {
            return of(*start, piece);
        }
        let next = self.0.range(offset..).next();
        let len = next.map_or(len, |(next, _)| len.min(next - offset));
        of(offset, &self.make(bases, offset, len)?)
    }

    fn make(&mut self, bases: Bases<'_>, offset: u64, len: u64) -> Answer<Piece> {
        let piece = Piece {
            file: Arc::new(anonymous_file(c"cuda-sim piece", len)?),
            offset: 0,
            len,
        };
        let source = bases.0.first().ok_or(CUresult::CUDA_ERROR_UNKNOWN)? + offset;
        for at in (0..len).step_by(STEP as usize) {
            let bytes = bytes::read(source + at, STEP.min(len - at) as usize);
            if bytes.iter().any(|byte| *byte != 0) {
                piece
                    .file
                    .write_all_at(&bytes, at)
                    .map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
            }
        }
        piece.place(&bases.at(offset))?;
        self.carve(offset, len);
        self.0.insert(offset, piece.clone());
        Ok(piece)
    }

    /// Removes the pieces in a part, and returns their ranges.
    fn carve(&mut self, offset: u64, len: u64) -> Vec<(u64, u64)> {
        let end = offset + len;
        let mut gone = Vec::new();
        for start in self.overlapping(offset, len) {
            let Some(piece) = self.0.remove(&start) else {
                continue;
            };
            let piece_end = start + piece.len;
            if start < offset {
                let len = offset - start;
                self.0.insert(
                    start,
                    Piece {
                        len,
                        ..piece.clone()
                    },
                );
            }
            if piece_end > end {
                let (offset, len) = (piece.offset + (end - start), piece_end - end);
                self.0.insert(
                    end,
                    Piece {
                        offset,
                        len,
                        ..piece
                    },
                );
            }
            let (from, to) = (start.max(offset), piece_end.min(end));
            gone.push((from, to - from));
        }
        gone
    }

    /// Replaces the pieces in a part of some memory with fresh memory.
    pub(crate) fn carve_from(&mut self, range: &Range, offset: u64, len: u64) {
        for (offset, len) in self.carve(offset, len) {
            range.renew(range.base() + offset, len as usize);
        }
    }

    /// Maps all of them again, for memory at this base.
    pub(crate) fn place(&self, base: u64) -> Answer {
        self.0
            .iter()
            .try_for_each(|(offset, piece)| piece.place(&[base + offset]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Mapping;

    /// As large as that of any host.
    const PAGE: u64 = 64 << 10;

    /// The first byte of a page of the memory behind a descriptor.
    fn byte(file: &OwnedFd, page: u64) -> u8 {
        let file = File::from(file.try_clone().expect("a descriptor"));
        let mut byte = [0];
        file.read_exact_at(&mut byte, page * PAGE).expect("a byte");
        byte[0]
    }

    fn memory() -> (Mapping, u64, Pieces) {
        let (mapping, start) = Mapping::allocate_aligned(16 * PAGE, PAGE).expect("memory");
        for page in 0..16 {
            bytes::fill(start + page * PAGE, page as u8 + 1, PAGE as usize);
        }
        (mapping, start, Pieces::default())
    }

    #[test]
    fn a_piece_is_the_memory_itself_however_often_it_is_asked_for() {
        let (_mapping, start, mut pieces) = memory();
        let bases = &[start];
        let one = pieces
            .whole(Bases(bases), 2 * PAGE, 3 * PAGE)
            .expect("a piece");
        assert_eq!([0, 1, 2].map(|page| byte(&one, page)), [3, 4, 5]);
        bytes::fill(start + 3 * PAGE, 77_u8, 1);
        let two = pieces
            .whole(Bases(bases), 2 * PAGE, 3 * PAGE)
            .expect("a piece");
        assert_eq!((byte(&one, 1), byte(&two, 1)), (77, 77));
        let file = File::from(one);
        file.write_all_at(&[99], 0).expect("written");
        assert_eq!(bytes::read(start + 2 * PAGE, 2)[..], [99, 3]);
        assert!(file.set_len(1).is_err(), "its size is sealed");
    }

    #[test]
    fn pieces_that_overlap_are_refused_while_the_other_is_used() {
        let (_mapping, start, mut pieces) = memory();
        let bases = &[start];
        let one = pieces.whole(Bases(bases), 0, 4 * PAGE).expect("a piece");
        let refused = pieces.whole(Bases(bases), 2 * PAGE, 4 * PAGE);
        assert_eq!(refused.map(|_| ()), Err(CUresult::CUDA_ERROR_NOT_SUPPORTED));
        let copy = one.try_clone().expect("a descriptor");
        drop(one);
        assert!(pieces.whole(Bases(bases), 2 * PAGE, 4 * PAGE).is_err());
        drop(copy);
        let two = pieces
            .whole(Bases(bases), 2 * PAGE, 4 * PAGE)
            .expect("a piece");
        assert_eq!([0, 3].map(|page| byte(&two, page)), [3, 6]);
        for page in 0..16 {
            assert_eq!(bytes::read(start + page * PAGE, 1)[..], [page as u8 + 1]);
        }
    }

    #[test]
    fn parts_go_from_piece_to_piece() {
        let (_mapping, start, mut pieces) = memory();
        let bases = &[start];
        let whole = pieces
            .whole(Bases(bases), 4 * PAGE, 4 * PAGE)
            .expect("a piece");
        let mut at = PAGE;
        let mut found = Vec::new();
        while at < 12 * PAGE {
            let part = pieces
                .part(Bases(bases), at, 12 * PAGE - at)
                .expect("a part");
            found.push((part.len / PAGE, byte(&part.file, part.offset / PAGE)));
            at += part.len;
        }
        assert_eq!(found, [(3, 2), (4, 5), (4, 9)]);
        assert_eq!(byte(&whole, 0), 5);
        let inside = pieces.part(Bases(bases), 6 * PAGE, PAGE).expect("a part");
        assert_eq!((inside.offset, inside.len), (2 * PAGE, PAGE));
    }

    #[test]
    fn what_is_carved_out_leaves_the_rest_as_it_is() {
        let (_mapping, start, mut pieces) = memory();
        let bases = &[start];
        drop(pieces.whole(Bases(bases), 0, 8 * PAGE).expect("a piece"));
        assert_eq!(pieces.carve(2 * PAGE, 3 * PAGE), [(2 * PAGE, 3 * PAGE)]);
        let left = pieces
            .part(Bases(bases), 6 * PAGE, 9 * PAGE)
            .expect("a part");
        assert_eq!((left.offset, left.len), (6 * PAGE, 2 * PAGE));
        assert_eq!(pieces.carve(0, PAGE), [(0, PAGE)]);
    }
}
