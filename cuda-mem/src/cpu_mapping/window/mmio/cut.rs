//! Splits a copy into accesses.

#![forbid(unsafe_code)]

/// Bytes of a line: the size of a write-combining buffer and of a streaming load's fetch.
pub(super) const LINE: usize = 64;

/// Calls `piece` with the offset and the width of each access to `len` bytes of a mapping at `address`.
///
/// The accesses are in ascending order and cover each byte once. A width is a power of two up to `widest`, itself a
/// power of two and at most a line. Each access is aligned to its width and as wide as its position allows. Whole lines
/// are in the middle, so that a write-combining buffer fills at once, with at most ten accesses on each side of them.
// Inlined so that `widest`, and with it every branch, is constant in the loop over lines.
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

/// Width of the access at `address`, with `left` bytes remaining, at least 1.
fn width(address: usize, left: usize, widest: usize) -> usize {
    let aligned = 1 << (address | widest).trailing_zeros();
    let fits = 1 << left.ilog2();
    fits.min(aligned)
}
