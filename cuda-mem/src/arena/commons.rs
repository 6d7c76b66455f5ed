//! The memory that no lane has: large blocks come from here, and pages for the small ones of each lane.
//!
//! A free block has one last user, or none: then it is clean. A stream takes its own blocks first and then clean ones,
//! also several that lie side by side. So no request is refused while a run of memory that the stream may use holds it.

#![forbid(unsafe_code)]

use super::counters::Counters;
use super::fit::{Fit, FreeLists as _, FreePages, Joins};
use super::node::{Id, State};
use super::owned_bins::OwnedBins;
use super::owners::LaneId;
use super::stamp::Stamp;
use super::unmarked::Unmarked;
use super::{PAGE_UNITS, Unknown};

#[derive(Debug, Default)]
pub(super) struct Commons {
    fit: Fit<OwnedBins>,
    /// By lane.
    uses: Vec<Uses>,
    /// Last users are noted. Not while there is one lane only.
    is_shared: bool,
}

/// What is known of the memory that a lane's stream used.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    /// What was given back with this ticket or an earlier one is done, and free for every stream.
    done: u64,
    /// The last ticket with which something was given back.
    newest: u64,
    /// Units that were given back since the last mark.
    unmarked: u64,
}

/// A free block that another lane's stream used last, as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) start: u64,
    pub(super) stamp: Stamp,
}

/// Neighbouring free blocks that a stream may use.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: Id,
    start: u64,
    end: u64,
}

impl Commons {
    /// A block for this lane's stream to use at once.
    #[inline]
    pub(super) fn allocate(&mut self, size: u32, own: LaneId, counters: &Counters) -> Option<u64> {
        let start = match self.best(size, own) {
            Some(id) => self.fit.take(id, size),
            None => self.allocate_run(size, own)?,
        };
        counters.took_fit(size);
        Some(start)
    }

    /// The lane's own block that fits best, or else the clean one. What another stream could use is kept as long as
    /// something else will do: it is what keeps the arena from growing.
    #[inline]
    fn best(&self, size: u32, own: LaneId) -> Option<Id> {
        let Fit { nodes, bins, .. } = &self.fit;
        if self.is_shared
            && let Some(mine) = bins.find(nodes, own + 1, size)
        {
            return Some(mine);
        }
        bins.find_clean(nodes, size)
    }

    /// A block of several that lie side by side.
    #[cold]
    fn allocate_run(&mut self, size: u32, own: LaneId) -> Option<u64> {
        let run = self.run(own, |run| run.end - run.start >= u64::from(size))?;
        self.merge(run.first, size);
        Some(self.fit.take(run.first, size))
    }

    /// The shortest run of usable blocks, more than one, for which this holds.
    fn run(&self, own: LaneId, holds: impl Fn(&Run) -> bool) -> Option<Run> {
        let nodes = &self.fit.nodes;
        // Clean blocks merge where they touch, so each longer run has one of the lane's own.
        let mine = self.fit.bins.at_least(nodes, own + 1, 1);
        let runs = mine.map(|id| self.run_around(id, own));
        let long = runs.filter(holds);
        long.min_by_key(|run| (run.end - run.start, run.start))
    }

    /// The usable blocks that touch this one.
    fn run_around(&self, id: Id, own: LaneId) -> Run {
        let nodes = &self.fit.nodes;
        let is_usable = |id: Id| {
            let node = &nodes[id];
            node.state() == State::Free && node.stamp().is_usable_by(own)
        };
        let (mut first, mut last) = (id, id);
        while is_usable(nodes[first].before) {
            first = nodes[first].before;
        }
        while is_usable(nodes[last].after) {
            last = nodes[last].after;
        }
        Run {
            first,
            start: nodes[first].start(),
            end: nodes[last].end(),
        }
    }

    /// Makes one block of this one and as many behind it as a size takes. What is left of the last one stays what it
    /// was.
    fn merge(&mut self, first: Id, size: u32) {
        let Fit { nodes, bins, .. } = &mut self.fit;
        bins.remove(nodes, first);
        let mut stamp = nodes[first].stamp();
        while nodes[first].size < size {
            let next = nodes[first].after;
            let (missing, next_node) = (size - nodes[first].size, nodes[next]);
            bins.remove(nodes, next);
            // A clean part becomes the lane's own.
            let other = next_node.stamp();
            stamp = stamp.join(other).unwrap_or(Stamp {
                ticket: stamp.ticket.max(other.ticket),
                user: stamp.user.max(other.user),
            });
            if next_node.size > missing {
                nodes[first].size = size;
                nodes[next].move_start(missing);
                bins.insert(nodes, next);
            } else {
                nodes[first].size += next_node.size;
                nodes.link(first, next_node.after);
                nodes.remove(next);
            }
        }
        nodes[first].set_stamp(stamp);
        bins.insert(nodes, first);
    }

