//! Free lists by last user and by size: as [`size_classes`](super::size_classes), once per user.

#![forbid(unsafe_code)]

use super::header::{Headers, Id, NONE};
use super::size_classes::{ALL, ClassIndex, Filled, SizeClasses, place};
use super::tlsf::FreeLists;

/// The free blocks that one user used last.
#[derive(Debug)]
struct Owned {
    /// The first block of each list.
    heads: [Id; ALL],
    filled: Filled,
    /// Units in the user's blocks.
    units: u64,
    /// No block has an earlier epoch.
    earliest: u64,
}

impl Default for Owned {
    fn default() -> Self {
        Self {
            heads: [NONE; ALL],
            filled: Filled::default(),
            units: 0,
            earliest: u64::MAX,
        }
    }
}

/// The neighbours of a block in its list.
#[derive(Clone, Copy, Debug)]
struct Link {
    before: Id,
    after: Id,
}

#[derive(Debug, Default)]
pub(super) struct UserSizeClasses {
    /// Blocks without a last user, which is user 0. While there is one cache, there are no others.
    clean: SizeClasses,
    links: Vec<Link>,
    /// By user. Created with a user's first block.
    users: Vec<Option<Box<Owned>>>,
}

impl UserSizeClasses {
    fn of(&self, user: u32) -> Option<&Owned> {
        self.users.get(user as usize)?.as_deref()
    }

    #[inline]
    fn of_mut(&mut self, user: u32) -> &mut Owned {
        let user = user as usize;
        if self.users.len() <= user {
            self.users.resize_with(user + 1, || None);
        }
        self.users[user].get_or_insert_default()
    }

    /// As [`find`](Self::find), for clean blocks.
    #[inline]
    pub(super) fn find_clean(&self, headers: &Headers, size: u32) -> Option<Id> {
        self.clean.find(headers, size)
    }

    /// A block of this user of at least this size, preferably a small one.
    #[inline]
    pub(super) fn find(&self, headers: &Headers, user: u32, size: u32) -> Option<Id> {
        if user == 0 {
            return self.find_clean(headers, size);
        }
        let owned = self.of(user)?;
        let own = place(size);
        let first = owned.filled.from(own)?;
        if let Some(found) = self.better(headers, owned, first, size) {
            return Some(found);
        }
        // That list also has smaller blocks, and its first few are too small.
        if let Some(above) = owned.filled.above(own) {
            return self.better(headers, owned, above, size);
        }
        let all = self.list(owned, own).filter(|id| headers[*id].size >= size);
        all.min_by_key(|id| (headers[*id].size, headers[*id].start()))
    }

    /// The smallest of the first few blocks of a list that are large enough; of equal sizes, the one at the lower
    /// address.
    #[inline]
    fn better(&self, headers: &Headers, owned: &Owned, place: ClassIndex, size: u32) -> Option<Id> {
        let few = self.list(owned, place).take(4);
        let large = few.filter(|id| headers[*id].size >= size);
        large.min_by_key(|id| (headers[*id].size, headers[*id].start()))
    }

    fn list<'a>(&'a self, owned: &Owned, place: ClassIndex) -> impl Iterator<Item = Id> + use<'a> {
        let real = |id: Id| (id != NONE).then_some(id);
        std::iter::successors(real(owned.heads[place.number()]), move |id| {
            real(self.links[*id as usize].after)
        })
    }

    /// All blocks of this user of at least this size, in ascending order of their lists.
    pub(super) fn at_least<'a>(
        &'a self,
        headers: &'a Headers,
        user: u32,
        size: u32,
    ) -> impl Iterator<Item = Id> + 'a {
        let clean = (user == 0).then(|| self.clean.at_least(headers, size));
        let owned = self.of(user).into_iter().flat_map(move |owned| {
            std::iter::successors(owned.filled.from(place(size)), |place| {
                owned.filled.above(*place)
            })
            .flat_map(move |place| self.list(owned, place))
            .filter(move |id| headers[*id].size >= size)
        });
        clean.into_iter().flatten().chain(owned)
    }

    /// Units in the blocks of this user, which is not 0.
    pub(super) fn units(&self, user: u32) -> u64 {
        self.of(user).map_or(0, |owned| owned.units)
    }

    /// Users that have blocks, except user 0, which has the clean ones.
    pub(super) fn users(&self) -> impl Iterator<Item = u32> + '_ {
        let users = self.users.iter().zip(0..);
        users.filter_map(|(owned, user)| (owned.as_ref()?.units > 0).then_some(user))
    }

    fn insert_owned(&mut self, headers: &Headers, id: Id) {
        let at = id as usize;
        if at >= self.links.len() {
            let room = headers.room() - self.links.len();
            self.links.reserve_exact(room);
            self.links.resize(
                headers.room(),
                Link {
                    before: NONE,
                    after: NONE,
                },
            );
        }
        let header = &headers[id];
        let (last_use, size) = (header.last_use(), header.size);
        let place = place(size);
        let owned = self.of_mut(last_use.user);
        let first = std::mem::replace(&mut owned.heads[place.number()], id);
        owned.filled.set(place);
        owned.units += u64::from(size);
        owned.earliest = owned.earliest.min(last_use.epoch);
        self.links[at] = Link {
            before: NONE,
            after: first,
        };
        if first != NONE {
            self.links[first as usize].before = id;
        }
    }

    fn remove_owned(&mut self, headers: &Headers, id: Id) {
        let header = &headers[id];
        let (last_use, size) = (header.last_use(), header.size);
        let place = place(size);
        let Link { before, after } = self.links[id as usize];
        if after != NONE {
            self.links[after as usize].before = before;
        }
        if before != NONE {
            self.links[before as usize].after = after;
        }
        let owned = self.of_mut(last_use.user);
        owned.units -= u64::from(size);
        if before == NONE {
            owned.heads[place.number()] = after;
            owned.filled.clear_if(place, after == NONE);
        }
    }

    /// The blocks of this user with this epoch or an earlier one.
    pub(super) fn until(&mut self, headers: &Headers, user: u32, epoch: u64) -> Vec<Id> {
        if self.of(user).is_none_or(|owned| owned.earliest > epoch) {
            return Vec::new();
        }
        let mut later = u64::MAX;
        let mut found = Vec::new();
        for id in self.at_least(headers, user, 1) {
            let last = headers[id].last_use().epoch;
            if last <= epoch {
                found.push(id);
            } else {
                later = later.min(last);
            }
        }
        self.of_mut(user).earliest = later;
        found
    }
}

