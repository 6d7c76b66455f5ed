//! Memory of an arena for graphs.

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, MutexGuard};

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use super::last_use::LastUse;
use super::tlsf::{Joins, Tlsf};
use super::{Arena, GRANULE, UNIT, units};
use crate::base::error::{Bytes, Error, Result};
use crate::base::lock::Lock;
use crate::interop::graph::{AnyBuffer, Capture, GraphBuffer};
use crate::memory::buffer::{DeviceBuffer, bytes_of};
use crate::memory::resource::Resource;
use crate::stream::Stream;
use crate::stream::context::Context;

/// A pool takes an eighth of what it holds at a time, within these limits, in bytes.
const LEAST_TAKEN: u64 = GRANULE;
const MOST_TAKEN: u64 = 32 << 20;

/// Memory of an arena for graphs, from [`Arena::capture_pool`]: [`Capture::alloc_from`] allocates here. No graph node
/// allocates or frees this memory, so a launch takes nothing from the device, and the addresses stay valid as long as
/// the pool or any of its graphs lives.
///
/// Graphs of one pool share the same memory: memory freed by a capture is reused by that capture and all later ones.
/// Their launches therefore wait for each other on any streams, and data that a graph must keep across launches of
/// others needs memory of its own ([`Capture::alloc_alone_from`]). Graphs that run at the same time need a pool each.
///
/// A cloneable handle; all methods may be called from any thread.
///
/// ```
/// use cuda_mem::{Arena, Driver};
/// use cuda_mem::interop::{CaptureMode, Instantiate};
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let pool = Arena::builder(&device).build()?.capture_pool()?;
/// let (graph, result) = stream.capture(CaptureMode::default(), |capture| {
///     let mut scratch = capture.alloc_from::<u32>(&pool, 100)?;
///     scratch.as_mut_slice().fill(7)?;
///     let mut result = capture.alloc_alone_from::<u32>(&pool, 100)?;
///     result.as_mut_slice().copy_from_device(&scratch)?;
///     Ok(result.persist()) // `scratch` goes back to the pool, the result stays the graph's
/// })?;
/// let mut exec = graph.instantiate(Instantiate::default())?;
/// exec.launch(&stream)?;
/// assert_eq!(exec.left(&result)?.to_vec()?, [7; 100]);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone)]
pub struct CapturePool(Arc<Shared>);

struct Shared {
    /// Identifies the pool in graphs.
    number: u64,
    arena: Arena,
    /// Every launch of a graph of the pool is ordered after the work in this stream, and before its later work.
    stream: Stream,
    /// See [`AnyBuffer::turn`].
    turn: Arc<Lock<()>>,
    state: Lock<State>,
}

#[derive(Default)]
struct State {
    /// Memory that graphs share.
    shared: Tlsf,
    /// Memory whose blocks each belong to one graph.
    single: Tlsf,
    segments: Vec<DeviceBuffer<u8>>,
}

impl State {
    fn heap(&mut self, is_alone: bool) -> &mut Tlsf {
        if is_alone {
            &mut self.single
        } else {
            &mut self.shared
        }
    }

    fn held(&self) -> u64 {
        (self.shared.total_units() + self.single.total_units()) * UNIT
    }
}

impl Arena {
    /// A pool of memory for graphs. It takes memory of the arena as captures request it, and frees it when the last
    /// handle and the last graph are dropped.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) if the arena's memory is not device memory; otherwise any error
    /// that the driver reports.
    pub fn capture_pool(&self) -> Result<CapturePool> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Ok(CapturePool(Arc::new(Shared {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            arena: self.clone(),
            stream: self.stream_for_graphs()?,
            turn: Arc::default(),
            state: Lock::default(),
        })))
    }

    /// A new stream for a pool's own use; it is never captured.
    pub(super) fn stream_for_graphs(&self) -> Result<Stream> {
        let device = self.0.device.ok_or_else(|| {
            Error::not_supported(format!("{} has no memory of a device for graphs", self.0))
        })?;
        device.primary_context()?.stream()
    }
}

/// The units of a block in a pool for graphs.
pub(super) fn block_units(bytes: usize) -> Result<u32> {
    units(bytes).ok_or_else(|| {
        Error::invalid(format!(
            "{} in one block of a capture pool",
            Bytes(bytes as u64)
        ))
    })
}

/// Adds a segment to a heap, with a block of `size` units at its start, and returns that.
pub(super) fn add_segment(heap: &mut Tlsf, segment: &DeviceBuffer<u8>, size: u32) -> u64 {
    let (start, whole) = (segment.as_raw() / UNIT, segment.len() as u64 / UNIT);
    let apart = Joins {
        left: false,
        right: false,
    };
    heap.add(start, whole, LastUse::FREE, size, apart);
    start
}

