//! Single accesses, by their width.

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
    /// The processor has the routine. `width` is a power of two up to the widest, `to` is a multiple of it,
    /// and so many bytes can be read at `from` and written at `to`.
    unsafe fn store(to: *mut u8, from: *const u8, width: usize);

    /// Moves `width` bytes out of a mapping, with one load.
    ///
    /// # Safety
    ///
    /// As of [`Pieces::store`], but `from` is what is a multiple of `width`.
    unsafe fn load(to: *mut u8, from: *const u8, width: usize);

    /// Ends a copy of `len` bytes.
    ///
    /// # Safety
    ///
    /// The processor has the routine.
    #[inline(always)]
    unsafe fn end(_len: usize) {}
}

/// Volatile accesses to the mapping of up to 8 bytes. The other side may lie anywhere.
pub(super) type Plain = Word<u64, Word<u32, Word<u16, Word<u8, ()>>>>;

/// Accesses of the integer `W`; the narrower ones are `N`'s.
pub(super) struct Word<W, N>(PhantomData<(W, N)>);

impl<W: Pod, N: Pieces> Pieces for Word<W, N> {
    const WIDEST: usize = size_of::<W>();

    #[inline(always)]
    unsafe fn store(to: *mut u8, from: *const u8, width: usize) {
        if width < Self::WIDEST {
            // SAFETY: the caller's promises.
            return unsafe { N::store(to, from, width) };
        }
        // SAFETY: the caller lets so many bytes be read.
        let word: W = unsafe { from.cast::<W>().read_unaligned() };
        // SAFETY: and be written, where `to` is a multiple of their number.
        unsafe { store_once(to.cast(), word) }
    }

    #[inline(always)]
    unsafe fn load(to: *mut u8, from: *const u8, width: usize) {
        if width < Self::WIDEST {
            // SAFETY: the caller's promises.
            return unsafe { N::load(to, from, width) };
        }
        // SAFETY: the caller lets so many bytes be read, where `from` is a multiple of their number.
        let word: W = unsafe { load_once(from.cast()) };
        // SAFETY: and be written.
        unsafe { to.cast::<W>().write_unaligned(word) }
    }
}

/// Below a byte there is nothing.
impl Pieces for () {
    const WIDEST: usize = 0;

    unsafe fn store(_: *mut u8, _: *const u8, _: usize) {}

    unsafe fn load(_: *mut u8, _: *const u8, _: usize) {}
}
