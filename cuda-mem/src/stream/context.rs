//! The primary context of a device, contexts made by other code, and the context that is current on a thread.

mod current;
#[cfg(target_os = "linux")]
mod weak;

pub use current::Current;
#[cfg(target_os = "linux")]
pub(crate) use weak::WeakContext;

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use cuda_driver_sys::{CUcontext, CUevent};

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::lock::Lock;
use crate::base::report;
use crate::driver::Driver;
use crate::driver::device::Device;
use crate::driver::raw;
use crate::ledger::{self, Item, LedgerKind};
use crate::stream::deferred::After;
use crate::stream::epoch::{self, Progress};
use crate::stream::recording::{CaptureExclusion, Dependency};
use crate::stream::stage::Stage;
use crate::stream::{after_wait, deferred, recording, waits};

/// The primary context of a device, which the CUDA runtime and other libraries share; or a context that other code
/// made ([`Driver::context_from_raw`]).
///
/// The handle can be cloned; a primary context is retained while any clone, or anything made from one, lives. It is
/// never reset, and other devices are never touched.
///
/// If no other code in the process holds the context, dropping the last handle destroys it, and the driver waits for
/// the work that is still queued in it (measured).
///
/// ```
/// # cuda_sim::use_if_no_driver();
/// let device = cuda_mem::Driver::load()?.device(0)?;
/// let context = device.primary_context()?;
/// let memory = context.memory_info()?;
/// println!("{} of {} bytes free", memory.free, memory.total);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone)]
pub struct Context(Arc<Retained>);

struct Retained {
    device: Device,
    raw: CUcontext,
    /// Shared by all handles of the context.
    progress: Arc<Progress>,
    /// Retained here, and released at the end; otherwise owned by other code.
    is_primary: bool,
    /// Events that `join` reuses. At most [`MAX_EVENTS`].
    events: Lock<Vec<CUevent>>,
    /// For copying CPU mappings. At most [`MAX_STAGES`].
    stages: Lock<Vec<Stage>>,
    /// Values that higher layers create once for a context. None of them holds the context.
    kept: Lock<Vec<Box<dyn Any + Send + Sync>>>,
}

/// How many copying CPU mappings may come and go at one moment without creating a stage.
const MAX_STAGES: usize = 8;

/// More than the joins that a program issues at one moment need; events beyond that are destroyed.
const MAX_EVENTS: usize = 64;

// SAFETY: context and event handles may be used from any thread; only *current* is a state of a
// thread, and that is handled by `Current`.
unsafe impl Send for Retained {}
// SAFETY: as for `Send`, and the list of events is behind a lock.
unsafe impl Sync for Retained {}

impl Retained {
    fn new(device: Device, raw: CUcontext, is_primary: bool) -> Self {
        let driver = std::ptr::from_ref(device.driver().table()).addr();
        Self {
            device,
            raw,
            progress: epoch::of_context(driver, raw.addr()),
            is_primary,
            events: Lock::default(),
            stages: Lock::default(),
            kept: Lock::default(),
        }
    }

    /// Identified by its own address: each retain returns the same handle.
    fn item(&self) -> Item {
        Item::new(LedgerKind::Context, std::ptr::from_ref(self)).on(self.device)
    }
}

impl Drop for Retained {
    fn drop(&mut self) {
        let table = self.device.driver().table();
        for event in std::mem::take(self.events.get_mut()) {
            // SAFETY: the event is in the list, so nobody else has it.
            report::release("event", || unsafe { raw::event::destroy(table, event) });
        }
        self.stages.get_mut().clear();
        self.kept.get_mut().clear();
        if !self.is_primary {
            return;
        }
        ledger::remove(&self.item());
        let epoch = epoch::take();
        current::note_released();
        report::release("context", || {
            // SAFETY: the one retain that `primary_context` made. What lives in the context holds a
            // clone of it, so this is after all of that.
            let released = unsafe { raw::context::release(table, self.device.as_raw()) };
            match released {
                // Other code has released more than it retained: the context is gone, and nothing is left to do.
                Err(error) if error.kind() == ErrorKind::InvalidContext => {
                    report::too_late();
                    Ok(())
                }
                released => released,
            }
        });
        // The driver waits for a context that it destroys. Queried only if the progress has another user.
        if Arc::strong_count(&self.progress) > 1
            && matches!(self.device.has_active_context(), Ok(false))
        {
            self.progress.advance(epoch);
        }
        // If this was the last release, the work of the context is done.
        deferred::poll(After::Call);
    }
}

/// The memory of a device in bytes, at one moment and for all processes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryInfo {
    /// Free bytes.
    pub free: u64,
    /// Total bytes.
    pub total: u64,
}

