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

/// Units of an arena in which fragmented memory is expensive: 1 GiB.
const LARGE: u64 = 4096 * PAGE_UNITS;
/// The minimum units for which a stream is queried: 1 MiB.
const LEAST: u64 = 4 * PAGE_UNITS;

impl UnrecordedFrees {
    /// Whether it is time to query the stream. Memory that is not known to be done is fragmented by that of other
    /// streams, and requests for contiguous memory make the arena grow. In a small arena that costs little, so no
    /// stream is queried unless one is short of memory. The same holds if several threads are active, because a query
    /// then takes as long as the queries of all of them.
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
