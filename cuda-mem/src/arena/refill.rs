//! Misses: neither the stream's cache nor the central heap has a usable block. These are the steps that find one before
//! the arena grows.

use std::alloc::Layout;

use super::last_freed::is_small;
use super::last_use::LastUse;
use super::page_map::CacheId;
use super::slow_path::{For, SlowState, count};
use super::stream_progress::StreamProgress;
use super::{Inner, UNIT, thread, units};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::report;
use crate::memory::pool::ReusePolicy;
use crate::stream::Stream;
use crate::stream::deferred::ResourceCall;

/// Attempts of a request that makes the arena grow while other threads take the memory.
const TRIES: u32 = 16;

/// Attempts of a request that finds memory and loses it to other threads, whose requests are then served.
const LOST: u32 = 10_000;

/// What was found for a request.
enum Found {
    /// A block.
    Block(u64),
    /// Memory, which another thread took first. The request starts again.
    Lost,
    Nothing,
}

impl From<Option<u64>> for Found {
    fn from(block: Option<u64>) -> Self {
        block.map_or(Self::Nothing, Self::Block)
    }
}

/// The steps of a miss, those that disturb least first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Take memory that the program's own waits have shown to be done.
    NoteWaits,
    /// Grow, while the arena is small.
    Grow,
    /// Query the streams that used free memory last.
    Query,
    /// Take free pages and cached blocks out of all caches.
    Scavenge,
    /// Make the stream wait for another one.
    Wait,
    /// Query all streams, including those that were busy last time, since the next step is to grow.
    QueryAll,
    /// Make the stream wait for several others.
    WaitForAll,
}

const STEPS: [Step; 7] = [
    Step::NoteWaits,
    Step::Grow,
    Step::Query,
    Step::Scavenge,
    Step::Wait,
    Step::QueryAll,
    Step::WaitForAll,
];

/// For the thread that is growing the arena.
pub(super) const STEPS_WITHOUT_GROWTH: [Step; 6] = [
    Step::NoteWaits,
    Step::Query,
    Step::Scavenge,
    Step::Wait,
    Step::QueryAll,
    Step::WaitForAll,
];

impl Inner {
    pub(super) fn may_wait(&self) -> bool {
        self.reuse
            .contains(ReusePolicy::ALLOW_INTERNAL_DEPENDENCIES)
    }

    pub(super) fn may_query(&self) -> bool {
        self.reuse.contains(ReusePolicy::ALLOW_OPPORTUNISTIC)
    }

    /// Reports a stream's progress and its last event to the central heap.
    pub(super) fn note_done(&self, progress: &StreamProgress, id: CacheId) {
        let mut central = self.central.lock(thread::number());
        central.note_done(id, progress.done());
        central.note_event(id, progress.recorded());
    }

    /// A request that neither the stream's cache nor the central heap can serve at once. Not always rare: streams that
    /// take memory from each other come here often. The `cold` attribute keeps the fast path straight.
    #[cold]
    #[track_caller]
    pub(super) fn allocate_slowly(&self, layout: Layout, stream: &Stream) -> Result<u64> {
        if self.backing.observer.begin() {
            return self.allocate_observed(layout, stream);
        }
        let allocated = self.find_or_grow(layout, stream);
        self.report_unknown_blocks();
        allocated
    }

