//! Sets of addresses.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that do not overlap; those that touch stay apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds what is missing of a range, and returns that.
    pub(super) fn add(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        let mut missing = Vec::new();
        let mut at = range.start;
        for known in self.overlapping(&range) {
            if at < known.start {
                missing.push(at..known.start);
            }
            at = at.max(known.end);
        }
        if at < range.end {
            missing.push(at..range.end);
        }
        self.0
            .extend(missing.iter().map(|new| (new.start, new.end)));
        missing
    }

    /// Removes a range, and returns the parts that were there.
    pub(super) fn remove(&mut self, range: Range<u64>) -> Vec<Range<u64>> {
        let known = self.overlapping(&range);
        for part in &known {
            self.0.remove(&part.start);
            if part.start < range.start {
                self.0.insert(part.start, range.start);
            }
            if range.end < part.end {
                self.0.insert(range.end, part.end);
            }
        }
        let inside = known.into_iter();
        let inside = inside.map(|part| part.start.max(range.start)..part.end.min(range.end));
        inside.collect()
    }

    /// Whether all of a range is in the set.
    pub(super) fn contain(&self, range: &Range<u64>) -> bool {
        let mut at = range.start;
        for known in self.overlapping(range) {
            if at < known.start {
                return false;
            }
            at = known.end;
        }
        at >= range.end
    }

    /// The ranges that have a part in this one, by address.
    pub(super) fn overlapping(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let before = self.0.range(..range.start).next_back();
        let before = before.filter(|(_, end)| **end > range.start);
        let inside = self.0.range(range.start..range.end.max(range.start));
        let all = before.into_iter().chain(inside);
        all.map(|(start, end)| *start..*end).collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.0.iter().map(|(start, end)| *start..*end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First and last of each.
    fn pairs(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<(u64, u64)> {
        let pairs = ranges.into_iter().map(|range| (range.start, range.end));
        pairs.collect()
    }

    #[test]
    fn what_is_there_is_neither_added_nor_removed_twice() {
        let mut ranges = Ranges::default();
        assert_eq!(pairs(ranges.add(10..20)), [(10, 20)]);
        assert_eq!(pairs(ranges.add(30..40)), [(30, 40)]);
        assert_eq!(pairs(ranges.add(5..50)), [(5, 10), (20, 30), (40, 50)]);
        assert_eq!(pairs(ranges.add(7..45)), []);
        assert!(ranges.contain(&(5..50)) && !ranges.contain(&(5..51)));
        let removed = ranges.remove(15..35);
        assert_eq!(pairs(removed), [(15, 20), (20, 30), (30, 35)]);
        assert!(!ranges.contain(&(14..16)) && ranges.contain(&(35..50)));
        assert_eq!(pairs(ranges.remove(0..12)), [(5, 10), (10, 12)]);
        assert_eq!(pairs(ranges.iter()), [(12, 15), (35, 40), (40, 50)]);
    }

    #[test]
    fn a_range_is_cut_out_of_a_longer_one() {
        let mut ranges = Ranges::default();
        ranges.add(0..100);
        assert_eq!(pairs(ranges.remove(40..60)), [(40, 60)]);
        assert_eq!(pairs(ranges.overlapping(&(0..100))), [(0, 40), (60, 100)]);
        assert_eq!(pairs(ranges.overlapping(&(40..60))), []);
    }
}
