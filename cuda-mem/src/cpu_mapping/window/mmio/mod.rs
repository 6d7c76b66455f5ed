//! Copies between ordinary memory and a *mapping*: memory that may be behind a bus, where each load and store is a
//! separate transaction.
//!
//! A mapping is accessed through raw pointers only: never through a Rust reference, and not by `memcpy`, which may
//! touch a byte twice, read what it is about to write, or make unaligned accesses. Here each access is volatile or
//! inline assembly, moves bytes that no other access moves, and is as wide as its position allows ([`cut()`]). A store
//! reads nothing from the mapping. The processor itself may fetch more: a streaming load from write-combining memory
//! fetches the whole line of 64 bytes, possibly speculatively. Reads of a mapping must therefore have no side effects.
//!
//! Copies contain no fence; [`fence_around_load`] and [`fence_after_store`] say which they need.

mod cut;
mod fence;
#[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
mod neon;
mod once;
mod pieces;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

use std::fmt;
use std::sync::OnceLock;

use cut::cut;
pub(super) use fence::{fence_after_store, fence_around_load};
pub(super) use once::{load_once, store_once};
use pieces::{Pieces, Plain};

/// The instructions of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Routine {
    /// Ordinary accesses of up to 8 bytes, on every processor.
    Plain,
    /// Accesses of 16 bytes, on aarch64.
    Neon,
    /// Streaming accesses of 16 bytes: stores of SSE2, loads of SSE4.1.
    Sse41,
    /// Streaming accesses of 32 bytes.
    Avx2,
    /// Streaming accesses of 64 bytes, a whole line.
    Avx512,
}

impl Routine {
    /// From the narrowest to the widest of each processor.
    const ALL: [Self; 5] = [
        Self::Plain,
        Self::Neon,
        Self::Sse41,
        Self::Avx2,
        Self::Avx512,
    ];

    /// The widest that this processor supports.
    pub(super) fn best() -> Self {
        static BEST: OnceLock<Routine> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().last().unwrap_or(Self::Plain))
    }

    /// All that this processor supports, the widest last.
    pub(super) fn available() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|routine| routine.is_here())
    }

    #[cfg(target_arch = "x86_64")]
    fn is_here(self) -> bool {
        // Miri does not run inline assembly.
        let vectors = !cfg!(miri);
        match self {
            Self::Plain => true,
            Self::Neon => false,
            Self::Sse41 => vectors && is_x86_feature_detected!("sse4.1"),
            Self::Avx2 => vectors && is_x86_feature_detected!("avx2"),
            // Its copies use AVX2 at their ends.
            Self::Avx512 => {
                vectors && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx2")
            }
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_here(self) -> bool {
        // Of the instruction set at compile time, because nearly every aarch64 target has it.
        let neon = cfg!(all(target_arch = "aarch64", target_feature = "neon"));
        match self {
            Self::Plain => true,
            Self::Neon => neon && !cfg!(miri),
            Self::Sse41 | Self::Avx2 | Self::Avx512 => false,
        }
    }

    fn copies(self) -> Copies {
        match self {
            #[cfg(all(target_arch = "aarch64", target_feature = "neon"))]
            Self::Neon => Copies::of::<neon::Neon>(),
            #[cfg(target_arch = "x86_64")]
            Self::Sse41 => Copies::of::<x86::Sse41>(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => Copies::of::<x86::Avx2>(),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => Copies::of::<x86::Avx512>(),
            _ => Copies::of::<Plain>(),
        }
    }
}

impl fmt::Display for Routine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Plain => "plain",
            Self::Neon => "NEON",
            Self::Sse41 => "SSE4.1",
            Self::Avx2 => "AVX2",
            Self::Avx512 => "AVX-512",
        })
    }
}

/// Copies `len` bytes from ordinary memory to a mapping; accesses nothing if `len` is 0.
///
/// This is one store if `len` is 1, 2, 4 or 8 and `to` is a multiple of it.
///
/// # Safety
///
/// The processor supports `routine`. `from` can be read and `to` written for `len` bytes, the two do not overlap, and
/// nothing else accesses either meanwhile, except devices, which may access the mapping. [`fence_after_store`] follows
/// on this thread before anything else accesses those bytes of `to`.
pub(super) unsafe fn store(routine: Routine, to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promises are those of the copy.
    unsafe { (routine.copies().store)(to, from, len) }
}

/// Copies `len` bytes from a mapping to ordinary memory; accesses nothing if `len` is 0.
///
/// This is one load if `len` is 1, 2, 4 or 8 and `from` is a multiple of it.
///
/// # Safety
///
/// As for [`store`], with the sides exchanged. Memory safety needs no fence; for ordering, see [`fence_around_load`].
pub(super) unsafe fn load(routine: Routine, to: *mut u8, from: *const u8, len: usize) {
    // SAFETY: the caller's promises are those of the copy.
    unsafe { (routine.copies().load)(to, from, len) }
}

/// Destination, source, number of bytes.
type Copy = unsafe fn(*mut u8, *const u8, usize);

/// The two copies of a routine.
struct Copies {
    store: Copy,
    load: Copy,
}

impl Copies {
    fn of<P: Pieces>() -> Self {
        Self {
            store: store_by::<P>,
            load: load_by::<P>,
        }
    }
}

/// # Safety
///
/// As for [`store`] with routine `P`.
unsafe fn store_by<P: Pieces>(to: *mut u8, from: *const u8, len: usize) {
    cut(to.addr(), len, P::WIDEST, move |at, width| {
        // SAFETY: a piece lies within the `len` bytes of both sides, and is aligned in the mapping.
        unsafe { P::store(to.wrapping_add(at), from.wrapping_add(at), width) }
    });
    // SAFETY: the processor supports this routine.
    unsafe { P::end(len) }
}

/// # Safety
///
/// As for [`load`] with routine `P`.
unsafe fn load_by<P: Pieces>(to: *mut u8, from: *const u8, len: usize) {
    cut(from.addr(), len, P::WIDEST, move |at, width| {
        // SAFETY: as in `store_by`.
        unsafe { P::load(to.wrapping_add(at), from.wrapping_add(at), width) }
    });
    // SAFETY: as in `store_by`.
    unsafe { P::end(len) }
}
