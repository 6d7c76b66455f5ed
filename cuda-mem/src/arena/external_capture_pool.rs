//! Memory of an arena for graphs that other code captures.

use std::collections::HashMap;
use std::fmt;
use std::thread::ThreadId;

use cuda_driver_sys::{CU_STREAM_PER_THREAD, CUdeviceptr};

use super::capture_pool::{add_segment, block_units, take_segment};
use super::last_use::LastUse;
use super::recorded_events::with_relaxed_capture_mode;
use super::tlsf::Tlsf;
use super::{Arena, UNIT};
use crate::base::error::{Error, Result};
use crate::base::lock::Lock;
use crate::memory::buffer::DeviceBuffer;
use crate::stream::Stream;

/// Memory of an arena for graphs that other code captures and launches, such as PyTorch. From
/// [`Arena::external_capture_pool`]. Graphs that this crate captures use a [`CapturePool`](super::CapturePool), which also
/// orders their launches.
///
/// Memory that is freed on a captured stream is reused on that stream only, in the same capture and in later ones, also
/// of another graph. So graphs of one pool must not run at the same time, and one that has to keep data across launches
/// of others must not free it. The pool keeps its memory until it is dropped, at the same addresses.
///
/// All methods may be called from any thread.
///
/// ```
/// use cuda_mem::{Arena, Driver};
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let arena = Arena::builder(&device).build()?;
///
/// let pool = arena.external_capture_pool()?;
/// // Here a library begins to capture `stream`, and requests memory for it.
/// let address = pool.allocate(1000, &stream)?;
/// // SAFETY: work that is captured later is ordered after the work that used the memory.
/// unsafe { pool.deallocate(address, &stream) }?;
/// assert_eq!(pool.allocate(1000, &stream)?, address);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct ExternalCapturePool {
    arena: Arena,
    /// Memory is taken from the arena and given back in the order of this stream, which is never captured.
    stream: Stream,
    state: Lock<State>,
}

#[derive(Default)]
struct State {
    heaps: HashMap<Key, Tlsf>,
    segments: Vec<DeviceBuffer<u8>>,
}

/// A stream: its handle, and the thread if the handle names another stream in each.
type Key = (usize, Option<ThreadId>);

fn key(stream: &Stream) -> Key {
    let raw = stream.as_raw();
    let of_thread = raw == CU_STREAM_PER_THREAD;
    (raw.addr(), of_thread.then(|| std::thread::current().id()))
}

impl State {
    fn held(&self) -> u64 {
        let units: u64 = self.heaps.values().map(Tlsf::total_units).sum();
        units * UNIT
    }

    fn live(&self) -> u64 {
        let free: u64 = self.heaps.values().map(Tlsf::free_units).sum();
        self.held() - free * UNIT
    }
}

impl Arena {
    /// A pool of memory for graphs that other code captures. Create it before the capture begins.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) if the arena's memory is not device memory; otherwise any error
    /// that the driver reports.
    pub fn external_capture_pool(&self) -> Result<ExternalCapturePool> {
        Ok(ExternalCapturePool {
            stream: self.stream_for_graphs()?,
            arena: self.clone(),
            state: Lock::default(),
        })
    }
}

impl ExternalCapturePool {
    /// Memory of `bytes` bytes for work that is captured from `stream`. Contents are unspecified. Zero bytes have address
    /// 0. Nothing is recorded in the capture, and no capture is disturbed. If the pool has to take memory from the arena,
    /// it waits until no other stream uses that.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory), or as the arena answers;
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for a stream of another context than the device's primary one.
    pub fn allocate(&self, bytes: usize, stream: &Stream) -> Result<CUdeviceptr> {
        if bytes == 0 {
            return Ok(0);
        }
        self.require_usable(stream)?;
        let size = block_units(bytes)?;
        let key = key(stream);
        let (found, held) = {
            let mut state = self.state.lock()?;
            let heap = state.heaps.entry(key).or_default();
            (heap.allocate(size), state.held())
        };
        if let Some(start) = found {
            return Ok(start * UNIT);
        }
        // Not under the lock: the arena may release something that holds memory of this pool.
        let segment = with_relaxed_capture_mode(self.stream.context(), || {
            let segment = take_segment(&self.arena, &self.stream, bytes as u64, held)?;
            // Launches of a graph are not ordered after this stream.
            self.stream.as_ref().wait()?;
            Ok(segment)
        })?;
        let mut state = self.state.lock()?;
        let heap = state.heaps.entry(key).or_default();
        let start = add_segment(heap, &segment, size);
        state.segments.push(segment);
        Ok(start * UNIT)
    }

    /// Gives memory back to the pool for later captures of `stream`. Does nothing for address 0.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if no block that was allocated on this stream begins there;
    /// nothing is changed.
    ///
    /// # Safety
    ///
    /// What is captured from `stream` later must be ordered after all work that uses the memory, other streams' too.
    pub unsafe fn deallocate(&self, address: CUdeviceptr, stream: &Stream) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        self.require_usable(stream)?;
        let mut state = self.state.lock()?;
        let heap = state.heaps.get_mut(&key(stream));
        let freed = heap.and_then(|heap| heap.free(address / UNIT, LastUse::FREE).map(drop));
        // The text may come from a resource of the program.
        drop(state);
        freed.ok_or_else(|| {
            Error::invalid(format!(
                "{address:#x} is no block that a capture pool of {:?} allocated on {stream}",
                self.arena
            ))
        })
    }

    /// Whether the address lies in memory of this pool, allocated or free.
    #[must_use]
    pub fn contains(&self, address: CUdeviceptr) -> bool {
        let is_in = |segment: &DeviceBuffer<u8>| {
            let start = segment.as_raw();
            (start..start + segment.len() as u64).contains(&address)
        };
        let state = self.state.lock_unless_forked();
        state.is_some_and(|state| state.segments.iter().any(is_in))
    }

    /// Bytes that the pool has taken from its arena.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.state
            .lock_unless_forked()
            .map_or(0, |state| state.held())
    }

    /// Bytes that are allocated, each block rounded up to 256.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.state
            .lock_unless_forked()
            .map_or(0, |state| state.live())
    }

    /// Gives the memory back to the arena, which other streams reuse. Does not wait.
    ///
    /// Dropping the pool instead leaks the memory, because other code may still launch graphs that use it.
    ///
    /// # Safety
    ///
    /// All launches of graphs with memory of this pool must be done, and none may follow.
    pub unsafe fn release(self) {
        drop(self.take_segments());
    }

    fn take_segments(&self) -> Vec<DeviceBuffer<u8>> {
        let state = self.state.lock_unless_forked();
        state.map_or_else(Vec::new, |mut state| {
            state.heaps.clear();
            std::mem::take(&mut state.segments)
        })
    }

    fn require_usable(&self, stream: &Stream) -> Result<()> {
        if stream.context() == self.stream.context() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{stream} of another context than the primary one of the capture pool's device"
        )))
    }
}

impl Drop for ExternalCapturePool {
    fn drop(&mut self) {
        // Graphs that use the memory may still be launched.
        std::mem::forget(self.take_segments());
    }
}

impl fmt::Debug for ExternalCapturePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExternalCapturePool")
            .field("arena", &self.arena)
            .field("held_bytes", &self.held_bytes())
            .field("live_bytes", &self.live_bytes())
            .finish()
    }
}
