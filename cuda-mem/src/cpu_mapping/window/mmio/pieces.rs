//! Single accesses by width.

use std::marker::PhantomData;

use bytemuck::Pod;

use super::once::{load_once, store_once};

/// The accesses of one routine.
pub(super) trait Pieces {
    /// Bytes of the widest access.
    const WIDEST: usize;

    /// Moves `width` bytes into a mapping, with one store.
    ///
    /// # Safety
    ///
    /// The processor supports the routine. `width` is a power of two up to the widest, `to` is a multiple of it, and
    /// `width` bytes can be read at `from` and written at `to`.
    unsafe fn store(to: *mut u8, from: *const u8, width: usize);

    /// Moves `width` bytes out of a mapping, with one load.
    ///
    /// # Safety
    ///
    /// As for [`Pieces::store`], but `from`, not `to`, is a multiple of `width`.
    unsafe fn load(to: *mut u8, from: *const u8, width: usize);

    /// Called at the end of a copy of `len` bytes.
    ///
    /// # Safety
    ///
    /// The processor supports the routine.
    #[inline(always)]
    unsafe fn end(_len: usize) {}
}

/// Volatile accesses to the mapping of up to 8 bytes. The other side needs no alignment.
pub(super) type Plain = Word<u64, Word<u32, Word<u16, Word<u8, ()>>>>;

/// Accesses of integer `W`; `N` makes the narrower ones.
pub(super) struct Word<W, N>(PhantomData<(W, N)>);

impl<W: Pod, N: Pieces> Pieces for Word<W, N> {
    const WIDEST: usize = size_of::<W>();

    #[inline(always)]
    unsafe fn store(to: *mut u8, from: *const u8, width: usize) {
        if width < Self::WIDEST {
            // SAFETY: the caller's promises.
            return unsafe { N::store(to, from, width) };
        }
        // SAFETY: the caller guarantees that `width` bytes can be read.
        let word: W = unsafe { from.cast::<W>().read_unaligned() };
        // SAFETY: and written, where `to` is a multiple of `width`.
        unsafe { store_once(to.cast(), word) }
    }

    #[inline(always)]
    unsafe fn load(to: *mut u8, from: *const u8, width: usize) {
        if width < Self::WIDEST {
            // SAFETY: the caller's promises.
            return unsafe { N::load(to, from, width) };
        }
        // SAFETY: the caller guarantees that `width` bytes can be read, and `from` is a multiple of `width`.
        let word: W = unsafe { load_once(from.cast()) };
        // SAFETY: and be written.
        unsafe { to.cast::<W>().write_unaligned(word) }
    }
}

/// Ends the chain: no access is narrower than a byte.
impl Pieces for () {
    const WIDEST: usize = 0;

    unsafe fn store(_: *mut u8, _: *const u8, _: usize) {}

    unsafe fn load(_: *mut u8, _: *const u8, _: usize) {}
}
