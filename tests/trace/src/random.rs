//! RMM's `random_allocations` benchmark as a list of operations.
//!
//! The benchmark draws its sizes from the default engine of GNU's C++ library. Drawing the same
//! numbers here lets both libraries be measured on one workload; [`RandomAllocations::hash`] shows
//! that it is the same.

use crate::{Op, Trace};

const MIB: u64 = 1 << 20;
/// Live bytes stay below this, so that the workload fits a GPU of 16 GB.
const LIVE_LIMIT: u64 = 16_000 * MIB;
/// How many draws of a hundred ask for an allocation. More than half, so that memory fills up.
const ALLOCATE_PERCENT: u64 = 73;

/// The workload of [`random_allocations`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RandomAllocations {
    /// What to replay: one stream, one thread, and nothing left alive at the end.
    pub trace: Trace,
    /// A checksum over kind, number and size of each operation, to compare with another generator.
    pub hash: u64,
}

impl RandomAllocations {
    /// The most allocations alive at one moment.
    pub fn peak_live(&self) -> usize {
        // A slot is used again before a new one is opened.
        self.trace.slots
    }

    /// The sizes of the allocations, in order.
    pub fn sizes(&self) -> impl Iterator<Item = usize> + '_ {
        self.trace.ops.iter().filter_map(|op| match *op {
            Op::Allocate { bytes, .. } => Some(bytes),
            Op::Free { .. } => None,
        })
    }
}

/// Sizes up to this many MiB cannot be drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "sizes cannot be drawn up to {max_mib} MiB: that is nothing, or more than can be addressed"
)]
pub struct SizeLimitError {
    /// As given.
    pub max_mib: u64,
}

/// `allocations` allocations of 1 byte to `max_mib` MiB and as many frees, in random order.
///
/// The same arguments always give the same operations. RMM measures 1000, 10,000 and 100,000
/// allocations with 1, 4, 64, 256, 1024 and 4096 MiB. At most 16,000 MiB are alive, unless a
/// single allocation is larger.
///
/// # Errors
///
/// `max_mib` is 0 or does not fit the address space.
///
/// # Examples
///
/// ```
/// let workload = cuda_mem_trace::random::random_allocations(1000, 64)?;
/// assert_eq!(workload.trace.ops.len(), 2000);
/// assert_eq!(workload.peak_live(), 528);
/// # Ok::<(), cuda_mem_trace::random::SizeLimitError>(())
/// ```
pub fn random_allocations(
    allocations: usize,
    max_mib: u64,
) -> Result<RandomAllocations, SizeLimitError> {
    let largest = max_mib
        .checked_mul(MIB)
        .filter(|&bytes| bytes > 0 && usize::try_from(bytes).is_ok())
        .ok_or(SizeLimitError { max_mib })?;
    let mut engine = Engine::default();
    let mut workload = Workload::default();
    for _ in 0..allocations.saturating_mul(2) {
        // Drawn even where nothing is allocated: each draw decides all later ones.
        let size = engine.uniform(1, largest);
        let allocate = workload.live.is_empty() || {
            let wanted = engine.uniform(0, 99) < ALLOCATE_PERCENT;
            wanted && workload.allocated < allocations && workload.has_room(size)
        };
        if allocate {
            workload.allocate(size);
        } else {
            // Drawn from all numbers of allocations, not from those of the live ones alone.
            let draw = engine.uniform(0, allocations as u64 - 1);
            workload.free((draw % workload.live.len() as u64) as usize);
        }
    }
    Ok(workload.finish())
}

struct Live {
    /// The allocation's number, counted from 0.
    number: u64,
    slot: usize,
    bytes: u64,
}

#[derive(Default)]
struct Workload {
    trace: Trace,
    hash: Hash,
    live: Vec<Live>,
    free_slots: Vec<usize>,
    allocated: usize,
}

impl Workload {
    fn has_room(&self, size: u64) -> bool {
        let after = self.trace.left_bytes.checked_add(size);
        after.is_some_and(|bytes| bytes < LIVE_LIMIT)
    }