impl Device {
    /// Retains the primary context of this device. If no library in this process has created it yet, this creates it
    /// (about 100 ms and some hundred MB of device memory).
    ///
    /// # Errors
    ///
    /// Any driver error, for example when the device is in a mode that allows no context.
    #[doc(alias = "cuDevicePrimaryCtxRetain")]
    #[track_caller]
    pub fn primary_context(&self) -> Result<Context> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        // SAFETY: the device is of this driver; `Retained` releases what is retained here.
        let raw = unsafe { raw::context::retain(self.driver().table(), self.as_raw()) }?;
        current::note_retained(*self, raw);
        let retained = Arc::new(Retained::new(*self, raw, true));
        ledger::insert(retained.item());
        Ok(Context(retained))
    }

    /// Whether the primary context exists, whichever code in this process created it. Creates nothing.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuDevicePrimaryCtxGetState")]
    pub fn has_active_context(&self) -> Result<bool> {
        // SAFETY: the device is of this driver.
        unsafe { raw::context::is_active(self.driver().table(), self.as_raw()) }
    }
}

impl Driver {
    /// Wraps a context that other code made, such as the program's own from `cuCtxCreate`: streams and everything else
    /// are made in it, and it is never destroyed or released here. For a primary context use
    /// [`Device::primary_context`], which keeps it alive.
    ///
    /// # Safety
    ///
    /// It must be a live context of this driver, and remain so until the last handle, and everything made from one, is
    /// dropped; and until nothing [waits](crate::base::DropCounts) any more for work in it. Arenas refuse its streams,
    /// because they remember streams for longer than can be seen from outside.
    ///
    /// # Errors
    ///
    /// [`InvalidContext`](ErrorKind::InvalidContext) for null; otherwise any driver error.
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// let driver = cuda_mem::Driver::load()?;
    /// # let own = driver.device(0)?.primary_context()?;
    /// # let raw = own.as_raw();
    /// // SAFETY: `raw` is a context of ours, which ends after everything below.
    /// let context = unsafe { driver.context_from_raw(raw) }?;
    /// let stream = context.stream()?;
    /// # stream.synchronize()?;
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias("cuCtxGetDevice", "cuCtxCreate"))]
    pub unsafe fn context_from_raw(&self, raw: CUcontext) -> Result<Context> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        if raw.is_null() {
            return Err(Error::new(
                ErrorKind::InvalidContext,
                "there is no context to hand in: the handle is null",
            ));
        }
        let table = self.table();
        // What is current stays on the thread's stack: its owner may have destroyed it, and then it must not be made
        // current again (R84).
        // SAFETY: the caller vouches for the context.
        unsafe { raw::context::push(table, raw) }?;
        // SAFETY: a live context is current.
        let device = unsafe { raw::context::device(table) };
        // SAFETY: the driver is initialised; this takes away what was pushed above.
        let popped = unsafe { raw::context::pop(table) };
        let device = device?;
        popped?;
        let device = self
            .devices()?
            .into_iter()
            .find(|known| known.as_raw() == device)
            .ok_or_else(|| {
                Error::invalid(format!(
                    "the context is of device {device}, which is not visible"
                ))
            })?;
        current::note_handed_in();
        Ok(Context(Arc::new(Retained::new(device, raw, false))))
    }
}

impl Dependency for Retained {
    fn begin_use(&self) -> Result<()> {
        Ok(())
    }

    fn end_use(&self, _: &Arc<Progress>) {}
}

impl Context {
    /// The context, to be kept alive by a graph whose work runs there.
    pub(crate) fn as_dependency(&self) -> Arc<dyn Dependency> {
        Arc::<Retained>::clone(&self.0)
    }
}

impl Context {
    /// Whether this is the primary context of its device, retained by its handles.
    #[must_use]
    pub fn is_primary(&self) -> bool {
        self.0.is_primary
    }

    /// The device of this context.
    #[must_use]
    #[inline]
    pub fn device(&self) -> Device {
        self.0.device
    }

    #[inline]
    pub(crate) fn driver(&self) -> Driver {
        self.0.device.driver()
    }

    /// The driver's handle. It stays valid while this context, or a clone, lives.
    #[must_use]
    pub fn as_raw(&self) -> CUcontext {
        self.0.raw
    }

