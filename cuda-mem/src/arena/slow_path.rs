//! The state of the slow path: which stream has which cache, what becomes of a cache when its stream ends, and how far
//! all streams are.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cuda_driver_sys::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};

use super::page_map::CacheId;
use super::stream_progress::{DriverCalls, StreamProgress};
use super::{Inner, thread};
use crate::deferred::ResourceCall;
use crate::device::Device;
use crate::epoch;
use crate::error::{Error, Result};
use crate::resource::CAPTURED;
use crate::stream::{Follower, Reach, Stream};

/// What a cache belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// A stream, by its number.
    Stream(u64),
    /// The legacy default stream of a context, of which there may be many handles.
    Legacy(usize),
}

impl Key {
    fn of(stream: &Stream) -> Self {
        if stream.as_raw() == CU_STREAM_LEGACY {
            Self::Legacy(stream.context().as_raw().addr())
        } else {
            Self::Stream(stream.number())
        }
    }
}

/// Used by one thread at a time.
#[derive(Debug, Default)]
pub(super) struct SlowState {
    by_stream: HashMap<Key, CacheId>,
    /// By cache.
    pub(super) streams: Vec<StreamProgress>,
    /// Caches whose streams have ended.
    abandoned: Vec<CacheId>,
}

/// Apart from the rest of the arena, because streams report their end also while the arena is being torn down.
#[derive(Debug, Default)]
pub(super) struct SlowPath {
    state: Mutex<SlowState>,
    pub(super) calls: Arc<DriverCalls>,
    pub(super) counters: SlowCounters,
}

/// What is counted on the slow path.
#[derive(Debug, Default)]
pub(super) struct SlowCounters {
    pub(super) refills: AtomicU64,
    pub(super) taken_over: AtomicU64,
    pub(super) grown: AtomicU64,
    pub(super) released: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl SlowPath {
    pub(super) fn lock(&self) -> SlowStateGuard<'_> {
        SlowStateGuard {
            _call: ResourceCall::enter(),
            state: self.state.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// The slow-path state, locked. Dropping events may drop the last handle of a context. Releases that wait for its end
/// may need this lock, and are deferred until it is unlocked.
pub(super) struct SlowStateGuard<'a> {
    state: MutexGuard<'a, SlowState>,
    _call: ResourceCall,
}

impl Deref for SlowStateGuard<'_> {
    type Target = SlowState;

    fn deref(&self) -> &SlowState {
        &self.state
    }
}

impl DerefMut for SlowStateGuard<'_> {
    fn deref_mut(&mut self) -> &mut SlowState {
        &mut self.state
    }
}

impl Reach for Inner {
    fn require_reach(&self, device: Device) -> Result<()> {
        if self.device.is_none_or(|own| own == device) || self.properties.reaches(device) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{device} does not reach the memory of {self}"
        )))
    }
}

impl Inner {
    /// The stream's cache. A new stream adopts an abandoned cache with all memory in it, if there is one. Streams that
    /// may not use the arena are refused here.
    pub(super) fn cache_of(&self, stream: &Stream) -> Result<CacheId> {
        stream.as_ref().require_reach(self)?;
        if !stream.context().is_primary() {
            // An arena keeps events, and with them their contexts, for longer than the owner of this one can know.
            return Err(Error::not_supported(format!(
                "{stream} is of a context that was handed in; an arena takes streams of primary contexts"
            )));
        }
        stream.as_ref().refuse_captured(CAPTURED)?;
        let key = Key::of(stream);
        let mut state = self.slow_state();
        let known = state.by_stream.get(&key).copied();
        let id = match known {
            Some(id) => id,
            None => {
                let id = self
                    .adopt(&mut state, stream)
                    .unwrap_or_else(|| self.new_cache(&mut state));
                let progress = &mut state.streams[id as usize];
                progress.attach(stream);
                self.note_done(progress, id);
                state.by_stream.insert(key, id);
                id
            }
        };
        drop(state);
        if known.is_none() && matches!(key, Key::Stream(_)) {
            let slow_path: Weak<SlowPath> = Arc::downgrade(&self.slow_path);
            stream.follow(slow_path);
        }
        // A per-thread default stream is checked at each use, so its cache is not noted.
        if stream.as_raw() != CU_STREAM_PER_THREAD {
            let note = u64::from(self.number) << 32 | u64::from(id);
            stream.slot(self.number).store(note, Ordering::Relaxed);
        }
        Ok(id)
    }

    fn new_cache(&self, state: &mut SlowState) -> CacheId {
        let id = self.caches.push(thread::number());
        state
            .streams
            .push(StreamProgress::new(&self.slow_path.calls));
        if id > 0 {
            let mut central = self.central.lock(thread::number());
            central.share(0, epoch::now());
        }
        self.caches
            .update_cached_limit(self.backing.reserved().current());
        id
    }

    /// An abandoned cache whose stream's work is done, or comes before what `stream` gets from now on.
    fn adopt(&self, state: &mut SlowState, stream: &Stream) -> Option<CacheId> {
        let may_wait = self.may_wait();
        for place in 0..state.abandoned.len() {
            let id = state.abandoned[place];
            let progress = &mut state.streams[id as usize];
            let mut ready = progress.poll() == u64::MAX;
            if !ready && may_wait {
                ready = progress.make_wait_for_end(stream).unwrap_or(false);
            }
            if ready {
                state.abandoned.swap_remove(place);
                return Some(id);
            }
        }
        None
    }
}

impl Follower for SlowPath {
    fn stream_ends(&self, number: u64) {
        let mut state = self.lock();
        let Some(id) = state.by_stream.remove(&Key::Stream(number)) else {
            return;
        };
        let progress = &mut state.streams[id as usize];
        progress.detach();
        state.abandoned.push(id);
    }
}
