//! The state of the slow path: which stream has which cache, what becomes of a cache when its stream ends, and the
//! progress of all streams.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::ThreadId;

use cuda_driver_sys::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};

use super::page_map::CacheId;
use super::parked::{ParkedFree, ParkedUnits};
use super::recorded_events::DriverCalls;
use super::stream_progress::StreamProgress;
use super::{Inner, UnknownBlock, thread};
use crate::base::error::{Error, Result};
use crate::base::report::DeferHook;
use crate::driver::device::Device;
use crate::memory::resource::{CAPTURED, MemoryResource as _};
use crate::stream::deferred::ResourceCall;
use crate::stream::epoch;
use crate::stream::{DropObserver, Reach, Stream};

/// What a cache belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// A stream, by the driver and its id. Several handles may refer to one stream.
    Id(usize, u64),
    /// A stream without an id from the driver, by the number of its handle.
    Handle(u64),
    /// The legacy default stream of a context.
    Legacy(usize),
    /// The per-thread default stream of a thread in a context.
    PerThread(usize, ThreadId),
}

impl Key {
    fn of(stream: &Stream) -> Self {
        let context = stream.context();
        let of_context = context.as_raw().addr();
        if stream.as_raw() == CU_STREAM_LEGACY {
            return Self::Legacy(of_context);
        }
        if stream.as_raw() == CU_STREAM_PER_THREAD {
            return Self::PerThread(of_context, std::thread::current().id());
        }
        let driver = std::ptr::from_ref(context.driver().table()).addr();
        match stream.as_ref().id() {
            Some(id) => Self::Id(driver, id),
            None => Self::Handle(stream.number()),
        }
    }

    /// Whether the stream may appear again after its last handle was dropped.
    fn may_come_again(self) -> bool {
        !matches!(self, Self::Handle(_))
    }
}

/// What a cache is requested for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// The stream may be made to wait for memory.
    Allocation,
    Free,
}

/// Used by one thread at a time.
#[derive(Debug, Default)]
pub(super) struct SlowState {
    by_stream: HashMap<Key, CacheId>,
    /// By the number of each stream handle that was seen.
    by_handle: HashMap<u64, CacheId>,
    /// By cache.
    pub(super) streams: Vec<StreamProgress>,
    /// Caches whose streams have no handles left.
    abandoned: Vec<CacheId>,
    /// Blocks that several streams used.
    pub(super) parked: Vec<ParkedFree>,
}

impl SlowState {
    /// The cache that the stream had before, if no other stream has taken it since.
    fn known(&mut self, key: Key) -> Option<CacheId> {
        let id = *self.by_stream.get(&key)?;
        self.abandoned.retain(|abandoned| *abandoned != id);
        Some(id)
    }

    /// Caches whose streams have ended.
    pub(super) fn left_caches(&self) -> &[CacheId] {
        &self.abandoned
    }

    /// Removes the cache from the stream that had it.
    fn forget(&mut self, id: CacheId) {
        self.by_stream.retain(|_, of_stream| *of_stream != id);
    }
}

/// Separate from the rest of the arena, because streams also report their end during its teardown.
#[derive(Debug, Default)]
pub(super) struct SlowPath {
    state: Mutex<SlowState>,
    pub(super) calls: Arc<DriverCalls>,
    pub(super) counters: SlowCounters,
    pub(super) parked: ParkedUnits,
    /// Blocks that turned out to be freed twice, and are not reported yet.
    unknown: Mutex<Vec<UnknownBlock>>,
}

/// Counters of the slow path.
#[derive(Debug, Default)]
pub(super) struct SlowCounters {
    pub(super) refills: AtomicU64,
    pub(super) taken_over: AtomicU64,
    pub(super) grown: AtomicU64,
    pub(super) released: AtomicU64,
    pub(super) moved: AtomicU64,
    pub(super) beyond_slack: AtomicU64,
    pub(super) stranded: AtomicU64,
    pub(super) prepared: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl SlowPath {
    pub(super) fn lock(&self) -> SlowStateGuard<'_> {
        let waits = DeferHook::enter();
        let call = ResourceCall::enter();
        SlowStateGuard {
            state: self.state.lock().unwrap_or_else(PoisonError::into_inner),
            _call: call,
            _waits: waits,
        }
    }

