//! Device memory for third parties: what they may access, and notification of frees. Used by the exports in
//! `dma_buf.rs` and the pins of a simulated `gdrdrv`.

use std::ffi::c_int;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use cuda_driver_sys::CUresult;

use crate::export::{Answer, INVALID_VALUE, Out};
use crate::pieces::Part;
use crate::state::{State, state};

/// The kind of memory in an address range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Range {
    /// From `cuMemAlloc`.
    Plain,
    Pool,
    Mapped,
}

/// Called with the state locked.
type OnFree = extern "C" fn(u64, u64);

static ON_FREE: Mutex<Vec<OnFree>> = Mutex::new(Vec::new());

/// Reports that memory outside the pools is freed: its address and size.
pub(crate) fn tell_freed(start: u64, len: u64) {
    let on_free = ON_FREE.lock().unwrap_or_else(PoisonError::into_inner);
    for call in &*on_free {
        call(start, len);
    }
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

/// Adds a callback for memory outside the pools that is freed or unmapped; it gets the address and size. It is called
/// before the memory is gone and with the simulator locked, so it must not call the simulator. Null removes all: several
/// libraries may have added theirs.
#[unsafe(no_mangle)]
extern "C" fn simcuda_on_free(call: Option<OnFree>) {
    let mut on_free = ON_FREE.lock().unwrap_or_else(PoisonError::into_inner);
    match call {
        Some(call) => on_free.push(call),
        None => on_free.clear(),
    }
}
