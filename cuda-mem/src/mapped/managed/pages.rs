//! How to pass a range to the driver so that every page it touches is included.
//!
//! Measured (R162): the driver rounds the start down to a page, and the length up. So a range across a page border may
//! cover its first page only, unless it begins at a page.

use cuda_driver_sys::CUdeviceptr;

/// Addresses and sizes, all within the buffer that begins at `own`: the driver refuses others. One piece from the
/// beginning of a page; two if the buffer begins within the first page and the range extends past it.
pub(super) fn pieces(
    own: CUdeviceptr,
    (start, bytes): (CUdeviceptr, usize),
    page: u64,
) -> impl Iterator<Item = (CUdeviceptr, usize)> {
    let end = start + bytes as u64;
    let first = start - start % page;
    let (head, tail) = if first >= own {
        ((first, end), None)
    } else {
        let border = end.min(first.saturating_add(page));
        ((start, border), (border < end).then_some((border, end)))
    };
    // Not longer than the buffer, which has a size.
    let piece = |(start, end)| (start, (end - start) as usize);
    std::iter::once(head).chain(tail).map(piece)
}

/// The same, with a separate piece for a last page that the range does not fill: otherwise the driver sometimes leaves
/// it out for small buffers (R162).
pub(super) fn last_apart(
    pieces: impl Iterator<Item = (CUdeviceptr, usize)>,
    page: u64,
) -> impl Iterator<Item = (CUdeviceptr, usize)> {
    pieces.flat_map(move |(start, bytes)| {
        let end = start + bytes as u64;
        let last = end - end % page;
        let is_split = last > start && last < end;
        let first = (
            start,
            if is_split {
                (last - start) as usize
            } else {
                bytes
            },
        );
        std::iter::once(first).chain(is_split.then(|| (last, (end - last) as usize)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    /// The pages that the driver applies a request to.
    fn taken(start: u64, bytes: usize) -> std::ops::Range<u64> {
        let first = start / PAGE;
        first..first + (bytes as u64).div_ceil(PAGE)
    }

    #[test]
    fn every_page_that_is_touched_is_taken_and_no_byte_outside_is_named() {
        for offset in [0, 512, PAGE - 512] {
            let own = 10 * PAGE + offset;
            let len = 3 * PAGE + 17;
            let bounds = [0, 1, 511, 512, 513, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE, len];
            for start in bounds {
                for end in bounds.into_iter().filter(|end| *end > start) {
                    let range = (own + start, (end - start) as usize);
                    let mut pages = Vec::new();
                    for (at, bytes) in pieces(own, range, PAGE) {
                        assert!(bytes > 0 && at >= own && at + bytes as u64 <= own + len);
                        pages.extend(taken(at, bytes));
                    }
                    let touched = (own + start) / PAGE..(own + end).div_ceil(PAGE);
                    assert_eq!(pages, Vec::from_iter(touched), "{offset}: {start}..{end}");
                }
            }
        }
    }

    #[test]
    fn a_last_page_that_is_not_whole_stands_by_itself() {
        let asked =
            |start, bytes| Vec::from_iter(last_apart(std::iter::once((start, bytes)), PAGE));
        assert_eq!(asked(PAGE, 100), [(PAGE, 100)]);
        assert_eq!(asked(PAGE, 8192), [(PAGE, 8192)]);
        assert_eq!(asked(PAGE, 4576), [(PAGE, 4096), (2 * PAGE, 480)]);
        assert_eq!(asked(PAGE + 3072, 1024), [(PAGE + 3072, 1024)]);
        assert_eq!(
            asked(PAGE + 3072, 1100),
            [(PAGE + 3072, 1024), (2 * PAGE, 76)]
        );
    }
}
