//! What third parties may access, and the files through which they do. Used by the exports in `dma_buf.rs` and the pins
//! of a simulated `gdrdrv`.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

use cuda_driver_sys::CUresult;

use crate::export::{Answer, INVALID_VALUE, Out};
use crate::memory::Mapping;
use crate::pieces::{Bases, Part, pause, reopen};
use crate::state::{State, state};
use crate::system::anonymous_file;

/// The kind of memory in an address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Range {
    /// From `cuMemAlloc`.
    Plain,
    Pool,
    Mapped,
}

impl State {
    /// The kind of device memory in a range: it lies around one block outside the pools, starts at a pool's chunk, or
    /// is mapped.
    pub(crate) fn device_range(&mut self, start: u64, len: u64) -> Option<Range> {
        let end = start.checked_add(len).filter(|_| len > 0)?;
        if let Some((taken_start, taken_end)) = self.taken_around(start, end) {
            return (taken_start <= start && end <= taken_end).then_some(Range::Plain);
        }
        if self.mapped_directness(start, end).is_some() {
            return Some(Range::Mapped);
        }
        let (id, pool) = self.pool_at(start)?;
        let base = pool.base();
        let is_usable = !pool.is_host() && !pool.properties.is_managed();
        // Measured: the range starts at a chunk, and may span several blocks.
        let pool = self.pools.get_mut(&id)?;
        let chunk = pool.space.chunk();
        let is_first =
            (start - base).is_multiple_of(chunk) && pool.space.block(start - base).is_some();
        (is_usable && is_first && end <= start + chunk).then_some(Range::Pool)
    }

    /// A file of exactly this range.
    pub(crate) fn whole(&mut self, start: u64, len: u64, range: Range) -> Answer<OwnedFd> {
        match range {
            Range::Plain => self
                .mapping_at(start)
                .ok_or(INVALID_VALUE)?
                .whole(start, len),
            Range::Mapped => self.whole_mapped(start, len),
            Range::Pool => {
                let (id, _) = self.pool_at(start).ok_or(INVALID_VALUE)?;
                let pool = self.pools.get_mut(&id).ok_or(INVALID_VALUE)?;
                pool.mapping.whole(start, len)
            }
        }
    }

    /// Measured or documented: pool memory does not support GPUDirect, mapped memory does if requested.
    fn check_direct(&mut self, start: u64, len: u64) -> Answer {
        let is_direct = match self.device_range(start, len) {
            Some(Range::Plain) => true,
            Some(Range::Mapped) => self.mapped_directness(start, start + len) == Some(true),
            Some(Range::Pool) | None => false,
        };
        if is_direct {
            Ok(())
        } else {
            Err(INVALID_VALUE)
        }
    }

    fn part(&mut self, start: u64, len: u64) -> Answer<Part> {
        match self.mapping_at(start) {
            Some(mapping) => mapping.part(start, len),
            None => self.part_of_mapped(start, len),
        }
    }
}

impl State {
    /// A dma-buf of this range.
    pub(crate) fn export_range(&mut self, start: u64, len: u64, over_pcie: bool) -> Answer<c_int> {
        let range = self.device_range(start, len).ok_or(INVALID_VALUE)?;
        if over_pcie && !self.configuration.dma_buf_pcie {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        if self.configuration.claims_dma_buf_mmap() && !self.configuration.broken_dma_buf_mmap {
            return self.whole(start, len, range).map(IntoRawFd::into_raw_fd);
        }
        // An empty file as long as the range, and not readable, so that it cannot be mapped.
        let file = anonymous_file(c"cuda-sim dma-buf", len)?;
        reopen(file.as_raw_fd(), false).map(IntoRawFd::into_raw_fd)
    }
}

impl Mapping {
    /// A file of exactly `len` bytes of this memory from an address on: see [`Pieces::whole`](crate::pieces::Pieces::whole).
    pub(crate) fn whole(&mut self, address: u64, len: u64) -> Answer<OwnedFd> {
        let (offset, base) = (self.offset_of(address, len)?, self.base());
        let _pause = pause();
        self.pieces.whole(Bases(&[base]), offset, len)
    }

    /// As much of this memory from an address on as one file covers: see [`Pieces::part`](crate::pieces::Pieces::part).
    pub(crate) fn part(&mut self, address: u64, len: u64) -> Answer<Part> {
        let (offset, base) = (self.offset_of(address, len)?, self.base());
        let _pause = pause();
        self.pieces.part(Bases(&[base]), offset, len)
    }

    /// Offset in the mapping. NOT_SUPPORTED if the memory is already file-backed: a limit of the simulator.
    fn offset_of(&mut self, address: u64, len: u64) -> Answer<u64> {
        if self.backing().is_some() {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let offset = address.checked_sub(self.base());
        let offset = offset.ok_or(CUresult::CUDA_ERROR_UNKNOWN)?;
        self.at(offset, len)?;
        Ok(offset)
    }
}

fn code(answer: Answer) -> CUresult {
    answer.err().unwrap_or(CUresult::CUDA_SUCCESS)
}

/// Whether a third party may pin this range: memory of `cuMemAlloc`, or mapped memory created for GPUDirect. Otherwise
/// INVALID_VALUE.
#[unsafe(no_mangle)]
extern "C" fn simcuda_check_direct(start: u64, len: u64) -> CUresult {
    code(state().and_then(|mut state| state.check_direct(start, len)))
}

/// Returns a descriptor of a file that is the memory from `start` on, which the caller must close, with the offset in
/// the file and how much of `len` it covers. The range is whole GPU pages around one that may be pinned.
///
/// # Safety
///
/// The pointers are null or valid for one write.
#[unsafe(no_mangle)]
unsafe extern "C" fn simcuda_part(
    start: u64,
    len: u64,
    descriptor: *mut c_int,
    offset: *mut u64,
    part_len: *mut u64,
) -> CUresult {
    use crate::export::FromC;

    // SAFETY: by the contract of this function.
    let descriptor = unsafe { Out::<c_int>::from_c(descriptor) };
    // SAFETY: as above.
    let offset = unsafe { Out::<u64>::from_c(offset) };
    // SAFETY: as above.
    let part_len = unsafe { Out::<u64>::from_c(part_len) };
    code(state().and_then(|mut state| {
        descriptor.required()?;
        let part = state.part(start, len)?;
        offset.write(part.offset)?;
        part_len.write(part.len)?;
        descriptor.write(part.file.into_raw_fd())
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::bytes;

    const PAGE: u64 = 64 << 10;

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
