//! Advice given on managed memory, page by page.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;

use cuda_driver_sys::{CU_DEVICE_CPU, CU_DEVICE_INVALID, CUmemLocationType};
use cuda_sim_support::page::host_page;

use super::{DEVICE, HOST, HOST_NUMA, HOST_NUMA_CURRENT};

/// A kind of location and its number.
pub(super) type Spot = (CUmemLocationType, c_int);

/// The advice on a page.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) read_mostly: bool,
    pub(super) preferred: Option<Spot>,
    /// Device numbers, or the host's.
    pub(super) accessed_by: BTreeSet<c_int>,
    pub(super) prefetched: Option<Spot>,
}

/// Pages with advice, as disjoint ranges: start, end, and the advice.
#[derive(Debug, Default)]
pub(crate) struct Hearsay(BTreeMap<u64, (u64, Told)>);

/// The pages that a range affects. Measured: the start is rounded down and the length up, so a range that crosses a
/// page boundary may affect only the first page.
fn pages(start: u64, len: u64) -> (u64, u64) {
    let first = start / host_page();
    (first, first + len.div_ceil(host_page()))
}

impl Hearsay {
    /// Splits the range that crosses the start of `page`, if any.
    fn cut(&mut self, page: u64) {
        let Some((_, (end, told))) = self.0.range_mut(..page).next_back() else {
            return;
        };
        if *end > page {
            let rest = (std::mem::replace(end, page), told.clone());
            self.0.insert(page, rest);
        }
    }

    /// Changes the advice on every page that a range of bytes affects.
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

    /// The advice on each part of a range of bytes, including parts without any.
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

    /// The memory is freed. A guess: small blocks that share pages leave their advice to later ones.
    pub(crate) fn end(&mut self, start: u64, len: u64) {
        let whole = len + start % host_page();
        self.tell(start, whole, |told| *told = Told::default());
    }
}

/// The value common to all parts, if any.
pub(super) fn common(all: &[Told], of: impl Fn(&Told) -> Option<Spot>) -> Option<Spot> {
    let (first, rest) = all.split_first()?;
    let spot = of(first)?;
    rest.iter()
        .all(|told| of(told) == Some(spot))
        .then_some(spot)
}

/// The number of a location. Measured with prefetches: a NUMA node of the host counts as the host.
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
        hearsay.tell(2 * host_page() + 1, host_page() + 1, |told| {
            told.read_mostly = true
        });
        assert_eq!(reads(&hearsay, 2 * host_page(), 2 * host_page()), [true]);
        assert_eq!(
            reads(&hearsay, host_page(), 4 * host_page()),
            [false, true, false]
        );
        assert_eq!(reads(&hearsay, 3 * host_page() + 7, 1), [true]);
        hearsay.tell(3 * host_page(), 1, |told| told.preferred = Some(NODE));
        assert_eq!(
            reads(&hearsay, 2 * host_page(), 2 * host_page()),
            [true, true]
        );
        let preferred = |start, len| common(&hearsay.of(start, len), |told| told.preferred);
        assert_eq!(preferred(3 * host_page(), host_page()), Some(NODE));
        assert_eq!(preferred(2 * host_page(), 2 * host_page()), None);
        assert_eq!(preferred(3 * host_page(), 2 * host_page()), None);
        hearsay.tell(0, 10 * host_page(), |told| told.read_mostly = false);
        assert_eq!(hearsay.0.len(), 1);
        hearsay.end(3 * host_page(), 1);
        assert!(hearsay.0.is_empty());
    }

    #[test]
    fn the_last_addresses_are_pages_too() {
        let mut hearsay = Hearsay::default();
        hearsay.tell(u64::MAX - 1, 5, |told| told.read_mostly = true);
        assert_eq!(reads(&hearsay, u64::MAX - 10, 10), [true]);
    }
}