impl FreeLists for UserSizeClasses {
    #[inline]
    fn insert(&mut self, headers: &Headers, id: Id) {
        if headers[id].last_use().user == 0 {
            self.clean.insert(headers, id);
        } else {
            self.insert_owned(headers, id);
        }
    }

    #[inline]
    fn remove(&mut self, headers: &Headers, id: Id) {
        if headers[id].last_use().user == 0 {
            self.clean.remove(headers, id);
        } else {
            self.remove_owned(headers, id);
        }
    }

    fn largest(&self, headers: &Headers) -> Option<u32> {
        let users = self.users.iter().flatten();
        let largest = users.filter_map(|owned| {
            let blocks = self.list(owned, owned.filled.last()?);
            blocks.map(|id| headers[id].size).max()
        });
        largest.max().max(self.clean.largest(headers))
    }

    fn bytes(&self) -> usize {
        let users = self.users.iter().flatten().count();
        self.clean.bytes()
            + self.links.capacity() * size_of::<Link>()
            + self.users.capacity() * size_of::<usize>()
            + users * size_of::<Owned>()
    }
}

#[cfg(test)]
mod tests {
    use super::super::header::{Header, State};
    use super::super::last_use::LastUse;
    use super::*;

    fn insert(headers: &mut Headers, classes: &mut UserSizeClasses, user: u32, size: u32) -> Id {
        let last_use = LastUse { epoch: 1, user };
        let start = u64::from(user) << 32 | u64::from(size);
        let id = headers.add(Header::new(start, size, State::Free, last_use));
        classes.insert(headers, id);
        id
    }

    #[test]
    fn the_bookkeeping_is_that_of_all_parts() {
        let (mut headers, mut classes) = (Headers::default(), UserSizeClasses::default());
        // User 2 never has a block.
        for user in [0, 1, 3] {
            for size in 1..=100 {
                insert(&mut headers, &mut classes, user, size);
            }
        }
        let parts = [
            classes.clean.bytes(),
            classes.links.capacity() * size_of::<Link>(),
            classes.users.capacity() * size_of::<Option<Box<Owned>>>(),
            2 * size_of::<Owned>(),
        ];
        assert!(parts.iter().all(|bytes| *bytes > 0), "{parts:?}");
        assert_eq!(classes.bytes(), parts.iter().sum::<usize>());
    }

    #[test]
    fn the_largest_block_is_found_after_a_larger_one_was_taken() {
        let (mut headers, mut classes) = (Headers::default(), UserSizeClasses::default());
        let small = insert(&mut headers, &mut classes, 1, 10);
        let large = insert(&mut headers, &mut classes, 1, 5000);
        assert_eq!(classes.largest(&headers), Some(5000));
        classes.remove(&headers, large);
        assert_eq!(classes.largest(&headers), Some(10));
        classes.remove(&headers, small);
        assert_eq!(classes.largest(&headers), None);
    }

    /// Smaller ones of the same list stand before it.
    #[test]
    fn a_users_only_block_of_just_the_size_is_found() {
        let (mut headers, mut classes) = (Headers::default(), UserSizeClasses::default());
        let last = insert(&mut headers, &mut classes, 1, 1010);
        for size in 1000..1005 {
            insert(&mut headers, &mut classes, 1, size);
        }
        assert_eq!(place(1000).number(), place(1010).number());
        assert_eq!(classes.find(&headers, 1, 1010), Some(last));
        assert_eq!(classes.find(&headers, 1, 1011), None);
    }
}
