//! Occupancy: blocks of a kernel per multiprocessor. Registers are no limit here, as nothing is compiled.

use std::ffi::{c_int, c_uint};

use cuda_driver_sys::{CUfunction, CUoccupancyB2DSize};

use super::attributes::{self, DYNAMIC_SHARED, MAX_THREADS};
use super::{FunctionId, INVALID_HANDLE};
use crate::export::{Answer, INVALID_VALUE, Out, exports};
use crate::state::{State, state};

/// Limits of one multiprocessor.
const THREADS: u32 = 2048;
const BLOCKS: u32 = 32;
const SHARED: u64 = 228 << 10;
/// Shared memory per block that the system reserves.
const SHARED_OF_SYSTEM: u64 = 1024;

const WARP: u32 = 32;
pub(super) const MULTIPROCESSORS: u32 = 132;

/// The limits of a function.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Maximum threads per block.
    pub(super) threads: u32,
    /// Shared memory of each block: static, and maximum dynamic.
    pub(super) shared: u32,
    pub(super) dynamic: u32,
}

impl Limits {
    /// Number of blocks with `threads` threads each that run at once.
    pub(super) fn blocks(&self, threads: u32, dynamic: u64) -> u32 {
        // A guess: a block that could not be launched does not fit.
        if threads > self.threads || dynamic > self.dynamic.into() {
            return 0;
        }
        let by_threads = THREADS / threads.max(1).next_multiple_of(WARP);
        let shared = u64::from(self.shared) + dynamic + SHARED_OF_SYSTEM;
        let by_shared = u32::try_from(SHARED / shared).unwrap_or(BLOCKS);
        BLOCKS.min(by_threads).min(by_shared)
    }

    /// The block size that keeps the most threads busy, the largest of equals, and the number of those blocks that run
    /// at once.
    fn best(&self, limit: u32, dynamic: impl Fn(u32) -> u64) -> (u32, u32) {
        let largest = match limit {
            0 => self.threads,
            limit => limit.min(self.threads),
        };
        // Whole warps, after the largest block, which may not be one.
        let whole = (1..=largest / WARP).rev().map(|warps| warps * WARP);
        let mut best = (0, 0);
        for size in [largest].into_iter().chain(whole) {
            let blocks = self.blocks(size, dynamic(size));
            if blocks * size > best.0 * best.1 {
                best = (size, blocks);
            }
        }
        best
    }
}

impl State {
    pub(super) fn limits(&mut self, id: FunctionId) -> Answer<Limits> {
        let version = self.configuration.version;
        let function = self.modules.functions.get(&id).ok_or(INVALID_HANDLE)?;
        let entry = function.entry()?;
        let of = |id: u32| {
            let set = function.set.get(&id).copied();
            let value = attributes::value(id, entry, set, version);
            value.and_then(|value| u32::try_from(value).ok())
        };
        Ok(Limits {
            threads: of(0).unwrap_or(MAX_THREADS),
            shared: entry.shared,
            dynamic: of(DYNAMIC_SHARED).unwrap_or(0),
        })
    }
}

/// The limits of a function, or of a kernel in the current context. Releases the state lock, because the program's code
/// runs next.
fn limits(function: CUfunction, flags: c_uint) -> Answer<Limits> {
    // The only flag concerns caching.
    if flags > 1 {
        return Err(INVALID_VALUE);
    }
    let mut state = state()?;
    let context = state.current()?;
    let id = state.function_in(function, context)?;
    state.limits(id)
}

fn active_blocks(
    out: Out<c_int>,
    function: CUfunction,
    threads: c_int,
    dynamic: usize,
    flags: c_uint,
) -> Answer {
    out.required()?;
    let threads = u32::try_from(threads).map_err(|_| INVALID_VALUE)?;
    if threads == 0 {
        return Err(INVALID_VALUE);
    }
    let limits = limits(function, flags)?;
    out.write(limits.blocks(threads, dynamic as u64).cast_signed())
}

fn best_block(
    (grid, block): (Out<c_int>, Out<c_int>),
    function: CUfunction,
    dynamic_of: CUoccupancyB2DSize,
    dynamic: usize,
    limit: c_int,
    flags: c_uint,
) -> Answer {
    grid.required()?;
    block.required()?;
    let limit = u32::try_from(limit).map_err(|_| INVALID_VALUE)?;
    let limits = limits(function, flags)?;
    let dynamic = |threads: u32| match dynamic_of {
        // SAFETY: the program passed this function to be called with a number of threads.
        Some(of) => (unsafe { of(threads.cast_signed()) }) as u64,
        None => dynamic as u64,
    };
    let (size, blocks) = limits.best(limit, dynamic);
    grid.write((blocks * MULTIPROCESSORS).cast_signed())?;
    block.write(size.cast_signed())
}

exports! {
    plain fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        _, out: Out<c_int>, function: CUfunction, threads: c_int, dynamic: usize
    ) {
        active_blocks(out, function, threads, dynamic, 0)
    }

    plain fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        _, out: Out<c_int>, function: CUfunction, threads: c_int, dynamic: usize, flags: c_uint
    ) {
        active_blocks(out, function, threads, dynamic, flags)
    }

    plain fn cuOccupancyMaxPotentialBlockSize(
        _, grid: Out<c_int>, block: Out<c_int>, function: CUfunction,
        dynamic_of: CUoccupancyB2DSize, dynamic: usize, limit: c_int
    ) {
        best_block((grid, block), function, dynamic_of, dynamic, limit, 0)
    }

    plain fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        _, grid: Out<c_int>, block: Out<c_int>, function: CUfunction,
        dynamic_of: CUoccupancyB2DSize, dynamic: usize, limit: c_int, flags: c_uint
    ) {
        best_block((grid, block), function, dynamic_of, dynamic, limit, flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Limits = Limits {
        threads: 1024,
        shared: 0,
        dynamic: 227 << 10,
    };

    #[test]
    fn threads_blocks_and_shared_memory_are_limits() {
        assert_eq!(PLAIN.blocks(1024, 0), 2);
        assert_eq!(PLAIN.blocks(256, 0), 8);
        assert_eq!(PLAIN.blocks(33, 0), 32);
        assert_eq!(PLAIN.blocks(1, 0), 32);
        assert_eq!(PLAIN.blocks(256, 47 << 10), 4);
        assert_eq!(PLAIN.blocks(32, 227 << 10), 1);
        assert_eq!(PLAIN.blocks(32, (227 << 10) + 1), 0);
        assert_eq!(PLAIN.blocks(1025, 0), 0);
    }

    #[test]
    fn the_best_block_keeps_most_threads_busy() {
        assert_eq!(PLAIN.best(0, |_| 0), (1024, 2));
        assert_eq!(PLAIN.best(700, |_| 0), (512, 4));
        assert_eq!(
            PLAIN.best(0, |threads| if threads > 96 { 1 << 20 } else { 0 }),
            (64, 32)
        );
    }
}
