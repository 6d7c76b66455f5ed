//! Data about live addresses: a hash table that costs a few nanoseconds, because every allocation goes through it.
//!
//! Open addressing with linear probing, at most half full; removal moves later entries up, so there are no tombstones.
//! A multiplication spreads the addresses.

#![forbid(unsafe_code)]

use crate::base::lock::SpinLock;

/// Values by address.
#[derive(Debug)]
pub(crate) struct Table<V> {
    places: Vec<Option<(u64, V)>>,
    len: usize,
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            len: 0,
        }
    }
}

/// 2^64 divided by the golden ratio, which spreads neighbours far apart.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[inline]
fn spread(address: u64) -> u64 {
    address.wrapping_mul(SPREAD)
}

impl<V> Table<V> {
    /// Where the search for an address begins. The high bits are the well mixed ones, and the
    /// highest four choose among [`Shards`].
    #[inline]
    fn home(&self, address: u64) -> usize {
        (spread(address) >> 20) as usize & (self.places.len() - 1)
    }

    /// The slot of the address, or the empty slot where it would go.
    #[inline]
    fn find(&self, address: u64) -> usize {
        let mask = self.places.len() - 1;
        let mut at = self.home(address);
        loop {
            match &self.places[at] {
                Some((found, _)) if *found != address => at = (at + 1) & mask,
                _ => return at,
            }
        }
    }

    /// Inserts a value, replacing an earlier one.
    #[inline]
    pub(crate) fn insert(&mut self, address: u64, value: V) {
        if (self.len + 1) * 2 > self.places.len() {
            self.grow();
        }
        let at = self.find(address);
        if self.places[at].replace((address, value)).is_none() {
            self.len += 1;
        }
    }

    #[cold]
    fn grow(&mut self) {
        let room = (self.places.len() * 2).max(16);
        let empty = std::iter::repeat_with(|| None).take(room).collect();
        let old = std::mem::replace(&mut self.places, empty);
        for entry in old.into_iter().flatten() {
            let at = self.find(entry.0);
            self.places[at] = Some(entry);
        }
    }

    /// Removes a value.
    #[inline]
    pub(crate) fn remove(&mut self, address: u64) -> Option<V> {
        if self.len == 0 {
            return None;
        }
        let mut hole = self.find(address);
        let (_, value) = self.places[hole].take()?;
        self.len -= 1;
        let mask = self.places.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let Some((next, _)) = &self.places[at] else {
                return Some(value);
            };
            // It may move up if the hole is not before the place where its search begins.
            let home = self.home(*next);
            if (at.wrapping_sub(home) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.places[hole] = self.places[at].take();
                hole = at;
            }
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(u64, V)> {
        self.places.iter().flatten()
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
        self.shard(address).lock_unless_forked()?.remove(address)
    }

    /// The number of entries. Not a consistent snapshot while other threads are running.
    pub(crate) fn len(&self) -> usize {
        let tables = self
            .0
            .iter()
            .filter_map(|shard| shard.0.lock_unless_forked());
        tables.map(|table| table.len).sum()
    }

    /// Visits all entries, shard by shard.
    pub(crate) fn for_each(&self, mut look: impl FnMut(u64, &V)) {
        for table in self
            .0
            .iter()
            .filter_map(|shard| shard.0.lock_unless_forked())
        {
            for (address, value) in table.iter() {
                look(*address, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Random insertions and removals against the standard map, with addresses that collide.
    #[test]
    fn it_answers_as_a_map_does() {
        let (mut table, mut map) = (Table::default(), HashMap::new());
        let mut state = 1_u64;
        let mut draw = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        for round in 0..100_000_u64 {
            let address = (draw(300) + 1) * 512;
            if draw(2) == 0 {
                table.insert(address, round);
                map.insert(address, round);
            } else {
                assert_eq!(table.remove(address), map.remove(&address));
            }
            assert_eq!(table.len, map.len());
        }
        let mut rest: Vec<_> = table.iter().copied().collect();
        let mut expected: Vec<_> = map.into_iter().collect();
        rest.sort_unstable();
        expected.sort_unstable();
        assert_eq!(rest, expected);
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
