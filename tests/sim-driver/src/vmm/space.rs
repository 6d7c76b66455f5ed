//! The address space of reservations, and where physical memory lies.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use cuda_driver_sys::CUresult;

use crate::export::Answer;
use crate::system::{AddressRange, Part, SharedFile, Source};

/// The process's addresses that belong to reservations. It has its own lock, never taken before that of the state:
/// running streams hold it, so that nothing is unmapped while they use it.
static SPACE: RwLock<Space> = RwLock::new(Space {
    reserved: BTreeMap::new(),
    mapped: BTreeMap::new(),
});

/// Ranges by start, with their ends.
#[derive(Debug)]
struct Space {
    reserved: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, u64>,
}

fn write() -> RwLockWriteGuard<'static, Space> {
    SPACE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps work from touching mapped memory while it lives. Waits for running work.
#[cfg(target_os = "linux")]
pub(super) fn pause() -> impl Drop {
    write()
}

impl Space {
    /// Whether a range overlaps no reservation.
    fn is_elsewhere(&self, start: u64, end: u64) -> bool {
        let before = self.reserved.range(..end).next_back();
        before.is_none_or(|(_, reserved)| *reserved <= start)
    }

    /// Whether every byte of a range is mapped.
    fn is_mapped(&self, start: u64, end: u64) -> bool {
        let mut at = start;
        while at < end {
            match self.mapped.range(..=at).next_back() {
                Some((_, mapped)) if *mapped > at => at = *mapped,
                _ => return false,
            }
        }
        true
    }
}

/// Prevents mapping and unmapping while it lives.
#[derive(Debug)]
pub(crate) struct Hold(#[expect(dead_code, reason = "held")] RwLockReadGuard<'static, Space>);

/// Keeps these ranges (start and length) unchanged while work uses them. `Err` is the start of one that is reserved but
/// not mapped. Only holders of ranges in reservations block others.
pub(crate) fn hold(ranges: &[(u64, usize)]) -> Result<Option<Hold>, u64> {
    let space = SPACE.read().unwrap_or_else(PoisonError::into_inner);
    let mut is_needed = false;
    for &(start, len) in ranges {
        let end = start.saturating_add(len as u64);
        if !space.is_elsewhere(start, end) {
            is_needed = true;
            if !space.is_mapped(start, end) {
                return Err(start);
            }
        }
    }
    Ok(is_needed.then_some(Hold(space)))
}

/// Reserved addresses, released when dropped. Cost nothing until something is mapped there.
#[derive(Debug)]
pub(crate) struct Addresses(AddressRange);

impl Addresses {
    /// Reserves `len` bytes aligned to `align`, at `hint` if possible.
    pub(crate) fn reserve(len: u64, align: u64, hint: u64) -> Answer<Self> {
        let mut space = write();
        let range = AddressRange::reserve(len, align, hint)?;
        space.reserved.insert(range.base(), range.base() + len);
        Ok(Self(range))
    }

    pub(crate) fn base(&self) -> u64 {
        self.0.base()
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }

    fn check(&self, at: u64, len: u64) -> Answer {
        let end = at.checked_add(len);
        if at >= self.base() && end.is_some_and(|end| end <= self.base() + self.len()) {
            Ok(())
        } else {
            Err(CUresult::CUDA_ERROR_UNKNOWN)
        }
    }

    /// Maps memory to a part of the addresses.
    pub(crate) fn map(&mut self, at: u64, len: u64, source: Source) -> Answer {
        let mut space = write();
        self.check(at, len)?;
        self.0.map(at, len, source)?;
        space.mapped.insert(at, at + len);
        Ok(())
    }

    /// Removes one mapping, once no running work uses it. Later work finds nothing there.
    pub(crate) fn unmap(&mut self, at: u64, len: u64) -> Answer {
        let mut space = write();
        space.mapped.remove(&at);
        self.check(at, len)?;
        self.0.unmap(at, len)
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        let mut space = write();
        space.reserved.remove(&self.base());
        let range = self.base()..self.base() + self.len();
        space.mapped.retain(|start, _| !range.contains(start));
    }
}

/// Location of the bytes of physical memory.
#[derive(Debug)]
pub(crate) enum Bytes {
    /// A part of the common file.
    Part(Part),
    /// Other processes may open it.
    Shared(SharedFile),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::bytes;
    use crate::system::Memory;

    const STEP: u64 = 2 << 20;

    #[test]
    fn memory_comes_and_goes_and_is_the_same_wherever_it_is_mapped() {
        let mut addresses = Addresses::reserve(1 << 40, STEP, 0).expect("address space");
        let base = addresses.base();
        assert!(base.is_multiple_of(STEP));
        let mut memory = Memory::new().expect("a file");
        let [one, two] = [0, 1].map(|_| memory.take(STEP).expect("memory"));
        assert!(hold(&[(base, 1)]).is_err(), "nothing is there");
        addresses
            .map(base, STEP, memory.source(&one))
            .expect("mapped");
        addresses
            .map(base + STEP, STEP, memory.source(&two))
            .expect("mapped");
        let across = [(base + STEP - 4, 8)];
        assert!(hold(&across).is_ok_and(|hold| hold.is_some()));
        bytes::fill(base + STEP - 4, 7_u8, 8);
        addresses.unmap(base + STEP, STEP).expect("unmapped");
        assert!(hold(&across).is_err());
        let elsewhere = base + 64 * STEP;
        addresses
            .map(elsewhere, STEP, memory.source(&two))
            .expect("mapped");
        assert_eq!(&bytes::read(elsewhere, 5)[..], [7, 7, 7, 7, 0]);
        memory.give_back(&two);
        // Windows has no call for that: the pages go with the last mapping.
        let left = if cfg!(windows) { 7 } else { 0 };
        assert_eq!(&bytes::read(elsewhere, 1)[..], [left]);
        drop(addresses);
        assert!(hold(&across).is_ok_and(|hold| hold.is_none()));
    }

    #[test]
    fn an_address_can_be_asked_for() {
        let first = Addresses::reserve(STEP, 1 << 30, 0).expect("address space");
        let base = first.base();
        assert!(base.is_multiple_of(1 << 30));
        let other = Addresses::reserve(STEP, STEP, base).expect("address space");
        assert_ne!(other.base(), base, "taken");
        drop(first);
        let again = Addresses::reserve(STEP, STEP, base).expect("address space");
        assert_eq!(again.base(), base);
    }
}
