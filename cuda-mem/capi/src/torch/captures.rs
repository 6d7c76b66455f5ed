//! Memory for the graphs that PyTorch captures.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use cuda_mem::arena::ExternalCapturePool;
use cuda_mem::sys::CUstream;
use cuda_mem::{Error, Stream};

use super::filter::Filter;
use super::memory::Memory;
use crate::stream::with_stream;

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
    /// Blocks that other streams used as well, and the streams that they belong to. They are free once the host has
    /// waited for the device.
    waiting: Vec<(u64, usize)>,
}

/// A capture under way.
struct Capture {
    key: Key,
    filter: Filter,
}

#[derive(Default)]
struct State {
    pools: HashMap<Key, Pool>,
    captures: Vec<Capture>,
    /// The pool of each block.
    blocks: HashMap<u64, Key>,
}

static STATE: LazyLock<Mutex<State>> = LazyLock::new(Mutex::default);

/// Captures under way and pools, to be read without the lock.
static CAPTURES: AtomicUsize = AtomicUsize::new(0);
static POOLS: AtomicUsize = AtomicUsize::new(0);

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn note_counts(&self) {
        CAPTURES.store(self.captures.len(), Ordering::Relaxed);
        POOLS.store(self.pools.len(), Ordering::Relaxed);
    }
}

/// Calls `wait`, unless PyTorch captures a stream, which a wait could end. None begins meanwhile.
pub(super) fn unless_capturing<R>(wait: impl FnOnce() -> R) -> Option<R> {
    let state = state();
    state.captures.is_empty().then(wait)
}

pub(super) fn begin(memory: &Memory, id: PoolId, filter: Filter) -> Result<(), Error> {
    let key = (memory.number, id);
    let is_known = state().pools.contains_key(&key);
    let made = match is_known {
        true => None,
        false => Some(memory.graph_arena().external_capture_pool()?),
    };
    let mut state = state();
    let may_wait = state.captures.is_empty();
    if let Some(made) = made {
        // If another thread was faster, this one has no memory yet.
        state.pools.entry(key).or_insert_with(|| Pool {
            memory: Arc::new(made),
            uses: 0,
            waiting: Vec::new(),
        });
    }
    if let Some(pool) = state.pools.get_mut(&key) {
        pool.uses += 1;
        if may_wait {
            free_waiting(memory, pool)?;
        }
    }
    state.captures.push(Capture { key, filter });
    state.note_counts();
    Ok(())
}

/// Frees blocks that other streams used, after waiting for those.
fn free_waiting(memory: &Memory, pool: &mut Pool) -> Result<(), Error> {
    if pool.waiting.is_empty() {
        return Ok(());
    }
    memory.context().synchronize()?;
    for (address, stream) in pool.waiting.drain(..) {
        free(
            memory,
            &pool.memory,
            address,
            std::ptr::with_exposed_provenance_mut(stream),
        )?;
    }
    Ok(())
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

pub(super) fn end(device: c_int, id: PoolId) {
    let mut state = state();
    let ended = state
        .captures
        .extract_if(.., |capture| capture.key == (device, id));
    let ended: Vec<Capture> = ended.collect();
    state.note_counts();
    drop(state);
    drop(ended);
}

/// `None` if the stream belongs to no capture.
pub(super) fn allocate(
    memory: &Memory,
    bytes: usize,
    stream: &Stream,
) -> Option<Result<u64, Error>> {
    if CAPTURES.load(Ordering::Relaxed) == 0 {
        return None;
    }
    allocate_if_captured(memory, bytes, stream)
}

#[cold]
fn allocate_if_captured(
    memory: &Memory,
    bytes: usize,
    stream: &Stream,
) -> Option<Result<u64, Error>> {
    let raw = stream.as_raw();
    let (key, pool) = {
        let state = state();
        let mut captures = state.captures.iter();
        let takes =
            |capture: &&Capture| capture.key.0 == memory.number && capture.filter.takes(raw);
        let key = captures.find(takes)?.key;
        (key, Arc::clone(&state.pools.get(&key)?.memory))
    };
    Some(pool.allocate(bytes, stream).inspect(|address| {
        state().blocks.insert(*address, key);
    }))
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
    let mut state = state();
    let Some(key) = state.blocks.remove(&address) else {
        return Ok(false);
    };
    let Some(pool) = state.pools.get_mut(&key) else {
        return Ok(false);
    };
    if others_used_it {
        pool.waiting.push((address, stream.expose_provenance()));
    } else {
        free(memory, &pool.memory, address, stream)?;
    }
    let is_unused = pool.uses == 0;
    drop(state);
    if is_unused {
        give_back(memory)?;
    }
    Ok(true)
}

pub(super) fn release(memory: &Memory, id: PoolId) -> Result<(), Error> {
    if let Some(pool) = state().pools.get_mut(&(memory.number, id)) {
        pool.uses = pool.uses.saturating_sub(1);
    }
    give_back(memory)
}

/// Gives the memory of pools without graphs and blocks back to the arena, unless a stream is being captured.
pub(super) fn give_back(memory: &Memory) -> Result<(), Error> {
    // A graph may still run, on whichever stream; nobody begins a capture while the lock is held.
    let mut state = state();
    let may_go = |pool: &Pool| {
        let waiting = !pool.waiting.is_empty();
        pool.uses == 0 && (waiting || pool.memory.live_bytes() == 0)
    };
    let mut pools = state.pools.iter();
    if !state.captures.is_empty()
        || !pools.any(|(key, pool)| key.0 == memory.number && may_go(pool))
    {
        return Ok(());
    }
    memory.context().synchronize()?;
    for (key, pool) in &mut state.pools {
        if key.0 == memory.number && pool.uses == 0 {
            free_waiting(memory, pool)?;
        }
    }
    let gone = state.pools.extract_if(|key, pool| {
        key.0 == memory.number && pool.uses == 0 && pool.memory.live_bytes() == 0
    });
    let gone: Vec<Pool> = gone.map(|(_, pool)| pool).collect();
    state.note_counts();
    drop(state);
    for pool in gone {
        if let Ok(memory) = Arc::try_unwrap(pool.memory) {
            // SAFETY: its graphs are gone, and the device was waited for.
            unsafe { memory.release() };
        }
    }
    Ok(())
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
