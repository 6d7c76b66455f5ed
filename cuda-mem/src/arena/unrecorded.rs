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

#[cfg(test)]
mod tests {
    use super::*;

    /// An arena of as many units, the number of its streams, and how many freed units are enough.
    fn check(cases: &[(u64, u64, u64)], is_enough: impl Fn(UnrecordedFrees) -> bool) {
        for &(of_all, caches, enough) in cases {
            let freed = |units| UnrecordedFrees {
                units,
                of_all,
                caches,
            };
            assert!(is_enough(freed(enough)), "{:?}", freed(enough));
            assert!(!is_enough(freed(enough - 1)), "{:?}", freed(enough - 1));
        }
    }

    #[test]
    fn a_stream_is_queried_for_a_part_of_its_share() {
        let cases = [
            (LARGE, 1, 32 * PAGE_UNITS),
            (LARGE, 2, 16 * PAGE_UNITS),
            (LARGE, 100, LEAST),
            (PAGE_UNITS, 1, LEAST),
        ];
        check(&cases, |freed| freed.is_worth_a_query(true, false));
    }

    #[test]
    fn an_event_is_recorded_for_a_larger_part_or_a_page() {
        let cases = [
            (LARGE, 1, 256 * PAGE_UNITS),
            (LARGE, 2, 128 * PAGE_UNITS),
            (LARGE, 1000, PAGE_UNITS),
            (PAGE_UNITS, 1, PAGE_UNITS),
        ];
        check(&cases, UnrecordedFrees::is_worth_an_event);
    }
}
