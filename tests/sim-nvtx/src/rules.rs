//! What was registered, and whether the calls are consistent.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// compute-sanitizer's limit for names.
const LONGEST_NAME: usize = 49;

#[derive(Debug)]
struct Region {
    bytes: u64,
    name: String,
}

/// The heaps and regions of a process.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Bytes by address.
    heaps: BTreeMap<u64, u64>,
    regions: BTreeMap<u64, Region>,
    /// Heaps and regions so far.
    all_heaps: u64,
    all_regions: u64,
    faults: Vec<String>,
}

/// Whether a range overlaps the one with the highest address below its end.
fn overlaps(before: Option<(u64, u64)>, address: u64) -> bool {
    before.is_some_and(|(start, bytes)| start + bytes > address)
}

impl Known {
    pub(crate) fn fault(&mut self, what: String) {
        eprintln!("nvtx-sim: {what}");
        self.faults.push(what);
    }

    pub(crate) fn add_heap(&mut self, address: u64, bytes: u64) {
        let before = self.heaps.range(..address + bytes).next_back();
        if bytes == 0 || overlaps(before.map(|(start, bytes)| (*start, *bytes)), address) {
            self.fault(format!(
                "a heap of {bytes} bytes at {address:#x} is empty or overlaps another"
            ));
            return;
        }
        self.all_heaps += 1;
        self.heaps.insert(address, bytes);
    }

    pub(crate) fn reset_heap(&mut self, heap: u64) {
        match self.heaps.get(&heap) {
            Some(bytes) => {
                let end = heap + bytes;
                self.regions
                    .retain(|address, _| !(heap..end).contains(address));
            }
            None => self.fault(format!("there is no heap at {heap:#x}")),
        }
    }

    pub(crate) fn remove_heap(&mut self, heap: u64) {
        self.reset_heap(heap);
        self.heaps.remove(&heap);
    }

    pub(crate) fn add_region(&mut self, heap: u64, address: u64, bytes: u64) {
        let Some(of_heap) = self.heaps.get(&heap) else {
            self.fault(format!(
                "a region for a heap at {heap:#x}, which there is not"
            ));
            return;
        };
        let is_inside = heap <= address && address + bytes <= heap + of_heap;
        let before = self.regions.range(..address + bytes).next_back();
        let is_taken = overlaps(
            before.map(|(start, region)| (*start, region.bytes)),
            address,
        );
        if bytes == 0 || !is_inside || is_taken {
            self.fault(format!(
                "a region of {bytes} bytes at {address:#x} is empty, not in its heap, or overlaps another"
            ));
            return;
        }
        self.all_regions += 1;
        let name = String::new();
        self.regions.insert(address, Region { bytes, name });
    }

    pub(crate) fn remove_region(&mut self, address: u64) {
        if self.regions.remove(&address).is_none() {
            self.fault(format!("no region at {address:#x} is there to end"));
        }
    }

    pub(crate) fn resize_region(&mut self, address: u64, bytes: u64) {
        match self.regions.get_mut(&address) {
            Some(region) => region.bytes = bytes,
            None => self.fault(format!("no region at {address:#x} is there to resize")),
        }
    }

    pub(crate) fn name_region(&mut self, address: u64, name: &[u8]) {
        let is_printable = name.iter().all(|byte| (b' '..=b'~').contains(byte));
        if name.is_empty() || name.len() > LONGEST_NAME || !is_printable {
            self.fault(format!("{name:?} is no name"));
            return;
        }
        match self.regions.get_mut(&address) {
            Some(region) => region.name = String::from_utf8_lossy(name).into_owned(),
            None => self.fault(format!("no region at {address:#x} is there to name")),
        }
    }

    /// Lines of a word and what belongs to it; [`Control`](crate::Control) reads them.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("all {} {}\n", self.all_heaps, self.all_regions);
        for (address, bytes) in &self.heaps {
            let _ = writeln!(text, "heap {address} {bytes}");
        }
        for (address, Region { bytes, name }) in &self.regions {
            let _ = writeln!(text, "region {address} {bytes} {name}");
        }
        for fault in &self.faults {
            let _ = writeln!(text, "fault {fault}");
        }
        text
    }

    /// For the end of the process.
    pub(crate) fn tell_of_leaks(&self) {
        for (address, Region { bytes, name }) in &self.regions {
            eprintln!("nvtx-sim: leaked {bytes} bytes at {address:#x}: {name}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_a_fault() {
        let mut known = Known::default();
        known.add_heap(1000, 100);
        known.add_region(1000, 1010, 10);
        known.name_region(1010, b"a name");
        assert_eq!(
            known.text(),
            "all 1 1\nheap 1000 100\nregion 1010 10 a name\n"
        );
        let wrong: [fn(&mut Known); 9] = [
            |known| known.add_heap(1090, 100),
            |known| known.add_region(1000, 1019, 2),
            |known| known.add_region(1000, 1095, 10),
            |known| known.add_region(2000, 2000, 10),
            |known| known.add_region(1000, 1050, 0),
            |known| known.remove_region(1011),
            |known| known.remove_heap(1010),
            |known| known.name_region(1010, b""),
            |known| known.name_region(1010, &[b'a'; LONGEST_NAME + 1]),
        ];
        for (nth, wrong) in wrong.into_iter().enumerate() {
            wrong(&mut known);
            assert_eq!(known.faults.len(), nth + 1);
        }
        known.remove_heap(1000);
        assert!(known.regions.is_empty() && known.heaps.is_empty());
    }
}
