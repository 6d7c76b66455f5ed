//! Streaming accesses of x86-64, through a vector register.
//!
//! Written out as instructions rather than with the functions of `core::arch`. Of those, the streaming
//! loads are marked as pure: the compiler may leave one out, or do it twice, since it takes them for loads
//! of memory that nothing else changes. The 64-byte ones also need a newer Rust than this crate.

use std::arch::asm;

use super::pieces::{Pieces, Plain};

/// Takes a vector from `[from]` with one instruction and puts it to `[to]` with another.
macro_rules! through {
    ($register:literal, $take:literal, $from:expr, $put:literal, $to:expr) => {
        asm!(
            concat!($take, " ", $register, ", [{from}]"),
            concat!($put, " [{to}], ", $register),
            from = in(reg) $from,
            to = in(reg) $to,
            // The whole register by its oldest name, which is known whatever the crate is compiled for.
            out("xmm0") _,
            options(nostack, preserves_flags),
        )
    };
}

/// Accesses of one width; the narrower ones are another's. The instructions: one for ordinary memory in
/// either direction and at any address, then the store and the load for the mapping.
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
                    // SAFETY: the caller's promises, and the narrower one's width.
                    return unsafe { <$narrower>::store(to, from, width) };
                }
                // SAFETY: the caller's promises: both sides are there, the mapping's is aligned.
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
                // SAFETY: the processor has this routine, and so AVX.
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
    /// In the encoding of AVX, for the ends of copies with wider registers: the old one is slow between
    /// instructions that use those.
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

/// Clears what a register has beyond 16 bytes, after a copy of `len` bytes that may have used it: until
/// then, code that does not know of AVX runs slowly.
///
/// # Safety
///
/// The processor has AVX.
#[inline(always)]
unsafe fn clear_upper_halves(len: usize) {
    if len < Avx2::WIDEST {
        return;
    }
    // SAFETY: the caller has looked for AVX. The convention named here lets a function change every
    // vector register, so the compiler keeps nothing in one across this.
    unsafe { asm!("vzeroupper", clobber_abi("sysv64"), options(nomem, nostack)) }
}
