//! The teardown of an arena.

use std::mem::forget;
use std::sync::Arc;

use super::backing::Backing;
use super::stream_progress::StreamProgress;
use super::{Central, Inner};
use crate::base::error::{Error, ErrorKind};
use crate::base::report;
use crate::ledger;
use crate::stream::deferred::{self, Deferred, Outcome};
use crate::stream::epoch;

/// The memory of an arena whose last handle was dropped, and the progress of its streams, which may still use it.
#[derive(Debug)]
struct EndedArena {
    backing: Arc<Backing>,
    streams: Vec<StreamProgress>,
    /// When the arena ended.
    epoch: u64,
    /// Whether all its streams were found lost.
    has_failed: bool,
}

impl EndedArena {
    /// Its streams are not known to be done. If all of them are lost, they never will be.
    fn not_yet(&mut self) -> Outcome {
        let losses = self.streams.iter().map(StreamProgress::loss);
        let Some(loss) = losses.reduce(|all, loss| all.and(loss)).flatten() else {
            return Outcome::NotYet;
        };
        let error = loss.error();
        let has_failed = std::mem::replace(&mut self.has_failed, true);
        if !has_failed && error.kind() != ErrorKind::Deinitialized {
            return Outcome::Again(error);
        }
        // The memory stays, and what it came from, which might free it.
        forget(Arc::clone(&self.backing));
        Outcome::GivenUp(error)
    }
}

impl Deferred for EndedArena {
    fn name(&self) -> &'static str {
        "arena"
    }

    fn waits_for_device(&self) -> bool {
        self.backing.waits_to_free()
    }

    fn try_release(&mut self) -> Outcome {
        // A stream whose work is done needs no context any more.
        let ended = self.epoch;
        self.streams.retain_mut(|progress| !progress.is_over(ended));
        if !self.streams.is_empty() {
            return self.not_yet();
        }
        let mut failed = None;
        for chunk in self.backing.chunks_in(0, u64::MAX) {
            // SAFETY: the arena has no handles and no live blocks, and all its streams are done with it.
            match unsafe { self.backing.release(chunk) } {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Capturing => return Outcome::NotYet,
                Err(error) => failed = Some(error),
            }
        }
        match self.backing.give_back_refused() {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Capturing && failed.is_none() => {
                return Outcome::NotYet;
            }
            Err(error) => failed = failed.or(Some(error)),
        }
        match failed {
            Some(error) => Outcome::GivenUp(error),
            None => Outcome::Done,
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // In a fork it belongs to the parent. What other threads may have been changing cannot be dropped: to free what
        // they were about to free would end the child.
        if report::is_forked() {
            if let Some(background) = self.background.get() {
                background.forget();
            }
            forget(std::mem::take(&mut self.caches));
            forget(std::mem::replace(&mut self.central, Central::new()));
            forget(std::mem::take(&mut self.pins));
            forget(Arc::clone(&self.slow_path));
            forget(Arc::clone(&self.backing));
            return;
        }
        if let Some(background) = self.background.get() {
            background.stop();
        }
        ledger::remove(&self.item());
        // Streams that end meanwhile wait for this lock, and find an empty state. They then do not record their end.
        let mut guard = self.slow_path.lock();
        let ended = epoch::now();
        let streams = guard.streams.iter_mut();
        streams.for_each(|progress| progress.record_before(ended));
        let state = std::mem::take(&mut *guard);
        drop(guard);
        // Remote frees count only once their cache knows the blocks.
        self.receive_all_remote_frees();
        self.report_unknown_blocks();
        let stats = self.stats();
        if stats.live_blocks > 0 {
            // Blocks are in use though no handle is left. Their memory stays.
            let left = Error::arena_blocks(stats.live_blocks, stats.live);
            report::release("arena", || Err(left));
            return;
        }
        let ended = EndedArena {
            backing: Arc::clone(&self.backing),
            streams: state.streams,
            epoch: ended,
            has_failed: false,
        };
        report::release("arena", || deferred::release_or_defer(Box::new(ended)));
    }
}
