//! Free lists by size, in two levels, as in the TLSF allocator (Masmano et al., 2004): a class is a power of two, split
//! into 32 equal parts, and two bitmaps find the first non-empty list without a loop.

#![forbid(unsafe_code)]

use super::header::{Headers, Id};
use super::tlsf::FreeLists;

/// A class has 2 to this power lists.
const SPLIT: u32 = 5;
const LISTS: usize = 1 << SPLIT;
/// Sizes are below 2^32 units.
const CLASSES: usize = 32 - SPLIT as usize + 1;
pub(super) const ALL: usize = CLASSES * LISTS;

/// The neighbours of a free block or of a list head. The lists are rings, with the head between the last block and the
/// first. So blocks are inserted and removed without a branch on whether they are first or last, which would be
/// unpredictable. Numbers below [`ALL`] are list heads, and the block with number n is `n + ALL`.
#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

#[derive(Debug)]
pub(super) struct SizeClasses {
    links: Vec<Link>,
    filled: Filled,
}

/// A list, as its class and its place in the class.
#[derive(Clone, Copy)]
pub(super) struct ClassIndex {
    class: usize,
    list: u32,
}

impl ClassIndex {
    /// Its number among all lists.
    #[inline]
    pub(super) fn number(self) -> usize {
        self.class * LISTS + self.list as usize
    }
}

/// Which lists are not empty.
#[derive(Debug, Default)]
pub(super) struct Filled {
    /// Of each class, the lists that are not empty.
    lists: [u32; CLASSES],
    /// Which classes are not empty.
    classes: u32,
}

impl Filled {
    #[inline]
    pub(super) fn set(&mut self, place: ClassIndex) {
        self.lists[place.class] |= 1 << place.list;
        self.classes |= 1 << place.class;
    }

    /// Clears the list's bits if it is empty now.
    #[inline]
    pub(super) fn clear_if(&mut self, place: ClassIndex, is_empty: bool) {
        let lists = &mut self.lists[place.class];
        *lists &= !(u32::from(is_empty) << place.list);
        self.classes &= !(u32::from(*lists == 0) << place.class);
    }

    /// The first non-empty list from this one on.
    #[inline]
    pub(super) fn from(&self, place: ClassIndex) -> Option<ClassIndex> {
        let lists = self.lists[place.class] & (u32::MAX << place.list);
        if lists != 0 {
            let list = lists.trailing_zeros();
            return Some(ClassIndex { list, ..place });
        }
        let classes = self.classes & (u32::MAX << place.class) & !(1 << place.class);
        if classes == 0 {
            return None;
        }
        let class = classes.trailing_zeros() as usize;
        let list = self.lists[class].trailing_zeros();
        Some(ClassIndex { class, list })
    }

    /// The first non-empty list after this one. All its blocks are larger.
    #[inline]
    pub(super) fn above(&self, place: ClassIndex) -> Option<ClassIndex> {
        let list = place.list + 1;
        let ClassIndex { class, .. } = place;
        if list as usize == LISTS {
            let class = class + 1;
            return (class < CLASSES)
                .then_some(ClassIndex { class, list: 0 })
                .and_then(|next| self.from(next));
        }
        self.from(ClassIndex { class, list })
    }

    /// The list of the largest blocks.
    pub(super) fn last(&self) -> Option<ClassIndex> {
        let class = self.classes.checked_ilog2()? as usize;
        let list = self.lists[class].ilog2();
        Some(ClassIndex { class, list })
    }
}

/// The list for blocks of this size. The first class has the sizes below [`LISTS`], and each later class twice as many
/// as the one before.
#[inline]
pub(super) fn place(size: u32) -> ClassIndex {
    let size = u64::from(size) + LISTS as u64;
    let class = size.ilog2() - SPLIT;
    ClassIndex {
        class: class as usize,
        list: (size >> class) as u32 & (LISTS as u32 - 1),
    }
}

impl Default for SizeClasses {
    fn default() -> Self {
        let mut classes = Self {
            links: Vec::new(),
            filled: Filled::default(),
        };
        classes.make_room(0);
        classes
    }
}

impl FreeLists for SizeClasses {
    #[inline]
    fn insert(&mut self, headers: &Headers, id: Id) {
        let at = id as usize + ALL;
        if at >= self.links.len() {
            self.make_room(headers.room());
        }
        let place = place(headers[id].size);
        let ring = place.number();
        let first = self.links[ring].after;
        self.links[ring].after = at as u32;
        self.links[first as usize].before = at as u32;
        self.links[at] = Link {
            before: ring as u32,
            after: first,
        };
        self.filled.set(place);
    }

    #[inline]
    fn remove(&mut self, headers: &Headers, id: Id) {
        let place = place(headers[id].size);
        let Link { before, after } = self.links[id as usize + ALL];
        self.links[before as usize].after = after;
        self.links[after as usize].before = before;
        // A block's neighbours are the same only if both are the list head: it was the only block.
        self.filled.clear_if(place, before == after);
    }