    #[track_caller]
    pub(super) fn find_or_grow(&self, layout: Layout, stream: &Stream) -> Result<u64> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        if layout.size() == 0 {
            return Ok(0);
        }
        // The caller may be a resource that holds a lock, which memory given back to it would need.
        let _inside = ResourceCall::enter();
        let id = self.cache_of(stream, For::Allocation)?;
        let bytes = layout.size() as u64;
        let Some(size) = units(layout.size()) else {
            let text = "a block of an arena has less than 1 TiB";
            return Err(Error::new(ErrorKind::OutOfMemory, text).with_asked(bytes));
        };
        for _ in 0..TRIES {
            if let Some(start) = self.find_for(id, size, stream, &STEPS) {
                return Ok(start * UNIT);
            }
            match self.grow_once(id, size, stream) {
                Ok(Some(start)) => return Ok(start * UNIT),
                Ok(None) => {}
                Err(error) => return self.last_resort(id, size, stream, error),
            }
        }
        let text = "other threads took all that was got for this request";
        let error = Error::new(ErrorKind::OutOfMemory, text).with_asked(bytes);
        self.last_resort(id, size, stream, error)
    }

    /// A block of the memory that the arena has.
    pub(super) fn find_for(
        &self,
        id: CacheId,
        size: u32,
        stream: &Stream,
        steps: &[Step],
    ) -> Option<u64> {
        for _ in 0..LOST {
            if let Some(start) = self.try_allocate(id, size) {
                return Some(start);
            }
            match self.find_by_any(id, size, stream, steps) {
                Found::Block(start) => return Some(start),
                Found::Lost => {}
                Found::Nothing => return None,
            }
        }
        None
    }

    /// The result of the first step that finds anything.
    fn find_by_any(&self, id: CacheId, size: u32, stream: &Stream, steps: &[Step]) -> Found {
        let tried = steps.iter().map(|step| self.find(id, size, stream, *step));
        let mut got = tried.filter(|found| !matches!(found, Found::Nothing));
        got.next().unwrap_or(Found::Nothing)
    }

    /// Performs one step.
    fn find(&self, id: CacheId, size: u32, stream: &Stream, step: Step) -> Found {
        let is_allowed = match step {
            Step::Query | Step::QueryAll => self.may_query(),
            Step::Wait => self.may_wait(),
            Step::WaitForAll => self.may_wait() && !is_small(size),
            Step::Grow => self.grows_first(id, size),
            Step::NoteWaits | Step::Scavenge => true,
        };
        if !is_allowed {
            return Found::Nothing;
        }
        if step == Step::Grow {
            return match self.grow_first(id, size, stream) {
                Ok(Some(start)) => Found::Block(start),
                Ok(None) => Found::Lost,
                // Other steps may still find enough; if not, growing fails again and reports why.
                Err(_) => Found::Nothing,
            };
        }
        let mut state = self.slow_state();
        match step {
            Step::NoteWaits => {
                self.note_waits(&mut state);
                self.release_parked(&mut state);
            }
            Step::Scavenge => {
                count(&self.slow_path.counters.refills);
                self.scavenge(false);
            }
            Step::QueryAll => {
                self.query_all(&mut state);
                self.query_parked(&mut state, true);
                // From now on streams are queried as they free: memory that is not known to be done does not merge with
                // that of other streams. A single stream needs nothing from others.
                let several = self.caches.count() > 1;
                for (cache, slot) in self.caches.iter().filter(|_| several) {
                    slot.requested.queries();
                    self.request_events(cache);
                }
            }
            Step::Query | Step::Wait => {
                let came_free = match step {
                    Step::Wait => self.wait_for_parked(&mut state, id, stream),
                    _ => self.query_parked(&mut state, false),
                };
                if came_free && let Some(start) = self.take(id, size) {
                    return Found::Block(start);
                }
            }
            Step::Grow | Step::WaitForAll => {}
        }
        let force = step == Step::QueryAll;
        if self.slot(id).has_waiting() {
            let wait = (step == Step::Wait).then_some(stream);
            if self.reclaim_remote_frees(&mut state, id, wait, force)
                && let Some(start) =
                    self.try_allocate_after(id, size, || self.query_freed(&mut state))
            {
                return Found::Block(start);
            }
        }
        if force || step == Step::WaitForAll {
            // The next step is to grow, and other streams' pages may serve as well.
            self.reclaim_everywhere(&mut state, id, force);
        }
        match step {
            Step::NoteWaits => self.take(id, size).into(),
            Step::Grow => Found::Nothing,
            Step::Query => self.query(&mut state, id, size).into(),
            Step::Scavenge | Step::QueryAll => {
                let taken = self.take(id, size);
                // Scavenged memory may be done too, but its streams have not been queried for it yet.
                let look = || self.query(&mut state, id, size);
                taken
                    .or_else(|| self.may_query().then(look).flatten())
                    .into()
            }
            Step::Wait => self.wait(&mut state, id, size, stream),
            Step::WaitForAll => self.wait_for_all(&mut state, id, size, stream),
        }
    }

    /// Frees the remote frees of other caches that are done, and moves whole pages to the central heap.
    fn reclaim_everywhere(&self, state: &mut SlowState, own: CacheId, force: bool) {
        let mut any = false;
        for (id, slot) in self.caches.iter() {
            // The own cache's remote frees are reclaimed already, but its whole pages have not gone to the central heap
            // yet.
            let waits = id != own && slot.has_waiting();
            any |= waits && self.reclaim_remote_frees(state, id, None, force);
        }
        if any
            || self
                .slot(own)
                .counters
                .has_spare(false, self.slot(own).of_pages_elsewhere())
        {
            self.scavenge(false);
        }
    }

    /// A block of the central heap in its current state, or of pages from it for a small one.
    pub(super) fn take(&self, id: CacheId, size: u32) -> Option<u64> {
        let slot = self.slot(id);
        let mut central = self.central.lock(thread::number());
        if self.caches.cuts(slot, size)
            && let Some(pages) = central.take_pages(id, self.pages_for(id, size))
        {
            drop(central);
            return self.add_pages(id, pages, size);
        }
        if is_small(size) {
            return None;
        }
        central.allocate(size, id, &self.central.counters)
    }

    /// Notes the progress that the program's own waits have shown. No driver call.
    fn note_waits(&self, state: &mut SlowState) {
        // Events must not be dropped under the central heap's lock.
        state
            .streams
            .iter_mut()
            .for_each(StreamProgress::note_waits);
        let mut central = self.central.lock(thread::number());
        for (id, progress) in state.streams.iter().enumerate() {
            central.note_done(id as CacheId, progress.done());
        }
    }

    /// Makes a stream record events after its frees, so that others can see what is done. If the policy lets them wait
    /// instead, an event is recorded when one is needed.
    pub(super) fn request_events(&self, cache: CacheId) {
        if !self.may_wait() {
            self.slot(cache).requested.events();
        }
    }

    /// Queries the streams that used free memory last, one after the other.
    fn query(&self, state: &mut SlowState, id: CacheId, size: u32) -> Option<u64> {
        let me = thread::number();
        let others = self.central.lock(me).others(id);
        for other in others {
            self.request_events(other);
            let newest = self.central.lock(me).newest(other);
            let progress = &mut state.streams[other as usize];
            let before = progress.done();
            if !progress.query(newest) {
                continue;
            }
            self.note_done(progress, other);
            if progress.done() == before {
                continue;
            }
            if let Some(start) = self.take(id, size) {
                count(&self.slow_path.counters.taken_over);
                return Some(start);
            }
        }
        None
    }

    /// Makes the stream wait for all last users of neighbouring blocks.
    fn wait_for_all(
        &self,
        state: &mut SlowState,
        id: CacheId,
        size: u32,
        stream: &Stream,
    ) -> Found {
        let me = thread::number();
        let Some(places) = self.central.lock(me).run_of_all(size) else {
            return Found::Nothing;
        };
        let last_uses = places.iter().map(|place| place.last_use);
        let mut last_uses = last_uses.filter(|last_use| !last_use.is_usable_by(id));
        if !last_uses.all(|last_use| self.wait_for(state, id, last_use, stream)) {
            return Found::Nothing;
        }
        let mut central = self.central.lock(me);
        let start = central.allocate_run_at(&places, size, id, &self.central.counters);
        drop(central);
        self.taken_over(start)
    }

    /// A block that was seen before, if it could be taken.
    fn taken_over(&self, start: Option<u64>) -> Found {
        let Some(start) = start else {
            return Found::Lost;
        };
        count(&self.slow_path.counters.taken_over);
        Found::Block(start)
    }

    /// Makes the stream wait for the last user of a block. Returns whether the stream is ordered after that use.
    pub(super) fn wait_for(
        &self,
        state: &mut SlowState,
        id: CacheId,
        last_use: LastUse,
        stream: &Stream,
    ) -> bool {
        let Some(user) = last_use.cache() else {
            return true;
        };
        let is_after = state.streams[id as usize].is_after(user, last_use.epoch);
        let progress = &mut state.streams[user as usize];
        if is_after || progress.done() >= last_use.epoch {
            return true;
        }
        let until = progress.make_wait(stream, last_use.epoch).unwrap_or(None);
        self.note_done(progress, user);
        if let Some(until) = until {
            state.streams[id as usize].comes_after(user, until);
        }
        until.is_some()
    }

    fn wait(&self, state: &mut SlowState, id: CacheId, size: u32, stream: &Stream) -> Found {
        let me = thread::number();
        let mut pages = false;
        let found = {
            let central = self.central.lock(me);
            if self.caches.cuts(self.slot(id), size)
                && let Some(place) = central.pages_of_others(id, self.pages_for(id, size))
            {
                pages = true;
                Some(place)
            } else if is_small(size) {
                None
            } else {
                let progress = &state.streams[id as usize];
                let is_after = |last_use: LastUse| {
                    last_use
                        .cache()
                        .is_none_or(|user| progress.is_after(user, last_use.epoch))
                };
                central.best_of_others(size, id, is_after)
            }
        };
        let Some(place) = found else {
            return Found::Nothing;
        };
        if !self.wait_for(state, id, place.last_use, stream) {
            return Found::Nothing;
        }
        let mut central = self.central.lock(me);
        if pages {
            // A block that was found done meanwhile may have merged into a larger one.
            let wanted = self.pages_for(id, size);
            let pages = central.take_pages_at(place, wanted);
            let pages = pages.or_else(|| central.take_pages(id, wanted));
            drop(central);
            let start = pages.and_then(|pages| self.add_pages(id, pages, size));
            return self.taken_over(start);
        }
        // A block that was found done meanwhile may have merged into a larger one.
        let taken = central.allocate_at(place, size, id, &self.central.counters);
        let start = if taken {
            Some(place.start)
        } else {
            central.allocate(size, id, &self.central.counters)
        };
        drop(central);
        self.taken_over(start)
    }
}
