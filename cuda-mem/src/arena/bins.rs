//! The lists of free blocks by size, two levels deep, as in the TLSF allocator (Masmano et al.,
//! 2004): a class is a power of two, split into 32 equal parts, and two bitmaps find the first list that is
//! not empty without a loop.

#![forbid(unsafe_code)]

use super::node::{Id, NONE, Nodes};

/// 2 to this power lists a class.
const SPLIT: u32 = 5;
const LISTS: usize = 1 << SPLIT;
/// Sizes are below 2^32 units; those below 2^SPLIT share the first class.
const CLASSES: usize = (32 - SPLIT as usize) + 1;

/// How many blocks of a list are looked at for the best one. More finds tighter places and takes longer.
const LOOK: usize = 2;

#[derive(Debug)]
pub(super) struct Bins {
    heads: [[Id; LISTS]; CLASSES],
    /// Which lists of a class are not empty.
    lists: [u32; CLASSES],
    /// Which classes are not empty.
    classes: u32,
}

/// The list that blocks of this size are in.
#[inline]
fn place(size: u32) -> (usize, usize) {
    if size < LISTS as u32 {
        return (0, size as usize);
    }
    let log = size.ilog2();
    let list = (size >> (log - SPLIT)) as usize & (LISTS - 1);
    ((log - SPLIT + 1) as usize, list)
}

impl Default for Bins {
    fn default() -> Self {
        Self {
            heads: [[NONE; LISTS]; CLASSES],
            lists: [0; CLASSES],
            classes: 0,
        }
    }
}

impl Bins {
    #[inline]
    pub(super) fn insert(&mut self, nodes: &mut Nodes, id: Id) {
        let (class, list) = place(nodes[id].size);
        let head = std::mem::replace(&mut self.heads[class][list], id);
        let node = &mut nodes[id];
        node.free_before = NONE;
        node.free_after = head;
        if head != NONE {
            nodes[head].free_before = id;
        } else {
            self.lists[class] |= 1 << list;
            self.classes |= 1 << class;
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, nodes: &mut Nodes, id: Id) {
        let node = &nodes[id];
        let (size, before, after) = (node.size, node.free_before, node.free_after);
        if after != NONE {
            nodes[after].free_before = before;
        }
        if before != NONE {
            nodes[before].free_after = after;
            return;
        }
        let (class, list) = place(size);
        self.heads[class][list] = after;
        if after == NONE {
            self.lists[class] &= !(1 << list);
            if self.lists[class] == 0 {
                self.classes &= !(1 << class);
            }
        }
    }

    /// A block of at least this size, a small one if there are several.
    #[inline]
    pub(super) fn find(&self, nodes: &Nodes, size: u32) -> Option<Id> {
        let (class, list) = place(size);
        let own = self.heads[class][list];
        if own != NONE
            && let Some(found) = self.best(nodes, own, size, LOOK)
        {
            return Some(found);
        }
        if let Some((class, list)) = self.above(class, list) {
            return self.best(nodes, self.heads[class][list], size, LOOK);
        }
        // The last resort before more memory is asked for.
        self.best(nodes, own, size, usize::MAX)
    }

    /// The first list behind this one that is not empty. All its blocks are larger.
    #[inline]
    fn above(&self, class: usize, list: usize) -> Option<(usize, usize)> {
        let rest = self.lists[class] & (u32::MAX << list) & !(1 << list);
        if rest != 0 {
            return Some((class, rest.trailing_zeros() as usize));
        }
        let rest = self.classes & (u32::MAX << class) & !(1 << class);
        if rest == 0 {
            return None;
        }
        let class = rest.trailing_zeros() as usize;
        Some((class, self.lists[class].trailing_zeros() as usize))
    }

    /// The smallest of the first so many blocks of a list that are large enough; the lower one of two.
    #[inline]
    fn best(&self, nodes: &Nodes, mut id: Id, size: u32, look: usize) -> Option<Id> {
        let mut best: Option<(u32, u64, Id)> = None;
        let mut looked = 0;
        while id != NONE && looked < look {
            let node = &nodes[id];
            let this = (node.size, node.start(), id);
            if node.size >= size && best.is_none_or(|best| this < best) {
                best = Some(this);
            }
            id = node.free_after;
            looked += 1;
        }
        best.map(|best| best.2)
    }

    /// All blocks of at least this size, those of the smallest lists first.
    pub(super) fn at_least<'a>(
        &'a self,
        nodes: &'a Nodes,
        size: u32,
    ) -> impl Iterator<Item = Id> + 'a {
        let (class, list) = place(size);
        let own = (self.heads[class][list] != NONE).then_some((class, list));
        let lists = own.into_iter().chain(std::iter::successors(
            self.above(class, list),
            |(class, list)| self.above(*class, *list),
        ));
        lists
            .flat_map(|(class, list)| self.list(nodes, class, list))
            .filter(move |id| nodes[*id].size >= size)
    }

    /// The blocks of one list.
    fn list<'a>(
        &self,
        nodes: &'a Nodes,
        class: usize,
        list: usize,
    ) -> impl Iterator<Item = Id> + use<'a> {
        let real = |id: Id| (id != NONE).then_some(id);
        std::iter::successors(real(self.heads[class][list]), move |id| {
            real(nodes[*id].free_after)
        })
    }

    /// The largest block.
    pub(super) fn largest(&self, nodes: &Nodes) -> Option<u32> {
        if self.classes == 0 {
            return None;
        }
        let class = self.classes.ilog2() as usize;
        let list = self.lists[class].ilog2() as usize;
        let sizes = self.list(nodes, class, list).map(|id| nodes[id].size);
        sizes.max()
    }
}
