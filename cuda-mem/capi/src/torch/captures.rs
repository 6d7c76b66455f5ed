//! Memory for the graphs that PyTorch captures.
//!
//! Two locks: `STATE` for the tables, which is held for moments, also while PyTorch is asked whether a stream is captured,
//! and never while anything waits; and `GATE`, held during waits for a device, so that no capture begins meanwhile. Allocations and
//! frees never take the gate.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cuda_mem::arena::ExternalCapturePool;
use cuda_mem::sys::CUstream;
use cuda_mem::{Error, Stream};

use super::filter::Filter;
use super::memory::Memory;
use super::queries;
use crate::status::invalid;
use crate::stream::{is_default, with_stream};

/// PyTorch's name of a pool for graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct PoolId {
    /// See `second`.
    pub first: u64,
    /// One of the two is 0.
    pub second: u64,
}

type Key = (c_int, PoolId);

struct Pool {
    memory: Arc<ExternalCapturePool>,
    /// Graphs, and captures under way.
    uses: usize,
    /// Requests under way.
    requests: usize,
    /// Blocks that other streams used as well, and the streams that they belong to. They are free once the host has
    /// waited for the device.
    waiting: Vec<Waiting>,
}

#[derive(Clone, Copy)]
struct Waiting {
    address: u64,
    stream: usize,
}

/// A capture under way.
struct Capture {
    key: Key,
    /// Without one, every stream of the device counts as captured: memory of the arena in a graph would be reused.
    filter: Option<Filter>,
    /// The first stream that the filter took and the driver said is captured; 0 until then.
    stream: usize,
}

impl Capture {
    /// Whether the driver captures its stream; `None` where that is not known.
    fn goes_on(&self) -> Option<bool> {
        if self.stream == 0 {
            return None;
        }
        let stream = std::ptr::with_exposed_provenance_mut(self.stream);
        // SAFETY: no default stream, and PyTorch's own live as long as the process. One of torch.cuda.ExternalStream is its
        // creator's, who has to keep it until PyTorch has reported the end. After a capture that failed it may be destroyed
        // before anybody asks: drivers answer that with an error, and the capture counts as under way until its pool is
        // captured again; or they answer for another stream that got the handle.
        unsafe { queries::is_captured(stream) }
    }

    /// Whether the driver has ended it. PyTorch reports the end right afterwards, or never if ending failed: then the filter
    /// refers to a graph that may be gone.
    fn is_over(&self) -> bool {
        self.goes_on() == Some(false)
    }

    /// Whether a stream is of the capture. Asks PyTorch, which may throw an exception.
    fn takes(&mut self, stream: CUstream) -> bool {
        let Some(filter) = &self.filter else {
            return true;
        };
        if !filter.takes(stream) {
            return false;
        }
        if self.stream == 0 && !is_default(stream) {
            // SAFETY: no default stream, and PyTorch allocates on it, so it is live.
            let is_captured = unsafe { queries::is_captured(stream) };
            if is_captured == Some(true) {
                self.stream = stream.expose_provenance();
            }
        }
        true
    }
}

/// How long PyTorch may take from the driver's end of a capture to its report here: some microseconds, unless the thread has to
/// wait for a processor, or the process is stopped.
static END_IS_REPORTED_IN: LazyLock<Duration> = LazyLock::new(|| {
    let seconds = std::env::var("CUDA_MEM_TEST_END_IS_REPORTED_IN").ok();
    let seconds = seconds.and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(60))
});

/// A capture that the driver has ended, and PyTorch has not reported. Until it is clear that there is no graph, the pool counts
/// it.
struct UnreportedEnd {
    key: Key,
    since: Instant,
}

#[derive(Default)]
struct State {
    pools: HashMap<Key, Pool>,
    captures: Vec<Capture>,
    /// The oldest first.
    unreported: Vec<UnreportedEnd>,
    /// The pool of each block.
    blocks: HashMap<u64, Key>,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);
static GATE: Mutex<()> = Mutex::new(());

/// Captures under way and pools, to be read without the lock.
static CAPTURES: AtomicUsize = AtomicUsize::new(0);
static POOLS: AtomicUsize = AtomicUsize::new(0);

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gate() -> MutexGuard<'static, ()> {
    GATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Removes the captures that are over. Their filters are to be dropped without the lock.
    fn remove_over(&mut self) -> Vec<Capture> {
        let over = self.captures.extract_if(.., |capture| capture.is_over());
        let over: Vec<Capture> = over.collect();
        let since = Instant::now();
        let unreported = over.iter().map(|capture| UnreportedEnd {
            key: capture.key,
            since,
        });
        self.unreported.extend(unreported);
        self.note_counts();
        over
    }

    /// Takes captures that failed from the counts of their pools.
    fn discount_failed(&mut self) {
        let failed = self
            .unreported
            .extract_if(.., |end| end.since.elapsed() >= *END_IS_REPORTED_IN);
        let failed: Vec<UnreportedEnd> = failed.collect();
        for end in failed {
            self.discount(end.key);
        }
    }

    /// One use of a pool less.
    fn discount(&mut self, key: Key) {
        if let Some(pool) = self.pools.get_mut(&key) {
            pool.uses = pool.uses.saturating_sub(1);
        }
    }

    fn note_counts(&self) {
        CAPTURES.store(self.captures.len(), Ordering::Relaxed);
        POOLS.store(self.pools.len(), Ordering::Relaxed);
    }
}

