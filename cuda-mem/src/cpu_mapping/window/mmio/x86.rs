//! Streaming accesses of x86-64 through a vector register.
//!
//! Inline assembly rather than `core::arch`: its streaming loads are marked as pure, so the compiler may omit or repeat
//! one, assuming that nothing else changes the memory. The 64-byte ones also need a newer Rust than this crate.

use std::arch::asm;

use super::pieces::{Pieces, Plain};

/// Loads a vector from `[from]` with one instruction and stores it to `[to]` with another.
macro_rules! through {
    ($register:literal, $take:literal, $from:expr, $put:literal, $to:expr) => {
        asm!(
            concat!($take, " ", $register, ", [{from}]"),
            concat!($put, " [{to}], ", $register),
            from = in(reg) $from,
            to = in(reg) $to,
            // The whole register by its oldest name, which is known whatever target features are enabled.
            out("xmm0") _,
            options(nostack, preserves_flags),
        )
    };
}

/// Accesses of one width; another type makes the narrower ones. The instructions are: the unaligned move for ordinary
/// memory in either direction, then the store and the load for the mapping.
macro_rules! vectors {
    ($(#[$doc:meta])* $name:ident: $width:literal bytes in $register:literal by
     $ordinary:literal, $store:literal, $load:literal; narrower $narrower:ty; $(end $end:path)?) => {
        $(#[$doc])*
        pub(super) struct $name;

        impl Pieces for $name {
            const WIDEST: usize = $width;

            #[inline(always)]
            unsafe fn store(to: *mut u8, from: *const u8, width: usize) {
                if width < $width {
                    // SAFETY: the caller's promises; the width suits the narrower type.
                    return unsafe { <$narrower>::store(to, from, width) };
                }
                // SAFETY: the caller's promises: both sides are valid, and the mapping's is aligned.
                unsafe { through!($register, $ordinary, from, $store, to) }
            }

            #[inline(always)]
            unsafe fn load(to: *mut u8, from: *const u8, width: usize) {
                if width < $width {
                    // SAFETY: as in `store`.
                    return unsafe { <$narrower>::load(to, from, width) };
                }
                // SAFETY: as in `store`.
                unsafe { through!($register, $load, from, $ordinary, to) }
            }

            $(#[inline(always)]
            unsafe fn end(len: usize) {
                // SAFETY: the processor supports this routine, hence AVX.
                unsafe { $end(len) }
            })?
        }
    };
}

vectors! {
    Sse41: 16 bytes in "xmm0" by "movdqu", "movntdq", "movntdqa";
    narrower Plain;
}
vectors! {
    /// In AVX encoding, for the ends of copies with wider registers: the legacy encoding is slow between instructions
    /// that use those.
    Short: 16 bytes in "xmm0" by "vmovdqu", "vmovntdq", "vmovntdqa";
    narrower Plain;
}
vectors! {
    Avx2: 32 bytes in "ymm0" by "vmovdqu", "vmovntdq", "vmovntdqa";
    narrower Short; end clear_upper_halves
}
vectors! {
    Avx512: 64 bytes in "zmm0" by "vmovdqu64", "vmovntdq", "vmovntdqa";
    narrower Avx2; end clear_upper_halves
}

/// Clears the register beyond 16 bytes after a copy of `len` bytes that may have used it: until then, code not compiled
/// for AVX runs slowly.
///
/// # Safety
///
/// The processor supports AVX.
#[inline(always)]
unsafe fn clear_upper_halves(len: usize) {
    if len < Avx2::WIDEST {
        return;
    }
    // SAFETY: the caller checked for AVX. The calling convention named here lets a function change every vector
    // register, so the compiler keeps nothing in one across this.
    unsafe { asm!("vzeroupper", clobber_abi("sysv64"), options(nomem, nostack)) }
}
