//! Moves of physical memory: free and completed chunks are mapped where the arena grows, so that less is newly created.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::backing::Chunk;
use super::last_use::LastUse;
use super::page_map::CacheId;
use super::slow_path::count;
use super::{GRANULE, Inner, UNIT, thread};
use crate::base::telemetry::event;
use crate::stream::context::Context;
use crate::stream::epoch;

/// When a growth beyond the slack searches for memory that can move.
#[derive(Debug, Default)]
pub(super) struct Moves {
    /// Fruitless searches in a row.
    vain: AtomicU32,
    /// Growths left that skip the search.
    rest: AtomicU32,
}

/// Fruitless searches in a row after which growths skip searches: each search queries all streams.
const PATIENCE: u32 = 8;
/// Free bytes that are worth a search.
const MUCH: u64 = 32 << 20;
/// The first pause between two looks at streams that are waited for, and the longest.
const FIRST_PAUSE: Duration = Duration::from_micros(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);
/// At most 2 to this power growths skip their search.
const LONGEST_REST: u32 = 6;
/// The same if growths may wait: then a search finds nothing only if there is nothing.
const LONGEST_REST_WITH_WAITS: u32 = 2;

impl Moves {
    /// The caller holds the turn to grow.
    fn is_due(&self) -> bool {
        let rest = self.rest.load(Ordering::Relaxed);
        self.rest.store(rest.saturating_sub(1), Ordering::Relaxed);
        rest == 0
    }

    fn tried(&self, found: bool, longest_rest: u32) {
        let vain = if found {
            0
        } else {
            (self.vain.load(Ordering::Relaxed) + 1).min(PATIENCE + longest_rest)
        };
        self.vain.store(vain, Ordering::Relaxed);
        let rest = (1 << vain.saturating_sub(PATIENCE)) - 1;
        self.rest.store(rest, Ordering::Relaxed);
    }

    /// The next growths neither search nor wait.
    fn give_up(&self) {
        self.vain.store(PATIENCE + LONGEST_REST, Ordering::Relaxed);
        self.rest.store(1 << LONGEST_REST, Ordering::Relaxed);
    }

    /// Whether recent searches found something, so that the arena should grow by no more than it must.
    pub(super) fn are_likely(&self) -> bool {
        self.vain.load(Ordering::Relaxed) < PATIENCE
    }
}

/// Where memory is to be added.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The address: after everything that is mapped, or in a gap.
    pub(super) address: u64,
    /// Free memory that the request can use reaches from here to the address.
    pub(super) usable_from: u64,
}

impl Inner {
    /// Records the current demand: live blocks, the requested bytes, and freed memory that is not known to be done.
    /// Returns the highest demand so far.
    pub(super) fn note_demand(&self, request: u64) -> u64 {
        // Read before the live bytes: a block freed in between is missed rather than counted twice.
        let not_done = self.not_done();
        let held = self.backing.reserved().current();
        let has = (not_done + self.stats().live).min(held) + request;
        self.mark.fetch_max(has, Ordering::Relaxed).max(has)
    }

    fn not_done(&self) -> u64 {
        let me = thread::number();
        let waiting = self.caches.iter().map(|(_, slot)| {
            let received = if slot.has_waiting() {
                slot.lock.lock(me).remote_units()
            } else {
                0
            };
            received + slot.remote_queue.units()
        });
        let waiting: u64 = waiting.sum();
        let parked = self.slow_path.parked.now();
        let central = self.central.lock(me);
        (central.not_done() + waiting + parked) * UNIT
    }

    /// Whether growing by `growth` bytes for a request would exceed the slack. A small arena may always grow.
    pub(super) fn is_beyond_slack(&self, request: u64, growth: u64) -> bool {
        let mark = self.note_demand(request);
        let held = self.backing.reserved().current() + growth;
        held > self.small() && held as f64 > mark as f64 * self.slack
    }