/// The capture is noted whatever else fails: requests of a capture without a pool are refused.
pub(super) fn begin(
    device: c_int,
    id: PoolId,
    filter: Option<Filter>,
    memory: Result<&Memory, Error>,
) -> Result<(), Error> {
    let key = (device, id);
    let has_no_filter = filter.is_none();
    let stale: Vec<Capture> = {
        let _gate = gate();
        let mut state = state();
        let mut stale = state.remove_over();
        // PyTorch begins a second time while another thread still has to report an end, or if the first capture failed.
        let failed = |capture: &mut Capture| capture.key == key && capture.goes_on() != Some(true);
        let again: Vec<Capture> = state.captures.extract_if(.., failed).collect();
        for _ in &again {
            state.discount(key);
        }
        stale.extend(again);
        state.captures.push(Capture {
            key,
            filter,
            stream: 0,
        });
        state.note_counts();
        stale
    };
    drop(stale);
    let memory = memory?;
    let is_known = state().pools.contains_key(&key);
    let made = match is_known {
        true => None,
        false => Some(memory.graph_arena().external_capture_pool()?),
    };
    let mut state = state();
    if let Some(made) = made {
        // If another thread was faster, this one has no memory yet.
        state.pools.entry(key).or_insert_with(|| Pool {
            memory: Arc::new(made),
            uses: 0,
            requests: 0,
            waiting: Vec::new(),
        });
    }
    if let Some(pool) = state.pools.get_mut(&key) {
        pool.uses += 1;
    }
    state.note_counts();
    drop(state);
    if has_no_filter {
        let text =
            "a capture without a filter for streams; all streams of the device count as captured";
        return Err(invalid(text));
    }
    Ok(())
}

/// A capture has ended, and there is a graph, which the pool has counted all along.
pub(super) fn end(device: c_int, id: PoolId) -> Result<(), Error> {
    let key = (device, id);
    // Dropped after the lock.
    let (_over, _ended);
    let mut state = state();
    _over = state.remove_over();
    let captures = &state.captures;
    let running = captures.iter().rposition(|capture| capture.key == key);
    let unreported = state.unreported.iter().position(|end| end.key == key);
    match (running, unreported) {
        // The driver ends a capture before PyTorch reports that, so one that goes on is not meant. If the driver does not say
        // whether it does, the unreported one counts as failed: the filter of one that has ended must not be asked any more.
        (Some(place), None) => _ended = state.captures.remove(place),
        (Some(place), Some(_)) if state.captures[place].goes_on() != Some(true) => {
            _ended = state.captures.remove(place);
        }
        (_, Some(place)) => {
            state.unreported.remove(place);
        }
        (None, None) => {
            // If the pool is still there, the graph will be released from it.
            if let Some(pool) = state.pools.get_mut(&key) {
                pool.uses += 1;
            }
            return Err(invalid(
                "the end of a capture that is not under way, or that the driver ended long ago; other work may have been given \
                 the memory of its graph, so do not launch the graph",
            ));
        }
    }
    state.note_counts();
    Ok(())
}

/// Whether PyTorch captures a stream.
pub(super) fn any() -> bool {
    CAPTURES.load(Ordering::Relaxed) > 0
}

/// The capture that a stream belongs to. Asks PyTorch, which may throw an exception.
pub(super) fn of(device: c_int, stream: CUstream) -> Option<PoolId> {
    if !any() {
        return None;
    }
    // Dropped after the lock.
    let _over;
    let mut state = state();
    // Their filters must not be asked.
    _over = state.remove_over();
    let captures = state.captures.iter_mut();
    let mut of_device = captures.filter(|capture| capture.key.0 == device);
    of_device.find_map(|capture| capture.takes(stream).then_some(capture.key.1))
}

/// Memory for a stream that is captured.
#[cold]
pub(super) fn allocate(
    memory: &Memory,
    id: PoolId,
    bytes: usize,
    stream: &Stream,
) -> Result<u64, Error> {
    let key = (memory.number, id);
    let pool = {
        let mut state = state();
        let pool = state.pools.get_mut(&key).ok_or_else(|| {
            invalid("the capture has no pool for its memory, because creating one failed")
        })?;
        pool.requests += 1;
        Arc::clone(&pool.memory)
    };
    // Not under the lock: it may wait for memory.
    let allocated = pool.allocate(bytes, stream);
    drop(pool);
    let mut state = state();
    if let Ok(address) = allocated {
        state.blocks.insert(address, key);
    }
    if let Some(pool) = state.pools.get_mut(&key) {
        pool.requests -= 1;
    }
    allocated
}