    /// The block of another lane that fits best, of those of which the lane's stream comes after their use if there are
    /// any.
    pub(super) fn best_of_others(
        &self,
        size: u32,
        own: LaneId,
        is_after: impl Fn(Stamp) -> bool,
    ) -> Option<Place> {
        let Fit { nodes, bins, .. } = &self.fit;
        let best = self
            .other_users(own)
            .filter_map(|user| bins.find(nodes, user, size));
        let best = best.min_by_key(|id| {
            let node = &nodes[*id];
            (!is_after(node.stamp()), node.size, node.start())
        })?;
        Some(self.place(best))
    }

    /// Other users with free blocks.
    fn other_users(&self, own: LaneId) -> impl Iterator<Item = u32> + '_ {
        let users = self.fit.bins.users();
        users.filter(move |user| *user != own + 1)
    }

    fn place(&self, id: Id) -> Place {
        let node = &self.fit.nodes[id];
        Place {
            start: node.start(),
            stamp: node.stamp(),
        }
    }

    /// A block that was seen, if nothing has happened to it since and it has at least this size.
    fn find_at(&self, place: Place, size: u32) -> Option<Id> {
        let Fit { nodes, bins, .. } = &self.fit;
        let mut blocks = bins.at_least(nodes, place.stamp.user, size);
        blocks.find(|id| self.place(*id) == place)
    }

    /// Other lanes with free memory that may be in use, those with most of it first.
    pub(super) fn others(&self, own: LaneId) -> Vec<LaneId> {
        let bins = &self.fit.bins;
        let mut lanes: Vec<LaneId> = self.other_users(own).map(|user| user - 1).collect();
        lanes.sort_by_key(|lane| std::cmp::Reverse(bins.units(lane + 1)));
        lanes
    }

    /// A block from the beginning of one that was seen, if nothing has happened to that since.
    pub(super) fn allocate_at(&mut self, place: Place, size: u32, counters: &Counters) -> bool {
        let Some(id) = self.find_at(place, size) else {
            return false;
        };
        self.fit.take(id, size);
        counters.took_fit(size);
        true
    }

    /// Takes back a block.
    #[inline]
    pub(super) fn free(&mut self, start: u64, stamp: Stamp) -> Result<(), Unknown> {
        let stamp = self.if_done(stamp);
        match self.fit.free(start, stamp) {
            Some(size) => {
                self.note_use(stamp, u64::from(size));
                Ok(())
            }
            None => Err(Unknown { start }),
        }
    }

    #[inline]
    fn note_use(&mut self, stamp: Stamp, units: u64) {
        if let Some(lane) = stamp.lane() {
            let uses = self.uses_mut(lane);
            uses.newest = uses.newest.max(stamp.ticket);
            uses.unmarked += units;
        }
    }

    #[inline]
    fn uses_mut(&mut self, lane: LaneId) -> &mut Uses {
        let at = lane as usize;
        if self.uses.len() <= at {
            self.uses.resize(at + 1, Uses::default());
        }
        &mut self.uses[at]
    }

    /// The last ticket with which a lane's stream gave something back; 0 if it did not.
    pub(super) fn newest(&self, lane: LaneId) -> u64 {
        self.uses.get(lane as usize).map_or(0, |uses| uses.newest)
    }

    /// How much was given back on a lane's stream since the last mark.
    #[inline]
    pub(super) fn unmarked(&self, lane: LaneId) -> Unmarked {
        let units = self.uses.get(lane as usize).map_or(0, |uses| uses.unmarked);
        Unmarked {
            units,
            of_all: self.fit.total_units(),
            lanes: self.uses.len().max(1) as u64,
        }
    }

    /// The stamp, or that of a clean block if its use is known to be done.
    #[inline]
    fn if_done(&self, stamp: Stamp) -> Stamp {
        if !self.is_shared {
            return Stamp::FREE;
        }
        let uses = stamp.lane().and_then(|lane| self.uses.get(lane as usize));
        if uses.is_some_and(|uses| uses.done >= stamp.ticket) {
            return Stamp::FREE;
        }
        stamp
    }

    /// Somebody has to know from now on who used what: there is a second lane, or memory goes back to the device. Until
    /// this ticket the first lane may use all that is free.
    pub(super) fn share(&mut self, first: LaneId, ticket: u64) {
        if std::mem::replace(&mut self.is_shared, true) {
            return;
        }
        let stamp = self.if_done(Stamp::new(first, ticket));
        self.note_use(stamp, self.fit.free_units());
        let Fit { nodes, bins, .. } = &mut self.fit;
        let free: Vec<Id> = bins.at_least(nodes, 0, 1).collect();
        for id in free {
            bins.remove(nodes, id);
            nodes[id].set_stamp(stamp);
            bins.insert(nodes, id);
        }
    }

    /// There is one lane only: all that is free is for it.
    pub(super) fn unshare(&mut self) {
        self.is_shared = false;
        let Fit { nodes, bins, .. } = &self.fit;
        let used: Vec<Id> = bins
            .users()
            .flat_map(|user| bins.at_least(nodes, user, 1))
            .collect();
        for id in used {
            self.fit.make_free_for_all(id);
        }
    }

    /// The shortest run of free blocks that holds a size, whoever used them last.
    #[cold]
    pub(super) fn run_of_all(&self, size: u32) -> Option<Vec<Place>> {
        let nodes = &self.fit.nodes;
        let mut best: Option<(u64, Id)> = None;
        let users = [0].into_iter().chain(self.fit.bins.users());
        for id in users.flat_map(|user| self.fit.bins.at_least(nodes, user, 1)) {
            // Each run once, from its first block.
            if nodes[nodes[id].before].state() == State::Free {
                continue;
            }
            let mut last = id;
            while nodes[nodes[last].after].state() == State::Free {
                last = nodes[last].after;
            }
            let units = nodes[last].end() - nodes[id].start();
            if units >= u64::from(size) && best.is_none_or(|best| units < best.0) {
                best = Some((units, id));
            }
        }
        let (_, mut id) = best?;
        let (mut places, mut units) = (Vec::new(), 0);
        while units < u64::from(size) {
            places.push(self.place(id));
            units += u64::from(nodes[id].size);
            id = nodes[id].after;
        }
        Some(places)
    }

    /// A block of a run that was seen, if nothing has happened to it since but that some of it is done.
    pub(super) fn allocate_run_at(
        &mut self,
        places: &[Place],
        size: u32,
        counters: &Counters,
    ) -> Option<u64> {
        let start = places.first()?.start;
        let nodes = &self.fit.nodes;
        let users = [0]
            .into_iter()
            .chain(places.iter().map(|place| place.stamp.user));
        let mut blocks = users.flat_map(|user| self.fit.bins.at_least(nodes, user, 1));
        let first = blocks.find(|id| nodes[*id].start() == start)?;
        drop(blocks);
        let (mut id, mut units) = (first, 0);
        while units < u64::from(size) {
            let node = &nodes[id];
            let seen = places.iter().any(|place| {
                place.start == node.start()
                    && (place.stamp == node.stamp() || node.stamp() == Stamp::FREE)
            });
            if node.state() != State::Free || !seen {
                return None;
            }
            units += u64::from(node.size);
            id = node.after;
        }
        self.merge(first, size);
        self.fit.take(first, size);
        counters.took_fit(size);
        Some(start)
    }

    /// Takes memory in.
    pub(super) fn add(&mut self, start: u64, units: u64, stamp: Stamp, joins: Joins) {
        let stamp = self.if_done(stamp);
        self.fit.add(start, units, stamp, 0, joins);
        self.note_use(stamp, units);
    }

    /// Whole pages for a lane: they are not here any more.
    pub(super) fn take_pages(&mut self, own: LaneId, most: u64) -> Option<FreePages> {
        let least = PAGE_UNITS as u32;
        let Fit { nodes, bins, .. } = &self.fit;
        let mine = bins.at_least(nodes, own + 1, least);
        let blocks = mine.chain(bins.at_least(nodes, 0, least));
        let found = blocks
            .map(|id| (id, pages_in(nodes[id].start(), nodes[id].end(), most)))
            .find(|(_, pages)| pages.units > 0);
        let (id, pages) = match found {
            Some(found) => found,
            None => self.page_of_run(own)?,
        };
        self.fit.cut_of(id, pages.start, pages.units);
        Some(pages)
    }

    /// A page that lies across several blocks, which become one.
    #[cold]
    fn page_of_run(&mut self, own: LaneId) -> Option<(Id, FreePages)> {
        let page = |run: &Run| pages_in(run.start, run.end, PAGE_UNITS);
        let run = self.run(own, |run| page(run).units > 0)?;
        let pages = page(&run);
        let size = u32::try_from(pages.start + pages.units - run.start).ok()?;
        self.merge(run.first, size);
        Some((run.first, pages))
    }

    /// Pages of a block of another lane that was seen, if nothing has happened to that since.
    pub(super) fn take_pages_at(&mut self, place: Place, most: u64) -> Option<FreePages> {
        let id = self.find_at(place, PAGE_UNITS as u32)?;
        let nodes = &self.fit.nodes;
        let pages = pages_in(nodes[id].start(), nodes[id].end(), most);
        if pages.units == 0 {
            return None;
        }
        self.fit.cut_of(id, pages.start, pages.units);
        Some(pages)
    }

    /// A block of another lane with a whole page.
    pub(super) fn pages_of_others(&self, own: LaneId) -> Option<Place> {
        let Fit { nodes, bins, .. } = &self.fit;
        let others = self.other_users(own);
        let mut blocks = others.flat_map(|user| bins.at_least(nodes, user, PAGE_UNITS as u32));
        let id = blocks
            .find(|id| pages_in(nodes[*id].start(), nodes[*id].end(), PAGE_UNITS).units > 0)?;
        Some(self.place(id))
    }

    /// All free pages that nobody uses.
    pub(super) fn done_pages(&self) -> Vec<FreePages> {
        let Fit { nodes, bins, .. } = &self.fit;
        let blocks = bins.at_least(nodes, 0, PAGE_UNITS as u32);
        let pages = blocks.map(|id| pages_in(nodes[id].start(), nodes[id].end(), u64::MAX));
        pages.filter(|pages| pages.units > 0).collect()
    }

    /// Gives away a part of a free block that nobody uses, if it still is.
    pub(super) fn give_away(&mut self, start: u64, units: u64) -> bool {
        let end = start + units;
        let Ok(least) = u32::try_from(units) else {
            return false;
        };
        let Fit { nodes, bins, .. } = &self.fit;
        let mut blocks = bins.at_least(nodes, 0, least);
        let found = blocks.find(|id| nodes[*id].start() <= start && end <= nodes[*id].end());
        drop(blocks);
        found.map(|id| self.fit.cut_of(id, start, units)).is_some()
    }

    /// Where the usable memory begins that ends here, where more memory could follow.
    pub(super) fn usable_tail(&self, end: u64, own: LaneId) -> Option<u64> {
        let last = self.fit.tail(end)?;
        let is_usable = self.fit.nodes[last].stamp().is_usable_by(own);
        is_usable.then(|| self.run_around(last, own).start)
    }

    /// Notes how far a lane's stream has come: what is done is nobody's.
    pub(super) fn note_done(&mut self, lane: LaneId, ticket: u64) {
        let uses = self.uses_mut(lane);
        if std::mem::replace(&mut uses.done, ticket) == ticket {
            return;
        }
        for id in self.fit.bins.until(&self.fit.nodes, lane + 1, ticket) {
            self.fit.make_free_for_all(id);
        }
    }

    /// Notes that a mark lies behind what was given back with this ticket.
    pub(super) fn note_mark(&mut self, lane: LaneId, ticket: u64) {
        let uses = self.uses_mut(lane);
        if ticket >= uses.newest {
            uses.unmarked = 0;
        }
    }

    /// All runs of memory that a lane may use, as far as is known: where they start and end.
    #[cfg(test)]
    fn usable_runs(&self, own: LaneId) -> Vec<(u64, u64)> {
        let nodes = &self.fit.nodes;
        let blocks = [0, own + 1].map(|user| self.fit.bins.at_least(nodes, user, 1));
        let mut blocks: Vec<(u64, u64)> = blocks
            .into_iter()
            .flatten()
            .map(|id| (nodes[id].start(), nodes[id].end()))
            .collect();
        blocks.sort_unstable();
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (start, end) in blocks {
            match runs.last_mut() {
                Some(last) if last.1 == start => last.1 = end,
                _ => runs.push((start, end)),
            }
        }
        runs
    }

    pub(super) fn fit(&self) -> &Fit<OwnedBins> {
        &self.fit
    }
}

/// The whole pages from here to there, so many at most.
fn pages_in(start: u64, end: u64, most: u64) -> FreePages {
    let start = start.next_multiple_of(PAGE_UNITS);
    let end = end / PAGE_UNITS * PAGE_UNITS;
    FreePages {
        start,
        units: end.saturating_sub(start).min(most),
    }
}

#[cfg(test)]
mod tests;
