//! Work that the arena's own thread does ahead of need: it makes a place for a block that requests found none for.

use super::last_use::LastUse;
use super::moves::Place;
use super::page_map::CacheId;
use super::recorded_events::with_relaxed_capture_mode;
use super::slow_path::count;
use super::stream_progress::StreamProgress;
use super::{GRANULE, Inner, UNIT, thread};
use crate::stream::context::Context;
use crate::stream::recording;

/// The number of no cache: it may use only clean memory.
const NO_CACHE: CacheId = CacheId::MAX - 1;

impl Inner {
    /// Makes a place for a block of this size, in units, if there is none. Does what a request would do, but creates no
    /// memory beyond the slack, and none where little can move. Returns how many bytes are missing.
    pub(super) fn prepare(&self, size: u32) -> u64 {
        let is_asleep = self.backing.reserved().asleep() > 0;
        if !self.may_query() || !self.backing.can_move() || is_asleep {
            return 0;
        }
        let state = self.slow_state();
        let mut contexts = state.streams.iter().filter_map(StreamProgress::context);
        let context = contexts.next().cloned();
        drop(state);
        let Some(context) = context else {
            return 0;
        };
        let _turn = self.backing.growing();
        // Queries come before the search, so that it sees all completed memory.
        self.query_all(&mut self.slow_state());
        if self.central.lock(thread::number()).has_block(size) {
            return 0;
        }
        let bytes = u64::from(size) * UNIT;
        let free = self.free_bytes();
        // Each search for memory to move queries all streams.
        if free < bytes / 2 {
            return bytes - free;
        }
        // Skipped if the capture mode cannot be relaxed, because the calls could invalidate a capture.
        let prepared = with_relaxed_capture_mode(&context, || Ok(self.prepare_in(bytes, &context)));
        prepared.unwrap_or(0)
    }

    /// Gives back memory beyond the release threshold on the arena's own thread, whose calls must not invalidate a
    /// capture.
    pub(super) fn give_back_apart(&self) {
        let Some(device) = self.device else {
            return self.give_back_beyond_threshold();
        };
        let trimmed = recording::with_relaxed_capture_mode(device.driver().table(), || {
            self.give_back_beyond_threshold();
            Ok(())
        });
        // If the mode cannot be changed, nothing is given back now.
        drop(trimmed);
    }

    /// The caller holds the turn to grow. Returns how many bytes are missing.
    fn prepare_in(&self, bytes: u64, context: &Context) -> u64 {
        let room = Self::granules(bytes) * GRANULE;
        let (frontier, tail) = self.frontier_and_tail(room, NO_CACHE);
        let Some(address) = frontier.or_else(|| self.backing.reserve(room)) else {
            return bytes;
        };
        let rest = bytes.saturating_sub(tail);
        if self.move_back(bytes, rest, NO_CACHE, context) {
            count(&self.slow_path.counters.prepared);
            return 0;
        }
        let place = Place {
            address,
            usable_from: address - tail,
        };
        let (chunks, _) = self.take_movable(place, rest);
        let sum: u64 = chunks.iter().map(|chunk| chunk.bytes).sum();
        let growth = Self::granules(rest.saturating_sub(sum)) * GRANULE;
        let may_grow = growth == 0 || sum >= rest / 2 && !self.is_beyond_slack(0, growth);
        if !may_grow {
            chunks.into_iter().for_each(|chunk| self.put_back(chunk));
            return rest - sum;
        }
        let moved = self.move_chunks(chunks, place, context);
        let growth = Self::granules(rest.saturating_sub(moved)) * GRANULE;
        if growth > 0 {
            let Some(grown) = self.backing.grow_ahead(address + moved, growth, context) else {
                return growth;
            };
            self.add_to_central(grown.address / UNIT, grown.bytes / UNIT, LastUse::FREE);
            count(&self.slow_path.counters.grown);
            let reserved = self.backing.reserved().current();
            self.caches.update_limits(reserved);
        }
        count(&self.slow_path.counters.prepared);
        0
    }
}