fn free(
    memory: &Memory,
    pool: &ExternalCapturePool,
    address: u64,
    stream: CUstream,
) -> Result<(), Error> {
    // SAFETY: PyTorch frees a block once no later work of the capture uses it; other streams were waited for.
    let free = |stream: &Stream| unsafe { pool.deallocate(address, stream) };
    // SAFETY: the stream is PyTorch's, or it would have no block.
    unsafe { with_stream(memory.number, stream, free) }
}

/// Whether the block was a pool's.
pub(super) fn deallocate(
    memory: &Memory,
    address: u64,
    stream: CUstream,
    others_used_it: bool,
) -> Result<bool, Error> {
    if POOLS.load(Ordering::Relaxed) == 0 {
        return Ok(false);
    }
    let (key, pool) = {
        let mut state = state();
        let Some(key) = state.blocks.remove(&address) else {
            return Ok(false);
        };
        let pool = state.pools.get_mut(&key);
        let pool = pool.ok_or_else(|| invalid(format!("the pool of {address:#x} is gone")))?;
        if others_used_it {
            let stream = stream.expose_provenance();
            pool.waiting.push(Waiting { address, stream });
            return Ok(true);
        }
        (key, Arc::clone(&pool.memory))
    };
    free(memory, &pool, address, stream).inspect_err(|_| {
        state().blocks.insert(address, key);
    })?;
    Ok(true)
}

/// One graph less. As PyTorch does, the memory is given back when memory is short or the cache is emptied.
pub(super) fn release(device: c_int, id: PoolId) {
    if let Some(pool) = state().pools.get_mut(&(device, id)) {
        pool.uses = pool.uses.saturating_sub(1);
    }
}

/// Waits for the device, and frees what could not be freed before: blocks that several streams used, and the memory of
/// pools whose graphs and blocks are gone. Returns whether it waited: not while PyTorch captures a stream, which a wait
/// could end.
pub(super) fn collect(memory: &Memory) -> Result<bool, Error> {
    // None begins meanwhile.
    let _gate = gate();
    // Dropped after the lock.
    let _over;
    // What comes later is not waited for.
    let (waiting, unused) = {
        let mut state = state();
        _over = state.remove_over();
        if !state.captures.is_empty() {
            return Ok(false);
        }
        state.discount_failed();
        let State { pools, blocks, .. } = &mut *state;
        let pools = pools.iter_mut().filter(|(key, _)| key.0 == memory.number);
        let mut waiting = Vec::new();
        let mut unused = Vec::new();
        for (key, pool) in pools {
            let of_pool = std::mem::take(&mut pool.waiting);
            waiting.extend(of_pool.into_iter().map(|block| (*key, block)));
            // Work with a block that is freed during the wait may come after it.
            if pool.uses == 0 && !blocks.values().any(|of| of == key) {
                unused.push(*key);
            }
        }
        (waiting, unused)
    };
    let waited = memory.context().synchronize();
    let is_done = waited.is_ok();
    for (key, block) in waiting {
        let mut state = state();
        let Some(pool) = state.pools.get_mut(&key) else {
            continue;
        };
        if !is_done {
            pool.waiting.push(block);
            continue;
        }
        let pool = Arc::clone(&pool.memory);
        drop(state);
        let stream = std::ptr::with_exposed_provenance_mut(block.stream);
        if let Err(error) = free(memory, &pool, block.address, stream) {
            // Others are freed all the same.
            super::tell("free", &error);
            self::state().blocks.insert(block.address, key);
        }
    }
    if is_done {
        give_back(&unused);
    }
    waited.map(|()| true)
}

/// Gives the memory of pools back to the arena that have had no graphs since before the device was waited for, if they
/// have no blocks.
fn give_back(unused: &[Key]) {
    let gone: Vec<Pool> = {
        let mut state = state();
        let gone = state.pools.extract_if(|key, pool| {
            let is_unused = pool.uses == 0 && pool.requests == 0 && pool.waiting.is_empty();
            // Others copy the handle under the lock only.
            let is_ours = Arc::strong_count(&pool.memory) == 1;
            is_unused && is_ours && unused.contains(key) && pool.memory.live_bytes() == 0
        });
        let gone = gone.map(|(_, pool)| pool).collect();
        state.note_counts();
        gone
    };
    for pool in gone {
        if let Ok(memory) = Arc::try_unwrap(pool.memory) {
            // SAFETY: its graphs are gone, and the device was waited for.
            unsafe { memory.release() };
        }
    }
}

/// Bytes that pools for graphs hold, and bytes of blocks in them.
pub(super) fn bytes(memory: &Memory) -> (u64, u64) {
    let state = state();
    let pools = state.pools.iter().filter(|(key, _)| key.0 == memory.number);
    pools.fold((0, 0), |(held, live), (_, pool)| {
        (
            held + pool.memory.held_bytes(),
            live + pool.memory.live_bytes(),
        )
    })
}
