//! A set of ranges that merge when adjacent, with a best-fit index.

use std::collections::{BTreeMap, BTreeSet};

/// Ranges of addresses, neither overlapping nor adjacent.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    by_start: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
}

impl Runs {
    fn insert(&mut self, start: u64, len: u64) {
        self.by_start.insert(start, len);
        self.by_len.insert((len, start));
    }

    fn delete(&mut self, start: u64, len: u64) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }

    /// Adds a range that does not overlap the set.
    pub(crate) fn add(&mut self, mut start: u64, mut len: u64) {
        if len == 0 {
            return;
        }
        let before = self.by_start.range(..start).next_back();
        if let Some((&at, &size)) = before.filter(|(at, size)| *at + *size == start) {
            self.delete(at, size);
            start = at;
            len += size;
        }
        if let Some(&size) = self.by_start.get(&(start + len)) {
            self.delete(start + len, size);
            len += size;
        }
        self.insert(start, len);
    }

    /// Removes the part of the set within a range.
    pub(crate) fn remove(&mut self, start: u64, len: u64) {
        let end = start + len;
        while let Some((at, size)) = self.last_before(end).filter(|(at, size)| at + size > start) {
            self.delete(at, size);
            if at + size > end {
                self.insert(end, at + size - end);
            }
            if at < start {
                self.insert(at, start - at);
                return;
            }
        }
    }

    fn last_before(&self, end: u64) -> Option<(u64, u64)> {
        let (&at, &size) = self.by_start.range(..end).next_back()?;
        Some((at, size))
    }

    /// The shortest run of at least `len`, the lowest of equals: start and length.
    pub(crate) fn best_fit(&self, len: u64) -> Option<(u64, u64)> {
        let &(size, start) = self.by_len.range((len, 0)..).next()?;
        Some((start, size))
    }

    /// The starts of all runs of that shortest length.
    pub(crate) fn best_fits(&self, len: u64) -> impl Iterator<Item = u64> + '_ {
        let shortest = self.best_fit(len).map(|(_, size)| size);
        let equal = self.by_len.range((shortest.unwrap_or(u64::MAX), 0)..);
        equal
            .take_while(move |(size, _)| Some(*size) == shortest)
            .map(|(_, start)| *start)
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.by_start.iter().map(|(&start, &len)| (start, len))
    }

    /// The parts of the set within a range, as starts and lengths.
    pub(crate) fn parts(&self, start: u64, len: u64) -> Vec<(u64, u64)> {
        let end = start + len;
        let before = self.by_start.range(..start).next_back();
        let all = before.into_iter().chain(self.by_start.range(start..end));
        let cut = all.map(|(&at, &size)| (at.max(start), (at + size).min(end)));
        cut.filter(|(at, end)| at < end)
            .map(|(at, end)| (at, end - at))
            .collect()
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    pub(crate) fn contains(&self, address: u64) -> bool {
        self.last_before(address + 1)
            .is_some_and(|(at, size)| address < at + size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(ranges: &[(u64, u64)]) -> Runs {
        let mut runs = Runs::default();
        for (start, len) in ranges {
            runs.add(*start, *len);
        }
        runs
    }

    fn list(runs: &Runs) -> Vec<(u64, u64)> {
        assert_eq!(runs.by_len.len(), runs.by_start.len());
        runs.iter().collect()
    }

    #[test]
    fn neighbours_grow_together() {
        assert_eq!(list(&runs(&[(0, 4), (8, 4), (4, 4)])), [(0, 12)]);
        assert_eq!(list(&runs(&[(0, 4), (8, 4)])), [(0, 4), (8, 4)]);
    }

    #[test]
    fn removing_splits_and_spans() {
        let mut set = runs(&[(0, 12)]);
        set.remove(4, 4);
        assert_eq!(list(&set), [(0, 4), (8, 4)]);
        set.remove(2, 8);
        assert_eq!(list(&set), [(0, 2), (10, 2)]);
        set.remove(0, 100);
        assert!(set.is_empty());
    }

    #[test]
    fn parts_are_cut_at_the_ends_of_the_range() {
        let set = runs(&[(0, 8), (10, 4), (20, 4)]);
        assert_eq!(set.parts(4, 8), [(4, 4), (10, 2)]);
        assert_eq!(set.parts(8, 2), []);
        assert_eq!(set.parts(0, 100), [(0, 8), (10, 4), (20, 4)]);
    }

    #[test]
    fn the_best_fit_is_the_shortest_and_lowest() {
        let set = runs(&[(0, 8), (10, 4), (20, 4), (30, 5)]);
        assert_eq!(set.best_fit(3), Some((10, 4)));
        assert_eq!(set.best_fit(5), Some((30, 5)));
        assert_eq!(set.best_fit(9), None);
        assert!(set.contains(34) && !set.contains(35));
    }
}