    fn largest(&self, headers: &Headers) -> Option<u32> {
        let sizes = self.list(self.filled.last()?).map(|id| headers[id].size);
        sizes.max()
    }

    fn bytes(&self) -> usize {
        self.links.capacity() * size_of::<Link>()
    }
}

impl SizeClasses {
    /// Adds links that point to themselves, until there is one for each of `blocks` blocks.
    #[cold]
    fn make_room(&mut self, blocks: usize) {
        let alone = |at| Link {
            before: at,
            after: at,
        };
        self.links.reserve_exact(ALL + blocks - self.links.len());
        self.links
            .extend((self.links.len() as u32..(ALL + blocks) as u32).map(alone));
    }

    /// A block of at least this size, preferably a small one.
    #[inline]
    pub(super) fn find(&self, headers: &Headers, size: u32) -> Option<Id> {
        let own = place(size);
        let first = self.filled.from(own)?;
        if let Some(found) = self.better(headers, first, size) {
            return Some(found);
        }
        // That list also has smaller blocks, and its first ones are too small.
        if let Some(above) = self.filled.above(own) {
            return self.better(headers, above, size);
        }
        // The last resort before more memory is requested.
        let all = self.list(own).filter(|id| headers[*id].size >= size);
        all.min_by_key(|id| (headers[*id].size, headers[*id].start()))
    }

    /// The smaller of those of a list's first two blocks that are large enough; of equal sizes, the one at the lower
    /// address. Checking more blocks would fit tighter and take longer.
    #[inline]
    fn better(&self, headers: &Headers, place: ClassIndex, size: u32) -> Option<Id> {
        let first = self.links[place.number()].after;
        let second = self.links[first as usize].after;
        let first = first - ALL as u32;
        let key = |id: Id| {
            let header = &headers[id];
            let large = u64::from(header.size >= size);
            (
                u64::from(header.size) | (large.wrapping_sub(1)),
                header.start(),
            )
        };
        let mut best = (key(first), first);
        if second as usize >= ALL {
            let second = second - ALL as u32;
            best = best.min((key(second), second));
        }
        (best.0.0 != u64::MAX).then_some(best.1)
    }

    /// All blocks of at least this size, in ascending order of their lists.
    pub(super) fn at_least<'a>(
        &'a self,
        headers: &'a Headers,
        size: u32,
    ) -> impl Iterator<Item = Id> + 'a {
        std::iter::successors(self.filled.from(place(size)), |place| {
            self.filled.above(*place)
        })
        .flat_map(|place| self.list(place))
        .filter(move |id| headers[*id].size >= size)
    }

    /// The blocks of one list.
    fn list(&self, place: ClassIndex) -> impl Iterator<Item = Id> + '_ {
        let block = |at: u32| at.checked_sub(ALL as u32);
        let next = move |id: &Id| block(self.links[*id as usize + ALL].after);
        std::iter::successors(block(self.links[place.number()].after), next)
    }
}

#[cfg(test)]
mod tests {
    use super::super::header::{Header, State};
    use super::super::last_use::LastUse;
    use super::*;

    #[test]
    fn nothing_is_above_the_largest_size() {
        let last = ClassIndex {
            class: CLASSES - 1,
            list: LISTS as u32 - 1,
        };
        let mut filled = Filled::default();
        filled.set(last);
        assert!(filled.above(last).is_none());
        let largest = place(u32::MAX);
        assert_eq!((largest.class, largest.list), (last.class, 0));
        assert!(
            filled
                .above(largest)
                .is_some_and(|found| found.list == last.list)
        );
    }

    #[test]
    fn above_goes_on_in_the_next_class() {
        let mut filled = Filled::default();
        let end = ClassIndex {
            class: 3,
            list: LISTS as u32 - 1,
        };
        filled.set(end);
        filled.set(ClassIndex { class: 4, list: 0 });
        let next = filled.above(end).map(|found| (found.class, found.list));
        assert_eq!(next, Some((4, 0)));
    }

    #[test]
    fn the_bookkeeping_counts_its_memory() {
        let (mut headers, mut classes) = (Headers::default(), SizeClasses::default());
        let empty = classes.bytes();
        assert!(empty >= ALL * size_of::<Link>());
        for start in 0..10_000 {
            let id = headers.add(Header::new(start * 8, 8, State::Free, LastUse::FREE));
            classes.insert(&headers, id);
        }
        assert!(classes.bytes() >= empty + 10_000 * size_of::<Link>());
    }

    /// Smaller ones of the same list stand before it.
    #[test]
    fn the_only_block_of_just_the_size_is_found() {
        let (mut headers, mut classes) = (Headers::default(), SizeClasses::default());
        let ids = [1010_u32, 1000, 1001].map(|size| {
            let start = u64::from(size) << 16;
            let id = headers.add(Header::new(start, size, State::Free, LastUse::FREE));
            classes.insert(&headers, id);
            id
        });
        assert_eq!(place(1000).number(), place(1010).number());
        assert_eq!(classes.find(&headers, 1010), Some(ids[0]));
        assert_eq!(classes.find(&headers, 1011), None);
    }
}