    /// Blocks until the device has done everything that was submitted to this context.
    ///
    /// # Errors
    ///
    /// [`Capturing`](crate::ErrorKind::Capturing) while this crate captures a stream of the context; otherwise any
    /// driver error, including faults of earlier asynchronous work.
    #[doc(alias = "cuCtxSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        let epoch = epoch::take();
        let excluded = recording::exclude_captures_in(self.0.raw)?;
        if excluded.is_outermost() && recording::captures_in(self.driver().table(), self.0.raw) {
            return Err(Error::capturing(format!(
                "a stream of the {self} is being recorded into a graph, and waiting for the whole context would \
                 spoil that; wait for streams, or do it after the capture"
            )));
        }
        self.wait(epoch, Some(excluded))
    }

    /// As [`synchronize`](Self::synchronize), for waits without which something would be unsound: captures of streams
    /// of this context are lost (R110).
    pub(crate) fn wait_even_if_captured(&self) -> Result<()> {
        // Captures that have not begun wait for it. Where that cannot be noted, it must be waited all the same.
        let epoch = epoch::take();
        self.wait(epoch, recording::exclude_captures_in(self.0.raw).ok())
    }

    fn wait(&self, epoch: u64, excluded: Option<CaptureExclusion>) -> Result<()> {
        {
            let _excluded = excluded;
            let _current = self.bind()?;
            let _waits = waits::begin()?;
            let table = self.driver().table();
            // SAFETY: this context is current.
            recording::relaxed_while_capturing(table, || unsafe {
                raw::context::synchronize(table)
            })?;
        }
        self.0.progress.advance(epoch);
        // Not before: this may run the program's code, and captures wait for what is excluded.
        deferred::poll_all();
        after_wait::tell(After::Wait);
        Ok(())
    }

    /// How far the host has seen all streams of this context progress.
    pub(crate) fn progress(&self) -> &Arc<Progress> {
        &self.0.progress
    }

    /// Free and total bytes of the device.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuMemGetInfo")]
    pub fn memory_info(&self) -> Result<MemoryInfo> {
        let _current = self.bind()?;
        // SAFETY: this context is current.
        let (free, total) = unsafe { raw::context::memory_info(self.driver().table()) }?;
        Ok(MemoryInfo {
            free: free as u64,
            total: total as u64,
        })
    }

    /// An event for ordering, from the cache or new. Return it with [`Self::give_event`].
    pub(crate) fn take_event(&self) -> Result<CUevent> {
        if let Some(event) = self.0.events.lock()?.pop() {
            return Ok(event);
        }
        let _current = self.bind()?;
        let flags = cuda_driver_sys::CUevent_flags::CU_EVENT_DISABLE_TIMING.0;
        // SAFETY: this context is current.
        unsafe { raw::event::create(self.driver().table(), flags) }
    }

    pub(crate) fn give_event(&self, event: CUevent) {
        let Some(mut events) = self.0.events.lock_unless_forked() else {
            return;
        };
        if events.len() < MAX_EVENTS {
            events.push(event);
            return;
        }
        drop(events);
        self.end_event(event);
    }

    /// As [`give_event`](Self::give_event), for an event that must not be used again.
    pub(crate) fn end_event(&self, event: CUevent) {
        if report::is_forked() {
            return;
        }
        let table = self.driver().table();
        // SAFETY: the event came from `take_event` and its owner is done with it.
        report::release("event", || unsafe { raw::event::destroy(table, event) });
    }

    /// A stage for small copies, from the cache or new. Return it with [`Self::give_stage`], when its stream is done.
    pub(crate) fn take_stage(&self) -> Result<Stage> {
        if let Some(stage) = self.0.stages.lock()?.pop() {
            return Ok(stage);
        }
        let _current = self.bind()?;
        // SAFETY: this context is current, and outlives what it keeps and what is borrowed from it.
        unsafe { Stage::new(self.driver().table()) }
    }

    pub(crate) fn give_stage(&self, stage: Stage) {
        let Some(mut stages) = self.0.stages.lock_unless_forked() else {
            return;
        };
        if stages.len() < MAX_STAGES {
            stages.push(stage);
        } else {
            // Before the stage, which waits for the device.
            drop(stages);
            drop(stage);
        }
    }

    /// The value kept for this context that `fits` accepts, or else the one that `make` makes; it is kept until the
    /// context ends. It must not hold the context, which would then never end.
    pub(crate) fn keep<T: Any + Clone + Send + Sync>(
        &self,
        fits: impl Fn(&T) -> bool,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let find = |all: &[Box<dyn Any + Send + Sync>]| {
            let mut known = all.iter().filter_map(|object| object.downcast_ref::<T>());
            known.find(|object| fits(object)).cloned()
        };
        if let Some(known) = find(&self.0.kept.lock()?) {
            return Ok(known);
        }
        // Not under the lock: the failure hook may come back here. If two threads make one at the same time, the
        // second one's is dropped.
        let made = make()?;
        let mut all = self.0.kept.lock()?;
        if let Some(known) = find(&all) {
            drop(all);
            drop(made);
            return Ok(known);
        }
        all.push(Box::new(made.clone()));
        Ok(made)
    }
}

/// Two handles are equal if they are the same context of the same driver.
impl PartialEq for Context {
    fn eq(&self, other: &Self) -> bool {
        self.0.raw == other.0.raw && self.driver() == other.driver()
    }
}

impl Eq for Context {}

/// Its device, in words; with its address if it was handed in.
impl fmt::Display for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_primary {
            write!(f, "context of {}", self.0.device)
        } else {
            write!(f, "context {:p} of {}", self.0.raw, self.0.device)
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ordinal = self.0.device.ordinal();
        if self.0.is_primary {
            write!(f, "Context(device {ordinal})")
        } else {
            write!(f, "Context(device {ordinal}, handed in, {:p})", self.0.raw)
        }
    }
}
