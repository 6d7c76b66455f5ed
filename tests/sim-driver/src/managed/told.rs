//! What the driver was told of managed memory, page by page.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;

use cuda_driver_sys::{CU_DEVICE_CPU, CU_DEVICE_INVALID, CUmemLocationType};

use super::{DEVICE, HOST, HOST_NUMA, HOST_NUMA_CURRENT};

/// What is told of goes by pages of the host.
const PAGE: u64 = 4096;

/// A kind of place and its number.
pub(super) type Spot = (CUmemLocationType, c_int);

/// What was told of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) read_mostly: bool,
    pub(super) preferred: Option<Spot>,
    /// Numbers of devices, or that of the host.
    pub(super) accessed_by: BTreeSet<c_int>,
    pub(super) prefetched: Option<Spot>,
}

/// Pages of which something was told, as ranges that do not overlap: where each begins, its end, and what was
/// told of it.
#[derive(Debug, Default)]
pub(crate) struct Hearsay(BTreeMap<u64, (u64, Told)>);

/// The pages that a range is about. Measured: the start is rounded down and the length up, so that a range over
/// a border may be about the first page only.
fn pages(start: u64, len: u64) -> (u64, u64) {
    let first = start / PAGE;
    (first, first + len.div_ceil(PAGE))
}

impl Hearsay {
    /// No range goes across a page's beginning afterwards.
    fn cut(&mut self, page: u64) {
        let Some((_, (end, told))) = self.0.range_mut(..page).next_back() else {
            return;
        };
        if *end > page {
            let rest = (std::mem::replace(end, page), told.clone());
            self.0.insert(page, rest);
        }
    }

    /// Changes what was told of every page that a range of bytes is about.
    pub(super) fn tell(&mut self, start: u64, len: u64, change: impl Fn(&mut Told)) {
        let (first, end) = pages(start, len);
        self.cut(first);
        self.cut(end);
        let known = self.0.range(first..end);
        let known: Vec<(u64, u64)> = known.map(|(&at, &(until, _))| (at, until)).collect();
        let mut at = first;
        for (begins, until) in known.into_iter().chain([(end, end)]) {
            if at < begins {
                self.0.insert(at, (begins, Told::default()));
            }
            at = until;
        }
        for (_, (_, told)) in self.0.range_mut(first..end) {
            change(told);
        }
        self.0.retain(|_, (_, told)| *told != Told::default());
    }

    /// What was told of each part of a range of bytes; of a part of which nothing was, that too.
    pub(super) fn of(&self, start: u64, len: u64) -> Vec<Told> {
        let (first, end) = pages(start, len);
        let before = self.0.range(..first).next_back();
        let before = before.filter(|(_, (until, _))| *until > first);
        let (mut at, mut all) = (first, Vec::new());
        for (&begins, (until, told)) in before.into_iter().chain(self.0.range(first..end)) {
            if begins > at {
                all.push(Told::default());
            }
            all.push(told.clone());
            at = *until;
        }
        if at < end {
            all.push(Told::default());
        }
        all
    }

    /// The memory is gone. A guess: small blocks that share pages leave what was told of them to the next.
    pub(crate) fn end(&mut self, start: u64, len: u64) {
        let whole = len + start % PAGE;
        self.tell(start, whole, |told| *told = Told::default());
    }
}

/// What is the same in all parts, if it is.
pub(super) fn common(all: &[Told], of: impl Fn(&Told) -> Option<Spot>) -> Option<Spot> {
    let (first, rest) = all.split_first()?;
    let spot = of(first)?;
    rest.iter()
        .all(|told| of(told) == Some(spot))
        .then_some(spot)
}

/// A place as a number. Measured of prefetches: a node of the host is the host.
pub(super) fn number(spot: Option<Spot>) -> c_int {
    match spot {
        Some((DEVICE, id)) => id,
        Some((HOST | HOST_NUMA | HOST_NUMA_CURRENT, _)) => CU_DEVICE_CPU,
        _ => CU_DEVICE_INVALID,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: Spot = (HOST_NUMA, 0);

    fn reads(hearsay: &Hearsay, start: u64, len: u64) -> Vec<bool> {
        let all = hearsay.of(start, len);
        all.iter().map(|told| told.read_mostly).collect()
    }

    #[test]
    fn pages_are_told_of_as_a_whole_and_told_apart() {
        let mut hearsay = Hearsay::default();
        hearsay.tell(2 * PAGE + 1, PAGE + 1, |told| told.read_mostly = true);
        assert_eq!(reads(&hearsay, 2 * PAGE, 2 * PAGE), [true]);
        assert_eq!(reads(&hearsay, PAGE, 4 * PAGE), [false, true, false]);
        assert_eq!(reads(&hearsay, 3 * PAGE + 7, 1), [true]);
        hearsay.tell(3 * PAGE, 1, |told| told.preferred = Some(NODE));
        assert_eq!(reads(&hearsay, 2 * PAGE, 2 * PAGE), [true, true]);
        let preferred = |start, len| common(&hearsay.of(start, len), |told| told.preferred);
        assert_eq!(preferred(3 * PAGE, PAGE), Some(NODE));
        assert_eq!(preferred(2 * PAGE, 2 * PAGE), None);
        assert_eq!(preferred(3 * PAGE, 2 * PAGE), None);
        hearsay.tell(0, 10 * PAGE, |told| told.read_mostly = false);
        assert_eq!(hearsay.0.len(), 1);
        hearsay.end(3 * PAGE, 1);
        assert!(hearsay.0.is_empty());
    }

    #[test]
    fn the_last_addresses_are_pages_too() {
        let mut hearsay = Hearsay::default();
        hearsay.tell(u64::MAX - 1, 5, |told| told.read_mostly = true);
        assert_eq!(reads(&hearsay, u64::MAX - 10, 10), [true]);
    }
}
