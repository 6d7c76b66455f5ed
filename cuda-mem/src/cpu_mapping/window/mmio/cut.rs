//! Where a copy is cut into accesses.

#![forbid(unsafe_code)]

/// Bytes of a line: what a write-combining buffer holds, and what a streaming load fetches.
pub(super) const LINE: usize = 64;

/// Names the accesses to `len` bytes of a mapping that start at `address`: how far from there each is, and
/// how many bytes it moves.
///
/// Every byte belongs to one access, and they come in ascending order. The width is a power of two, up to
/// `widest`, which is one itself and at most a line; the access is aligned to it; and it is twice as wide
/// wherever that would be so too. Whole lines are in the middle, so that a buffer that combines stores
/// fills at once, and at most ten accesses on each side of them.
// Inlined for the sake of the loop over lines: there `widest` and with it every branch is known.
#[inline(always)]
pub(super) fn cut(address: usize, len: usize, widest: usize, mut piece: impl FnMut(usize, usize)) {
    let mut at = 0;
    while at < len && !address.wrapping_add(at).is_multiple_of(LINE) {
        let width = width(address.wrapping_add(at), len - at, widest);
        piece(at, width);
        at += width;
    }
    let lines_end = len - (len - at) % LINE;
    while at < lines_end {
        let mut part = 0;
        while part < LINE {
            piece(at + part, widest);
            part += widest;
        }
        at += LINE;
    }
    while at < len {
        let width = width(address.wrapping_add(at), len - at, widest);
        piece(at, width);
        at += width;
    }
}

/// Of the access at `address` to the first of `left` bytes, which are not 0.
fn width(address: usize, left: usize, widest: usize) -> usize {
    let aligned = 1 << (address | widest).trailing_zeros();
    let fits = 1 << left.ilog2();
    fits.min(aligned)
}