    /// To be held briefly, because the state may be locked meanwhile.
    pub(super) fn unknown(&self) -> MutexGuard<'_, Vec<UnknownBlock>> {
        self.unknown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The slow-path state, locked. Dropping events may drop the last handle of a context. Releases that wait for its end
/// may need this lock, and are deferred until it is unlocked.
pub(super) struct SlowStateGuard<'a> {
    state: MutexGuard<'a, SlowState>,
    _call: ResourceCall,
    /// Last, so that the hook may release what it likes.
    _waits: DeferHook,
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
        if self.device == Some(device) {
            return Ok(());
        }
        // One question to the driver at most. The properties take one for each device.
        if let Some(pool) = self.pool() {
            return pool.require_reach(device);
        }
        if self.memory_properties().reaches(device) {
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
    pub(super) fn cache_of(&self, stream: &Stream, wanted: For) -> Result<CacheId> {
        stream.as_ref().require_reach(self)?;
        if !stream.context().is_primary() {
            // An arena keeps events, and with them their contexts, for longer than the owner of a handed-in context can
            // know.
            return Err(Error::not_supported(format!(
                "{stream} is of a context that was handed in; an arena takes streams of primary contexts"
            )));
        }
        stream.as_ref().refuse_captured(CAPTURED)?;
        let mut state = self.slow_state();
        let known = state.by_handle.get(&stream.number()).copied();
        let id = match known {
            Some(id) => id,
            None => self.attach(&mut state, stream, wanted),
        };
        drop(state);
        if known.is_none() && stream.as_raw() != CU_STREAM_LEGACY {
            let slow_path: Weak<SlowPath> = Arc::downgrade(&self.slow_path);
            stream.follow(slow_path);
        }
        // A per-thread default stream is checked at each use, so its cache is not noted.
        if stream.as_raw() != CU_STREAM_PER_THREAD {
            let note = u64::from(self.note_mark()) << 32 | u64::from(id);
            // Release: a thread that reads the note is to find the cache in the table.
            stream.slot(self.number).store(note, Ordering::Release);
        }
        Ok(id)
    }

    /// A stream of the primary context that is past all work in these streams. Memory may be moved to a stream of a
    /// context that was handed in, which has no cache, and is then freed on such a stream.
    pub(super) fn stream_past(&self, stream: &Stream, others: &[&Stream]) -> Result<Stream> {
        stream.as_ref().require_reach(self)?;
        let before = others.iter().copied().chain([stream]);
        before
            .clone()
            .try_for_each(|stream| stream.as_ref().refuse_captured(CAPTURED))?;
        let make = || {
            let past = stream.device().primary_context()?.stream()?;
            before
                .into_iter()
                .try_for_each(|stream| past.wait_for(stream))?;
            Ok(past)
        };
        // What was to be done on that stream was not tried.
        make().map_err(Error::not_tried)
    }

    /// The cache for a handle that was not seen before.
    fn attach(&self, state: &mut SlowState, stream: &Stream, wanted: For) -> CacheId {
        let key = Key::of(stream);
        let known = state.known(key);
        let id = known.unwrap_or_else(|| {
            let adopted = self.adopt(state, stream, wanted);
            adopted.unwrap_or_else(|| self.new_cache(state))
        });
        state.by_stream.insert(key, id);
        let progress = &mut state.streams[id as usize];
        progress.attach(stream, known.is_some());
        self.note_done(progress, id);
        // The legacy stream has any number of handles, and does not end.
        if !matches!(key, Key::Legacy(_)) {
            state.by_handle.insert(stream.number(), id);
        }
        id
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
        self.caches.update_limits(self.backing.reserved().current());
        id
    }

    /// Stops recording last users, if only one stream uses the arena. The state is locked, so no second stream comes
    /// meanwhile: its memory would not be told from that of the first.
    pub(super) fn unshare_if_alone(&self, _state: &SlowState) {
        if self.caches.count() <= 1 && self.initial.load(Ordering::Relaxed) == 0 {
            self.central.lock(thread::number()).unshare();
        }
    }

    /// An abandoned cache whose stream's work is done, or precedes everything that `stream` gets from now on.
    fn adopt(&self, state: &mut SlowState, stream: &Stream, wanted: For) -> Option<CacheId> {
        let may_wait = wanted == For::Allocation && self.may_wait();
        for place in 0..state.abandoned.len() {
            let id = state.abandoned[place];
            let progress = &mut state.streams[id as usize];
            let mut ready = progress.poll() == u64::MAX;
            if !ready && may_wait {
                ready = progress.make_wait_for_end(stream).unwrap_or(false);
            }
            if ready {
                state.abandoned.swap_remove(place);
                state.forget(id);
                return Some(id);
            }
        }
        None
    }
}

impl DropObserver for SlowPath {
    fn stream_ends(&self, number: u64) {
        let mut state = self.lock();
        let Some(id) = state.by_handle.remove(&number) else {
            return;
        };
        if state.streams[id as usize].detach(number) {
            state
                .by_stream
                .retain(|key, of_stream| *of_stream != id || key.may_come_again());
            state.abandoned.push(id);
        }
    }
}
