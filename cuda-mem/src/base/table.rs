//! Data about live addresses, in hash tables that cost a few nanoseconds: every allocation goes through them.

#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::base::lock::SpinLock;

/// Values by address.
type Table<V> = HashMap<u64, V, BuildHasherDefault<Spread>>;

/// 2^64 divided by the golden ratio, which spreads neighbours far apart.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline]
fn spread(address: u64) -> u64 {
    address.wrapping_mul(SPREAD)
}

/// A hash of one address. The keys are the driver's, so no attacker can make them collide.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    #[inline]
    fn write_u64(&mut self, address: u64) {
        // The high bits are the well mixed ones. The highest four choose among [`Shards`], and the table looks at the
        // lowest first.
        self.0 = spread(address).rotate_left(32);
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = spread(self.0.rotate_left(8) ^ u64::from(*byte));
        }
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// Tables with a lock each, so that threads seldom wait for each other. In a fork, where locks cannot be taken, they
/// are empty.
#[derive(Debug)]
pub(crate) struct Shards<V>([Shard<V>; 16]);

/// On cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Shard<V>(SpinLock<Table<V>>);

impl<V> Default for Shards<V> {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Shard(SpinLock::default())))
    }
}

impl<V> Shards<V> {
    #[inline]
    fn shard(&self, address: u64) -> &SpinLock<Table<V>> {
        &self.0[(spread(address) >> 60) as usize].0
    }

    #[inline]
    pub(crate) fn insert(&self, address: u64, value: V) {
        if let Some(mut table) = self.shard(address).lock_unless_forked() {
            table.insert(address, value);
        }
    }

    /// As [`insert`](Self::insert), if `still` returns true under the lock. This can keep out values that come too
    /// late for a [`clear`](Self::clear).
    pub(crate) fn insert_if(&self, address: u64, value: V, still: impl FnOnce() -> bool) {
        if let Some(mut table) = self.shard(address).lock_unless_forked()
            && still()
        {
            table.insert(address, value);
        }
    }

    /// Removes everything.
    pub(crate) fn clear(&self) {
        for shard in &self.0 {
            let taken = shard.0.lock_unless_forked();
            let table = taken.map(|mut table| std::mem::take(&mut *table));
            // Not under the lock: values may have destructors.
            drop(table);
        }
    }

    #[inline]
    pub(crate) fn remove(&self, address: u64) -> Option<V> {
        self.shard(address).lock_unless_forked()?.remove(&address)
    }

    /// Removes a value, unless `refuse` returns an error for it. Checks and removes under one lock, so that no other
    /// thread misses a value that stays.
    pub(crate) fn remove_unless<E>(
        &self,
        address: u64,
        refuse: impl FnOnce(&V) -> Option<E>,
    ) -> Option<Result<V, E>> {
        let mut table = self.shard(address).lock_unless_forked()?;
        if let Some(error) = refuse(table.get(&address)?) {
            return Some(Err(error));
        }
        table.remove(&address).map(Ok)
    }

    /// A copy of the value at an address.
    #[inline]
    pub(crate) fn copied(&self, address: u64) -> Option<V>
    where
        V: Copy,
    {
        let table = self.shard(address).lock_unless_forked()?;
        table.get(&address).copied()
    }

    /// The number of entries. Not a consistent snapshot while other threads are running.
    pub(crate) fn len(&self) -> usize {
        let tables = self
            .0
            .iter()
            .filter_map(|shard| shard.0.lock_unless_forked());
        tables.map(|table| table.len()).sum()
    }

    /// Visits all entries, shard by shard.
    pub(crate) fn for_each(&self, mut look: impl FnMut(u64, &V)) {
        for table in self
            .0
            .iter()
            .filter_map(|shard| shard.0.lock_unless_forked())
        {
            for (address, value) in &*table {
                look(*address, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_spread() {
        // Addresses of blocks differ in few bits, which must reach the low bits that choose a place.
        for step in [256_u64, 512, 2 << 20, 1 << 30] {
            let places = (1..=1000_u64).map(|at| {
                let mut hash = Spread::default();
                hash.write_u64(at * step);
                hash.finish() & 1023
            });
            let mut places: Vec<_> = places.collect();
            places.sort_unstable();
            places.dedup();
            assert!(places.len() > 550, "{step}: {} places", places.len());
        }
    }

    #[test]
    fn shards_hold_every_address_once() {
        let shards = Shards::default();
        for address in 1..=1000_u64 {
            shards.insert(address << 21, address);
        }
        assert_eq!(shards.len(), 1000);
        let mut sum = 0;
        shards.for_each(|_, value| sum += value);
        assert_eq!(sum, 500_500);
        assert_eq!(shards.remove(7 << 21), Some(7));
        assert_eq!(shards.remove(7 << 21), None);
        assert_eq!(shards.len(), 999);
        shards.clear();
        shards.insert_if(1 << 21, 1, || false);
        assert_eq!(shards.len(), 0);
        shards.insert_if(1 << 21, 1, || true);
        assert_eq!(shards.len(), 1);
    }
}
