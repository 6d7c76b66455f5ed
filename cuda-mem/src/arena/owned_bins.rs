//! The lists of free blocks by their last user and by size: as [`bins`](super::bins), once for each user.

#![forbid(unsafe_code)]

use super::bins::{ALL, Bins, Filled, Place, place};
use super::fit::FreeLists;
use super::node::{Id, NONE, Nodes};

/// The free blocks that one user used last.
#[derive(Debug)]
struct Owned {
    /// The first block of each list.
    heads: [Id; ALL],
    filled: Filled,
    /// Units in its blocks.
    units: u64,
    /// No block has an earlier ticket.
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
pub(super) struct OwnedBins {
    /// Blocks of user 0, which is nobody. While there is one lane there are no others.
    clean: Bins,
    links: Vec<Link>,
    /// By user. Made when a user has its first block.
    users: Vec<Option<Box<Owned>>>,
}

impl OwnedBins {
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

    /// As [`find`](Self::find), of nobody's.
    #[inline]
    pub(super) fn find_clean(&self, nodes: &Nodes, size: u32) -> Option<Id> {
        self.clean.find(nodes, size)
    }

    /// A block of this user of at least this size, a small one if there are several.
    #[inline]
    pub(super) fn find(&self, nodes: &Nodes, user: u32, size: u32) -> Option<Id> {
        if user == 0 {
            return self.find_clean(nodes, size);
        }
        let owned = self.of(user)?;
        let own = place(size);
        let first = owned.filled.from(own)?;
        if let Some(found) = self.better(nodes, owned, first, size) {
            return Some(found);
        }
        // It was the list of blocks of nearly this size.
        if let Some(above) = owned.filled.above(own) {
            return self.better(nodes, owned, above, size);
        }
        let all = self.list(owned, own).filter(|id| nodes[*id].size >= size);
        all.min_by_key(|id| (nodes[*id].size, nodes[*id].start()))
    }

    /// The smallest of the first few blocks of a list that are large enough; of the same size, the lower one.
    #[inline]
    fn better(&self, nodes: &Nodes, owned: &Owned, place: Place, size: u32) -> Option<Id> {
        let few = self.list(owned, place).take(4);
        let large = few.filter(|id| nodes[*id].size >= size);
        large.min_by_key(|id| (nodes[*id].size, nodes[*id].start()))
    }

    fn list<'a>(&'a self, owned: &Owned, place: Place) -> impl Iterator<Item = Id> + use<'a> {
        let real = |id: Id| (id != NONE).then_some(id);
        std::iter::successors(real(owned.heads[place.number()]), move |id| {
            real(self.links[*id as usize].after)
        })
    }

    /// All blocks of this user of at least this size, those of the smallest lists first.
    pub(super) fn at_least<'a>(
        &'a self,
        nodes: &'a Nodes,
        user: u32,
        size: u32,
    ) -> impl Iterator<Item = Id> + 'a {
        let clean = (user == 0).then(|| self.clean.at_least(nodes, size));
        let owned = self.of(user).into_iter().flat_map(move |owned| {
            std::iter::successors(owned.filled.from(place(size)), |place| {
                owned.filled.above(*place)
            })
            .flat_map(move |place| self.list(owned, place))
            .filter(move |id| nodes[*id].size >= size)
        });
        clean.into_iter().flatten().chain(owned)
    }

    /// Units in the blocks of this user, who is not nobody.
    pub(super) fn units(&self, user: u32) -> u64 {
        self.of(user).map_or(0, |owned| owned.units)
    }

    /// Users that have blocks. Nobody, who has the clean ones, is not among them.
    pub(super) fn users(&self) -> impl Iterator<Item = u32> + '_ {
        let users = self.users.iter().zip(0..);
        users.filter_map(|(owned, user)| (owned.as_ref()?.units > 0).then_some(user))
    }

    fn insert_owned(&mut self, nodes: &Nodes, id: Id) {
        let at = id as usize;
        if at >= self.links.len() {
            let room = nodes.room() - self.links.len();
            self.links.reserve_exact(room);
            self.links.resize(
                nodes.room(),
                Link {
                    before: NONE,
                    after: NONE,
                },
            );
        }
        let node = &nodes[id];
        let (stamp, size) = (node.stamp(), node.size);
        let place = place(size);
        let owned = self.of_mut(stamp.user);
        let first = std::mem::replace(&mut owned.heads[place.number()], id);
        owned.filled.set(place);
        owned.units += u64::from(size);
        owned.earliest = owned.earliest.min(stamp.ticket);
        self.links[at] = Link {
            before: NONE,
            after: first,
        };
        if first != NONE {
            self.links[first as usize].before = id;
        }
    }

    fn remove_owned(&mut self, nodes: &Nodes, id: Id) {
        let node = &nodes[id];
        let (stamp, size) = (node.stamp(), node.size);
        let place = place(size);
        let Link { before, after } = self.links[id as usize];
        if after != NONE {
            self.links[after as usize].before = before;
        }
        if before != NONE {
            self.links[before as usize].after = after;
        }
        let owned = self.of_mut(stamp.user);
        owned.units -= u64::from(size);
        if before == NONE {
            owned.heads[place.number()] = after;
            owned.filled.clear_if(place, after == NONE);
        }
    }

    /// The blocks of this user with this ticket or an earlier one.
    pub(super) fn until(&mut self, nodes: &Nodes, user: u32, ticket: u64) -> Vec<Id> {
        if self.of(user).is_none_or(|owned| owned.earliest > ticket) {
            return Vec::new();
        }
        let mut later = u64::MAX;
        let mut found = Vec::new();
        for id in self.at_least(nodes, user, 1) {
            let last = nodes[id].stamp().ticket;
            if last <= ticket {
                found.push(id);
            } else {
                later = later.min(last);
            }
        }
        self.of_mut(user).earliest = later;
        found
    }
}

impl FreeLists for OwnedBins {
    #[inline]
    fn insert(&mut self, nodes: &Nodes, id: Id) {
        if nodes[id].stamp().user == 0 {
            self.clean.insert(nodes, id);
        } else {
            self.insert_owned(nodes, id);
        }
    }

    #[inline]
    fn remove(&mut self, nodes: &Nodes, id: Id) {
        if nodes[id].stamp().user == 0 {
            self.clean.remove(nodes, id);
        } else {
            self.remove_owned(nodes, id);
        }
    }

    fn largest(&self, nodes: &Nodes) -> Option<u32> {
        let users = self.users.iter().flatten();
        let largest = users.filter_map(|owned| {
            let blocks = self.list(owned, owned.filled.last()?);
            blocks.map(|id| nodes[id].size).max()
        });
        largest.max().max(self.clean.largest(nodes))
    }

    fn bytes(&self) -> usize {
        let users = self.users.iter().flatten().count();
        self.clean.bytes()
            + self.links.capacity() * size_of::<Link>()
            + self.users.capacity() * size_of::<usize>()
            + users * size_of::<Owned>()
    }
}
