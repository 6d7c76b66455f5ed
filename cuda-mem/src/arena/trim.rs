//! Trimming: memory goes back while the arena lives.

use std::sync::atomic::Ordering;

use super::backing::Chunk;
use super::last_use::LastUse;
use super::page_map::CacheId;
use super::slow_path::{SlowState, count};
use super::stream_progress::StreamProgress;
use super::{GRANULE, Inner, UNIT, thread};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::report::{self, DeferHook};
use crate::base::telemetry::{event, span};
use crate::driver::device::Device;
use crate::memory::reclaim::Reclaim;
use crate::stream::after_wait::AfterWait;
use crate::stream::deferred::{After, ResourceCall};
use crate::stream::epoch;

/// Where to search for memory to give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    /// Everything.
    Thorough,
    /// Everything but caches that had nothing last time, so that waits cost their threads little.
    Quick,
}

/// Rounds after which a thread stops giving back memory for the waits of others: its own wait is over.
const ROUNDS: u32 = 16;

impl AfterWait for Inner {
    fn after_wait(&self, after: After) {
        let Some(background) = self.background.get() else {
            if after == After::Call && self.backing.waits_to_free() {
                return;
            }
            return self.give_back_beyond_threshold();
        };
        if self.is_beyond_threshold() {
            background.trim();
        }
    }
}

impl Inner {
    /// Whether anything may go back after a wait.
    fn is_beyond_threshold(&self) -> bool {
        let keep = self.threshold.load(Ordering::Relaxed);
        let held = self.backing.reserved().current();
        // Less than a granule of free memory cannot go back.
        held > keep && self.free_bytes() >= GRANULE
    }

    /// Gives back completed free memory beyond the release threshold.
    pub(super) fn give_back_beyond_threshold(&self) {
        self.late_waits.count();
        for _ in 0..ROUNDS {
            if !self.is_beyond_threshold() {
                return;
            }
            let keep = self.threshold.load(Ordering::Relaxed);
            // Another thread is growing, and needs the memory; or it is giving memory back, and checks for late waits
            // at the end.
            let Some(turn) = self.backing.try_growing() else {
                return;
            };
            self.late_waits.serve();
            let trimmed = self.trim(keep, Search::Quick);
            drop(turn);
            // The report hook may call into the arena, so the turn has to end first.
            report::release("arena", || trimmed);
            self.report_unknown_blocks();
            if !self.late_waits.is_late() {
                return;
            }
        }
    }
}

impl Reclaim for Inner {
    fn reclaim(&self, device: Device) -> bool {
        let has_refused = self.backing.has_refused();
        let is_empty = self.backing.reserved().current() == 0 && !has_refused;
        if self.device != Some(device) || is_empty {
            return false;
        }
        // A resource of the program may want a lock that this thread holds, in its call of another resource.
        if self.backing.may_call_program() && ResourceCall::is_running() {
            return false;
        }
        // What the device is busy with may need a thread that wants one of the locks.
        if self.backing.waits_to_free() && DeferHook::is_any() {
            return false;
        }
        // Another thread is growing or trimming, or this arena itself is out of memory.
        let Some(turn) = self.backing.try_growing() else {
            return false;
        };
        let before = self.slow_path.counters.released.load(Ordering::Relaxed);
        // Its errors matter less than the lack of memory, and the report hook must not run under the caller's locks.
        let _ = self.trim(0, Search::Thorough);
        drop(turn);
        let released = self.slow_path.counters.released.load(Ordering::Relaxed);
        released != before || has_refused && !self.backing.has_refused()
    }
}

impl Inner {
    /// Queries every stream.
    pub(super) fn query_all(&self, state: &mut SlowState) {
        for (id, progress) in state.streams.iter_mut().enumerate() {
            let newest = self.central.lock(thread::number()).newest(id as CacheId);
            progress.query_now(newest);
            self.note_done(progress, id as CacheId);
        }
    }