    /// Waits until what the streams have now is done, so that free memory can move, at most as long as a growth may
    /// [wait](super::ArenaBuilder::growth_wait). The caller holds the turn to grow.
    #[cold]
    pub(super) fn wait_to_move(&self, bytes: u64) {
        let is_due = self.moves.rest.load(Ordering::Relaxed) == 0;
        let may_move = self.may_query() && self.backing.can_move();
        if self.growth_wait.is_zero() || !is_due || !may_move {
            return;
        }
        if self.free_bytes() < bytes.min(MUCH) {
            return;
        }
        let me = thread::number();
        let begin = Instant::now();
        self.central.lock(me).share(0, epoch::now());
        let (mut last, mut pause) = (None, FIRST_PAUSE);
        while begin.elapsed() < self.growth_wait {
            let mut state = self.slow_state();
            self.query_all(&mut state);
            let uses = state.streams.iter().enumerate();
            let central = self.central.lock(me);
            let newest = |id: usize| central.newest(id as CacheId);
            // What is freed while this waits is not waited for.
            let wanted: &Vec<u64> =
                last.get_or_insert_with(|| uses.clone().map(|(id, _)| newest(id)).collect());
            let mut waited_for = wanted.iter().zip(&state.streams);
            let is_done = waited_for.all(|(epoch, progress)| progress.done() >= *epoch);
            drop(central);
            drop(state);
            if is_done {
                return;
            }
            std::thread::sleep(pause);
            pause = (2 * pause).min(LONGEST_PAUSE);
        }
        // What was not done in time is seldom done at the next growth.
        self.moves.give_up();
        self.unshare_if_alone(&self.slow_state());
    }

    /// Moves free and completed chunks to a place, up to `bytes` or slightly more. Returns the bytes moved. The caller
    /// holds the turn to grow.
    #[cold]
    pub(super) fn move_to(&self, place: Place, bytes: u64, context: &Context) -> u64 {
        let may_move = self.may_query() && self.backing.can_move();
        let free = self.free_bytes();
        // With little free memory a search finds nothing, which says nothing about later searches.
        let is_much = free >= bytes.min(MUCH);
        let (moved, movable) = if may_move && is_much && self.moves.is_due() {
            self.move_up_to(place, bytes, context)
        } else {
            (0, 0)
        };
        if moved < bytes {
            let counters = &self.slow_path.counters;
            count(&counters.beyond_slack);
            let stranded = free.saturating_sub(movable);
            counters.stranded.store(stranded, Ordering::Relaxed);
        }
        moved
    }

    /// Returns the bytes moved, and the bytes that could have been moved.
    fn move_up_to(&self, place: Place, bytes: u64, context: &Context) -> (u64, u64) {
        let (chunks, movable) = self.take_movable(place, bytes);
        let moved = self.move_chunks(chunks, place, context);
        let may_wait = !self.growth_wait.is_zero();
        let longest_rest = if may_wait {
            LONGEST_REST_WITH_WAITS
        } else {
            LONGEST_REST
        };
        self.moves.tried(moved > 0, longest_rest);
        (moved, movable)
    }

    /// Moves chunks that [`take_movable`](Self::take_movable) returned. Returns the bytes moved.
    pub(super) fn move_chunks(&self, chunks: Vec<Chunk>, place: Place, context: &Context) -> u64 {
        chunks.into_iter().fold(0, |moved, chunk| {
            let came = self.move_chunk(chunk, place.address + moved, context);
            moved + came.map_or(0, |came| came.bytes)
        })
    }

    /// Moves a chunk that was [taken](Self::take_to_move), and frees it where it then is. `None` if the move failed.
    pub(super) fn move_chunk(&self, chunk: Chunk, to: u64, context: &Context) -> Option<Chunk> {
        // SAFETY: the chunk is not in the bookkeeping, and all work that used it is done.
        let came = unsafe { self.backing.relocate(chunk, to, context) };
        self.pins.has_left(chunk);
        if came.is_some() {
            count(&self.slow_path.counters.moved);
            event!(DEBUG, arena = %self, from = chunk.address, to, bytes = chunk.bytes, "memory moved");
        }
        let now = came.unwrap_or(chunk);
        self.add_to_central(now.address / UNIT, now.bytes / UNIT, LastUse::FREE);
        came
    }

