//! When it is time to query a stream, or to record an event in it.

#![forbid(unsafe_code)]

use super::PAGE_UNITS;

/// What was freed on a stream since its last recorded event, in units.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnrecordedFrees {
    pub(super) units: u64,
    pub(super) of_all: u64,
    pub(super) caches: u64,
}

/// Units of an arena in which memory in pieces costs much: 1 GiB.
const LARGE: u64 = 4096 * PAGE_UNITS;
/// Units for which a stream is asked at least: 1 MiB.
const LEAST: u64 = 4 * PAGE_UNITS;

impl UnrecordedFrees {
    /// Whether it is time to ask how far the stream is. What is not known to be done lies in pieces between that of
    /// other streams, and requests that want it whole make the arena grow. In a small arena that costs little, so
    /// nobody is asked while nobody is short of memory; nor by several threads at a time, where a query takes as long as
    /// all of them need for theirs.
    #[inline]
    pub(super) fn is_worth_a_query(self, is_short: bool, is_alone: bool) -> bool {
        (is_short || is_alone && self.of_all >= LARGE)
            && self.units >= (self.of_all / 128 / self.caches).max(LEAST)
    }

    /// Whether it is time for an event while other streams are short of memory.
    #[inline]
    pub(super) fn is_worth_an_event(self) -> bool {
        self.units >= (self.of_all / 16 / self.caches).max(PAGE_UNITS)
    }
}
