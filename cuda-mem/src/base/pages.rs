//! Whole pages around a range, and the size of the host's.

use cuda_driver_sys::CUdeviceptr;

/// The smallest page size of any host, in bytes.
const SMALLEST_HOST_PAGE: u64 = 4096;

/// The page size of the host, in bytes.
#[cfg(unix)]
pub(crate) fn host_page() -> u64 {
    // SAFETY: asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(page)
        .unwrap_or(SMALLEST_HOST_PAGE)
        .max(SMALLEST_HOST_PAGE)
}

/// The page size of the host, in bytes.
#[cfg(not(unix))]
pub(crate) fn host_page() -> u64 {
    SMALLEST_HOST_PAGE
}

/// The whole pages around a range: their start and size in bytes; `None` past the last address.
pub(crate) fn around(
    (address, bytes): (CUdeviceptr, usize),
    page: u64,
) -> Option<(CUdeviceptr, usize)> {
    let first = address - address % page;
    let end = address
        .checked_add(bytes as u64)?
        .checked_next_multiple_of(page)?;
    Some((first, usize::try_from(end - first).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_whole_and_around_the_range() {
        for (range, page, expected) in [
            ((0x1000, 1), 4096, Some((0x1000, 4096))),
            ((0x1fff, 2), 4096, Some((0x1000, 8192))),
            ((0x1200, 0x1000), 4096, Some((0x1000, 8192))),
            ((u64::MAX - 1, 2), 4096, None),
            ((0x10000, 1), 1 << 16, Some((0x10000, 0x10000))),
            ((0x1ffff, 2), 1 << 16, Some((0x10000, 0x20000))),
            ((0x20004, 0x10000), 1 << 16, Some((0x20000, 0x20000))),
            ((u64::MAX - 4, 4), 1 << 16, None),
            ((u64::MAX, 2), 1 << 16, None),
        ] {
            assert_eq!(around(range, page), expected, "{range:?} {page}");
        }
    }

    #[test]
    fn a_page_of_the_host_is_a_power_of_two() {
        assert!(host_page().is_power_of_two());
        assert!(host_page() >= SMALLEST_HOST_PAGE);
    }
}