    fn allocate(&mut self, bytes: u64) {
        let slot = self.free_slots.pop().unwrap_or(self.trace.slots);
        self.live.push(Live {
            number: self.allocated as u64,
            slot,
            bytes,
        });
        self.allocated += 1;
        self.hash.add(&[1, bytes]);
        let trace = &mut self.trace;
        trace.slots = trace.slots.max(slot + 1);
        trace.left_bytes += bytes;
        trace.peak_bytes = trace.peak_bytes.max(trace.left_bytes);
        trace.ops.push(Op::Allocate {
            slot,
            // Not more than the largest size, which fits.
            bytes: bytes as usize,
            stream: 0,
        });
    }

    fn free(&mut self, index: usize) {
        let Live {
            number,
            slot,
            bytes,
        } = self.live.swap_remove(index);
        self.free_slots.push(slot);
        self.hash.add(&[2, number, bytes]);
        self.trace.left_bytes -= bytes;
        self.trace.ops.push(Op::Free { slot, stream: 0 });
    }

    fn finish(mut self) -> RandomAllocations {
        self.trace.streams = usize::from(!self.trace.ops.is_empty());
        self.trace.threads = self.trace.streams;
        self.trace.op_threads = vec![0; self.trace.ops.len()];
        RandomAllocations {
            trace: self.trace,
            hash: self.hash.0,
        }
    }
}

/// FNV-1a, 64 bit.
struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        // Not FNV's own start value: the recorded hashes begin with this one.
        Self(1_469_598_103_934_665_603)
    }
}

impl Hash {
    fn add(&mut self, numbers: &[u64]) {
        for byte in numbers.iter().flat_map(|number| number.to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(1_099_511_628_211);
        }
    }
}

/// `std::default_random_engine` and `std::uniform_int_distribution` of GNU's C++ library.
struct Engine {
    state: u64,
}

impl Default for Engine {
    fn default() -> Self {
        Self { state: 1 }
    }
}

impl Engine {
    const MODULUS: u64 = (1 << 31) - 1;
    /// A draw is one of 0 … this; the state is never 0.
    const LARGEST_DRAW: u64 = Self::MODULUS - 2;

    fn draw(&mut self) -> u64 {
        self.state = self.state * 16_807 % Self::MODULUS;
        self.state - 1
    }

    /// A number from `low` to `high`, both included.
    fn uniform(&mut self, low: u64, high: u64) -> u64 {
        low + self.up_to(high - low)
    }