/// Memory of an arena with room for `bytes`, for a pool that holds `held` bytes.
pub(super) fn take_segment(
    arena: &Arena,
    stream: &Stream,
    bytes: u64,
    held: u64,
) -> Result<DeviceBuffer<u8>> {
    let resource = Resource::from(arena.clone());
    let least = bytes.next_multiple_of(GRANULE);
    let share = (held / 8).clamp(LEAST_TAKEN, MOST_TAKEN);
    let wanted = least.max(share.next_multiple_of(GRANULE));
    // The size of one block of an arena fits a `usize`.
    match resource.alloc(stream, wanted as usize) {
        Err(error) if wanted > least && error.is_out_of_memory() => {
            resource.alloc(stream, least as usize)
        }
        taken => taken,
    }
}

impl CapturePool {
    /// Bytes that the pool has taken from its arena. 0 in a forked child.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.0.state().map_or(0, |state| state.held())
    }

    /// Bytes in use by captures and graphs, each block rounded up to 256. 0 in a forked child.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        let live = |state: MutexGuard<'_, State>| {
            state.held() - (state.shared.free_units() + state.single.free_units()) * UNIT
        };
        self.0.state().map_or(0, live)
    }
}

impl Shared {
    fn state(&self) -> Result<MutexGuard<'_, State>> {
        self.state.lock()
    }

    fn allocate(&self, bytes: usize, is_alone: bool) -> Result<CUdeviceptr> {
        let size = block_units(bytes)?;
        let (found, held) = {
            let mut state = self.state()?;
            (state.heap(is_alone).allocate(size), state.held())
        };
        if let Some(start) = found {
            return Ok(start * UNIT);
        }
        // Not under the lock: the arena may release something that holds memory of this pool.
        let segment = take_segment(&self.arena, &self.stream, bytes as u64, held)?;
        let mut state = self.state()?;
        let start = add_segment(state.heap(is_alone), &segment, size);
        state.segments.push(segment);
        Ok(start * UNIT)
    }
}

impl AnyBuffer for CapturePool {
    fn stream(&self) -> &Stream {
        &self.0.stream
    }

    fn wait_for_pending_uses(&mut self) -> Result<()> {
        let mut state = self.0.state()?;
        state
            .segments
            .iter_mut()
            .try_for_each(DeviceBuffer::wait_for_pending_uses)
    }

    fn require_reach_in(&self, context: &Context) -> Result<()> {
        let state = self.0.state()?;
        let mut segments = state.segments.iter();
        segments.try_for_each(|segment| segment.require_reach_in(context))
    }

    fn owe(&self, stream: &Stream) {
        let Ok(state) = self.0.state() else {
            return;
        };
        state
            .segments
            .iter()
            .for_each(|segment| segment.note_use_by(stream));
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn number(&self) -> u64 {
        self.0.number
    }

    fn turn(&self) -> Option<Arc<Lock<()>>> {
        Some(Arc::clone(&self.0.turn))
    }

    fn take_back(&self, address: CUdeviceptr) {
        let Ok(mut state) = self.0.state() else {
            return;
        };
        let start = address / UNIT;
        if state.shared.free(start, LastUse::FREE).is_none() {
            state.single.free(start, LastUse::FREE);
        }
    }
}

impl Capture {
    /// Memory of a pool for the graph that is recorded, of `len` elements. Contents are unspecified. Nothing is
    /// recorded for the allocation. Once dropped, the memory is free for later allocations of this capture and of later
    /// captures of the pool, so other graphs of the pool may write to it when launched.
    ///
    /// The pool may take memory of its arena, as any allocation does. Does not synchronise.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the size overflows, or the captured stream's device does not
    /// reach the arena's memory; [`OutOfMemory`](crate::ErrorKind::OutOfMemory); else as the arena answers. The capture goes
    /// on.
    pub fn alloc_from<T: Pod>(&self, pool: &CapturePool, len: usize) -> Result<GraphBuffer<'_, T>> {
        self.take_from(pool, len, false)
    }

    /// As [`alloc_from`](Self::alloc_from), in memory that no other graph uses while this one exists: for data that
    /// must survive launches of other graphs of the pool, to be read afterwards or used by the next launch.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn alloc_alone_from<T: Pod>(
        &self,
        pool: &CapturePool,
        len: usize,
    ) -> Result<GraphBuffer<'_, T>> {
        self.take_from(pool, len, true)
    }

    fn take_from<T: Pod>(
        &self,
        pool: &CapturePool,
        len: usize,
        is_alone: bool,
    ) -> Result<GraphBuffer<'_, T>> {
        let bytes = bytes_of::<T>(len)?;
        let address = if bytes == 0 {
            0
        } else {
            self.stream().as_ref().require_reach(&*pool.0.arena.0)?;
            pool.0.allocate(bytes, is_alone)?
        };
        Ok(self.buffer_of(pool.clone(), address, len, is_alone))
    }
}

impl fmt::Debug for CapturePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CapturePool")
            .field("arena", &self.0.arena)
            .field("held_bytes", &self.held_bytes())
            .field("live_bytes", &self.live_bytes())
            .finish()
    }
}
