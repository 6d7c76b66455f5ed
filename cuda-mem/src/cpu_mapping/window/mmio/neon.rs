//! Accesses of 16 bytes of aarch64 through a vector register.
//!
//! Inline assembly rather than the intrinsics of `core::arch`: those are ordinary accesses for the compiler, which may
//! omit, repeat or merge them. No non-temporal pairs: the architecture lets a processor split a pair anywhere, and what
//! they would gain was not measured.

use std::arch::asm;

use super::pieces::{Pieces, Plain};

/// One load and one store of a whole vector, whatever the byte order.
pub(super) struct Neon;

/// Loads 16 bytes with one instruction and stores them with another.
///
/// # Safety
///
/// 16 bytes can be read at `from` and written at `to`; the side of a mapping is a multiple of 16.
#[inline(always)]
unsafe fn through(to: *mut u8, from: *const u8) {
    // SAFETY: the caller's promises. Ordinary memory needs no alignment, and this module is compiled only where NEON is
    // part of the target.
    unsafe {
        asm!(
            "ldr {vector:q}, [{from}]",
            "str {vector:q}, [{to}]",
            vector = out(vreg) _,
            from = in(reg) from,
            to = in(reg) to,
            options(nostack, preserves_flags),
        )
    }
}

impl Pieces for Neon {
    const WIDEST: usize = 16;

    #[inline(always)]
    unsafe fn store(to: *mut u8, from: *const u8, width: usize) {
        if width < Self::WIDEST {
            // SAFETY: the caller's promises; the width suits the narrower type.
            return unsafe { Plain::store(to, from, width) };
        }
        // SAFETY: the caller's promises: both sides are valid, and the mapping's is aligned.
        unsafe { through(to, from) }
    }

    #[inline(always)]
    unsafe fn load(to: *mut u8, from: *const u8, width: usize) {
        if width < Self::WIDEST {
            // SAFETY: as in `store`.
            return unsafe { Plain::load(to, from, width) };
        }
        // SAFETY: as in `store`.
        unsafe { through(to, from) }
    }
}