    fn up_to(&mut self, largest: u64) -> u64 {
        if largest < Self::LARGEST_DRAW {
            let values = largest + 1;
            let draws_for_each = Self::LARGEST_DRAW / values;
            loop {
                let draw = self.draw();
                // The draws above are too few for one of each value.
                if draw < draws_for_each * values {
                    return draw / draws_for_each;
                }
            }
        }
        if largest == Self::LARGEST_DRAW {
            return self.draw();
        }
        // One draw is too small, so it becomes the low digit of a number of two or more digits.
        let base = Self::LARGEST_DRAW + 1;
        loop {
            // The high digits first: the order decides the result.
            let high = self.up_to(largest / base) * base;
            match high.checked_add(self.draw()) {
                Some(number) if number <= largest => return number,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Allocations, MiB, first sizes, peak bytes, peak live, hash.
    type Golden = (usize, u64, [usize; 3], u64, usize, u64);

    #[rustfmt::skip]
    const GOLDEN: [Golden; 9] = [
        (1000, 1, [9, 558920, 229708], 323760572, 638, 0x02ee_e92c_b248_5f8b),
        (1000, 4, [33, 2238961, 920179], 1332080261, 642, 0xffe7_0109_cacf_7227),
        (1000, 64, [543, 36906740, 15168106], 16777102043, 528, 0xcc3d_32c8_303d_d633),
        (1000, 1024, [16807, 470211272, 101027544], 16775773201, 44, 0xc333_a97e_e69a_68f3),
        (1000, 4096, [282475249, 2617694918, 3931968138], 16775344215, 15, 0x17d1_22a6_3b11_d82b),
        (10000, 64, [543, 36906740, 15168106], 16777214948, 634, 0xb83b_2b4b_edf6_d00f),
        (10000, 4096, [282475249, 2617694918, 3931968138], 16775887653, 16, 0xa605_b26f_2f0f_87cb),
        (100000, 4, [33, 2238961, 920179], 16777215986, 9714, 0x9080_61ee_32fa_499f),
        (100000, 1, [9, 558920, 229708], 16777215997, 36071, 0xc928_cd3a_d4d4_d3bb),
    ];

    #[test]
    fn the_workloads_are_those_recorded_from_rmm() {
        for (allocations, max_mib, first, peak_bytes, peak_live, hash) in GOLDEN {
            let case = format!("{allocations} of up to {max_mib} MiB");
            let workload = random_allocations(allocations, max_mib).expect(&case);
            assert_eq!(
                workload.sizes().take(3).collect::<Vec<_>>(),
                first,
                "{case}"
            );
            assert_eq!(workload.sizes().count(), allocations, "{case}");
            assert_eq!(workload.peak_live(), peak_live, "{case}");
            assert_eq!(workload.hash, hash, "{case}: {:016x}", workload.hash);
            let trace = workload.trace;
            assert_eq!(
                (trace.ops.len(), trace.streams),
                (2 * allocations, 1),
                "{case}"
            );
            assert_eq!(
                (trace.peak_bytes, trace.left_bytes),
                (peak_bytes, 0),
                "{case}"
            );
        }
    }

    #[test]
    fn a_slot_is_empty_when_it_is_used_and_full_when_it_is_freed() {
        let trace = random_allocations(1000, 64).expect("a workload").trace;
        let mut full = vec![false; trace.slots];
        for (index, op) in trace.ops.iter().enumerate() {
            let (slot, was) = match *op {
                Op::Allocate { slot, .. } => (slot, false),
                Op::Free { slot, .. } => (slot, true),
            };
            assert_eq!(full[slot], was, "operation {index}");
            full[slot] = !was;
        }
    }

    #[test]
    fn impossible_sizes_are_refused_and_no_allocations_are_no_operations() {
        for max_mib in [0, u64::MAX] {
            assert_eq!(
                random_allocations(10, max_mib),
                Err(SizeLimitError { max_mib })
            );
        }
        let empty = random_allocations(0, 1).expect("no operations");
        assert!(empty.trace.ops.is_empty());
    }

    #[test]
    fn an_allocation_above_the_limit_is_alone() {
        let workload = random_allocations(100, 1 << 40).expect("a workload");
        assert_eq!(workload.peak_live(), 1);
    }

    #[test]
    fn the_engine_is_the_standard_one() {
        let mut engine = Engine::default();
        let states = std::array::from_fn::<_, 5, _>(|_| {
            engine.draw();
            engine.state
        });
        assert_eq!(
            states,
            [
                16_807,
                282_475_249,
                1_622_650_073,
                984_943_658,
                1_144_108_930
            ]
        );
    }

    #[test]
    #[rustfmt::skip]
    fn numbers_larger_than_one_draw_are_those_of_the_standard_library() {
        // Drawn by GCC 12: the first four of each range, then the 1005th.
        for (largest, first, later) in [
            (2147483644, [16806, 282475248, 1622650072, 984943657], 1904228599),
            (2147483645, [16806, 282475248, 1622650072, 984943657], 1904228599),
            (2147483646, [282475248, 1457850877, 1115438164, 1137522502], 2007610676),
            (4294967295, [282475248, 2617694917, 1457850877, 3262921810], 3909979127),
            (1 << 62, [606610977102444280, 2456955214740286405, 3130710918123035464, 246548273502719458], 4100492472218473297),
            (u64::MAX, [606610977102444280, 11680327234415193037, 3130710918123035464, 13055523280712283859], 510142439227191038),
        ] {
            let mut engine = Engine::default();
            assert_eq!(first.map(|_| engine.uniform(0, largest)), first, "0 to {largest}");
            let nth = (0..1001).map(|_| engine.uniform(0, largest)).last();
            assert_eq!(nth, Some(later), "0 to {largest}");
        }
    }
}