    /// Gives back free and completed chunks until at most `keep` bytes are held. Does not wait, unless the upstream
    /// does.
    pub(super) fn trim_to(&self, keep: u64) -> Result<()> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        // The caller may be a resource that holds a lock.
        let _inside = ResourceCall::enter();
        let turn = self.backing.growing();
        let trimmed = self.trim(keep, Search::Thorough);
        drop(turn);
        self.report_unknown_blocks();
        trimmed
    }

    /// As [`trim_to`](Self::trim_to), for the holder of the turn to grow: another thread that finds too little memory
    /// waits, and so does not miss memory that is being given back.
    pub(super) fn trim(&self, keep: u64, search: Search) -> Result<()> {
        span!(DEBUG, "trim", arena = %self, keep);
        self.backing.observer.trims(keep);
        let chunks = self.take_chunks(keep, search);
        // With an upstream no lock is held, because it may call back.
        // What a capture holds up is no failure of this trim.
        let mut failed = match self.backing.give_back_refused() {
            Err(error) if error.kind() == ErrorKind::Capturing => Ok(()),
            given => given,
        };
        for chunk in chunks {
            // SAFETY: the chunk is not in the bookkeeping, and all work that used it is done.
            let released = unsafe { self.backing.release(chunk) };
            self.backing.reserved().has_left(chunk.bytes);
            self.pins.has_left(chunk);
            if self.backing.is_kept(&released) {
                self.add_to_central(chunk.address / UNIT, chunk.bytes / UNIT, LastUse::FREE);
            } else {
                count(&self.slow_path.counters.released);
                event!(
                    DEBUG,
                    address = chunk.address,
                    bytes = chunk.bytes,
                    "memory released"
                );
            }
            failed = failed.and(released);
        }
        failed
    }

    /// Removes from the bookkeeping the chunks that can be given back.
    fn take_chunks(&self, keep: u64, search: Search) -> Vec<Chunk> {
        let me = thread::number();
        let mut state = self.slow_state();
        let mut held = self.backing.reserved().staying();
        let mut chunks = Vec::new();
        if held <= keep {
            return chunks;
        }
        // Memory may go back only once the host knows that its use is done.
        self.central.lock(me).share(0, epoch::now());
        self.query_all(&mut state);
        let is_thorough = search == Search::Thorough;
        // Small parked blocks may become remote frees.
        self.query_parked(&mut state, true);
        let caches = self.caches.iter();
        for (id, _) in caches.filter(|(_, slot)| is_thorough || slot.has_waiting()) {
            self.reclaim_remote_frees(&mut state, id, None, true);
        }
        // Scavenged memory may have been in use until now, so all streams are queried again.
        self.scavenge(is_thorough);
        self.query_all(&mut state);
        self.take_done(&mut held, keep, &mut chunks);
        // Memory that was freed on a foreign stream keeps its last use: the next wait shows that it is done, and a new
        // epoch at each trim would put that off forever.
        let is_foreign = state
            .streams
            .first()
            .is_some_and(StreamProgress::is_foreign);
        if !is_foreign {
            self.unshare_if_alone(&state);
        }
        chunks
    }

    /// Removes free and completed chunks until at most `keep` bytes are held.
    fn take_done(&self, held: &mut u64, keep: u64, chunks: &mut Vec<Chunk>) {
        let me = thread::number();
        let mut places = self.central.lock(me).done_pages();
        // From the end, so that the rest has no gaps.
        places.sort_unstable_by_key(|place| std::cmp::Reverse(place.start));
        for place in places {
            let (from, to) = (place.start * UNIT, (place.start + place.units) * UNIT);
            for chunk in self.backing.chunks_in(from, to).into_iter().rev() {
                if *held <= keep {
                    return;
                }
                let (start, units) = (chunk.address / UNIT, chunk.bytes / UNIT);
                let taken = self.central.lock(me).give_away(start, units);
                if !taken {
                    // Another thread took part of it.
                    break;
                }
                if !self.may_leave(chunk) {
                    continue;
                }
                *held = held.saturating_sub(chunk.bytes);
                self.backing.reserved().leaves(chunk.bytes);
                chunks.push(chunk);
            }
        }
    }
}
