//! When it is time to learn how far a stream is.

#![forbid(unsafe_code)]

use super::PAGE_UNITS;

/// What was given back on a stream since its last mark, in units.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unmarked {
    pub(super) units: u64,
    pub(super) of_all: u64,
    pub(super) lanes: u64,
}

/// Units of an arena in which memory in pieces costs much: 1 GiB.
const LARGE: u64 = 4096 * PAGE_UNITS;
/// Units for which a stream is asked at least: 4 MiB.
const LEAST: u64 = 16 * PAGE_UNITS;

impl Unmarked {
    /// Whether it is time to ask how far the stream is. What is not known to be done lies in pieces between that of other
    /// streams, and requests that want it whole make the arena grow. In a small arena that costs little, so nobody is
    /// asked while nobody is short of memory.
    #[inline]
    pub(super) fn is_worth_a_look(self, is_short: bool) -> bool {
        (is_short || self.of_all >= LARGE) && self.units >= (self.of_all / 256).max(LEAST)
    }

    /// Whether it is time for a mark while other streams are short of memory.
    #[inline]
    pub(super) fn is_worth_a_mark(self) -> bool {
        self.units >= (self.of_all / 16 / self.lanes).max(PAGE_UNITS)
    }
}