    /// Removes free and completed chunks from the bookkeeping, up to `bytes` or slightly more. Also returns the total
    /// bytes of such chunks.
    pub(super) fn take_movable(&self, place: Place, bytes: u64) -> (Vec<Chunk>, u64) {
        self.with_movable(|found| {
            let movable = found.iter().map(|chunk| chunk.bytes).sum();
            let is_foreign =
                |chunk: &Chunk| chunk.end() <= place.usable_from || chunk.address >= place.address;
            let (mut chunks, mut sum) = (Vec::new(), 0);
            for chunk in found.into_iter().filter(is_foreign) {
                if sum >= bytes {
                    break;
                }
                if self.take_to_move(chunk) {
                    sum += chunk.bytes;
                    chunks.push(chunk);
                }
            }
            (chunks, movable)
        })
    }

    /// Calls `use_them` with the free and completed chunks: those in small places first, because these serve fewer
    /// requests.
    pub(super) fn with_movable<T>(&self, use_them: impl FnOnce(Vec<Chunk>) -> T) -> T {
        let me = thread::number();
        let mut state = self.slow_state();
        // Memory may move only once the host knows that its use is done.
        self.central.lock(me).share(0, epoch::now());
        self.query_all(&mut state);
        let mut places = self.central.lock(me).done_pages();
        places.sort_unstable_by_key(|place| (place.units, place.start));
        let found = places.iter().flat_map(|place| {
            let (from, to) = (place.start * UNIT, (place.start + place.units) * UNIT);
            self.backing.chunks_in(from, to)
        });
        let result = use_them(found.collect());
        self.unshare_if_alone(&state);
        result
    }

    /// Removes a chunk from the bookkeeping. `false` if another thread has taken part of it, or it is pinned.
    pub(super) fn take_to_move(&self, chunk: Chunk) -> bool {
        let mut central = self.central.lock(thread::number());
        let is_taken = central.give_away(chunk.address / UNIT, chunk.bytes / UNIT);
        drop(central);
        is_taken && self.may_leave(chunk)
    }

    /// Whether a chunk that was removed from the bookkeeping may move or be released. If not, it is free again.
    pub(super) fn may_leave(&self, chunk: Chunk) -> bool {
        let may_leave = self.pins.may_leave(chunk);
        if !may_leave {
            self.add_to_central(chunk.address / UNIT, chunk.bytes / UNIT, LastUse::FREE);
        }
        may_leave
    }

    /// Frees a chunk that was taken to be moved, but stays where it is.
    pub(super) fn put_back(&self, chunk: Chunk) {
        self.pins.has_left(chunk);
        self.add_to_central(chunk.address / UNIT, chunk.bytes / UNIT, LastUse::FREE);
    }

    /// The number of granules that `bytes` take.
    pub(super) fn granules(bytes: u64) -> u64 {
        bytes.div_ceil(GRANULE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Growths up to the next one that searches, which is counted too.
    fn growths(moves: &Moves) -> Option<u32> {
        (1..1000).find(|_| moves.is_due())
    }

    #[test]
    fn searches_in_vain_become_rare_but_do_not_end() {
        for (longest, rests) in [
            (LONGEST_REST, [2, 4, 8, 16, 32, 64, 64, 64]),
            (LONGEST_REST_WITH_WAITS, [2, 4, 4, 4, 4, 4, 4, 4]),
        ] {
            let moves = Moves::default();
            for vain in 0..=PATIENCE {
                assert_eq!(moves.are_likely(), vain < PATIENCE);
                assert_eq!(growths(&moves), Some(1), "after {vain} in vain");
                moves.tried(false, longest);
            }
            for rest in rests {
                assert_eq!(growths(&moves), Some(rest));
                moves.tried(false, longest);
            }
            growths(&moves);
            moves.tried(true, longest);
            assert!(moves.are_likely());
            assert_eq!(growths(&moves), Some(1));
        }
    }

    #[test]
    fn after_a_wait_in_vain_growths_neither_search_nor_wait() {
        let moves = Moves::default();
        moves.give_up();
        assert!(!moves.are_likely());
        assert_eq!(growths(&moves), Some((1 << LONGEST_REST) + 1));
    }
}
