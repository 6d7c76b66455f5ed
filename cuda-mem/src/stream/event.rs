//! Events: marks in a stream that others can wait for.

use std::ffi::c_uint;
use std::fmt;
use std::sync::Arc;

use cuda_driver_sys::{CUevent, CUevent_flags};

use crate::base::error::{Error, Result};
use crate::base::report;
use crate::driver::raw;
use crate::ledger::{self, Item, LedgerKind};
use crate::stream::context::Context;
use crate::stream::deferred::After;
use crate::stream::{Stream, StreamRef};
use crate::stream::{after_wait, deferred, launches, recording, waits};

/// A mark in a stream. Recording it again moves the mark; waits issued before are unaffected.
///
/// ```
/// # cuda_sim::use_if_no_driver();
/// let context = cuda_mem::Driver::load()?.device(0)?.primary_context()?;
/// let stream = context.stream()?;
/// let event = context.event()?;
/// event.record(&stream)?;
/// event.synchronize()?; // until everything before the mark is done
/// assert!(event.is_done()?);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct Event {
    own: Arc<OwnEvent>,
    timing: bool,
}

/// An event that is destroyed with its last owner: the program, or a future that waits for it.
pub(super) struct OwnEvent {
    context: Context,
    raw: CUevent,
}

// SAFETY: event handles may be used from any thread; the driver locks inside.
unsafe impl Send for OwnEvent {}
// SAFETY: as for `Send`: recording and asking through a shared handle is behind the driver's lock.
unsafe impl Sync for OwnEvent {}

impl Context {
    /// Creates an event for ordering; it takes no time stamps and is cheap to record.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuEventCreate")]
    #[track_caller]
    pub fn event(&self) -> Result<Event> {
        self.new_event(false)
    }

    /// Creates an event that also records the time; see [`Event::elapsed_ms_since`].
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuEventCreate")]
    #[track_caller]
    pub fn timing_event(&self) -> Result<Event> {
        self.new_event(true)
    }

    /// Creates an event that other processes can open; see [`Event::export`]. It takes no time stamps.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias("cuEventCreate", "CU_EVENT_INTERPROCESS"))]
    #[track_caller]
    pub fn interprocess_event(&self) -> Result<Event> {
        let plain = CUevent_flags::CU_EVENT_DISABLE_TIMING.0;
        self.event_with(plain | CUevent_flags::CU_EVENT_INTERPROCESS.0, false)
    }

    #[track_caller]
    fn new_event(&self, timing: bool) -> Result<Event> {
        let flags = if timing {
            CUevent_flags::CU_EVENT_DEFAULT
        } else {
            CUevent_flags::CU_EVENT_DISABLE_TIMING
        };
        self.event_with(flags.0, timing)
    }

    #[track_caller]
    fn event_with(&self, flags: c_uint, timing: bool) -> Result<Event> {
        let _current = self.bind()?;
        // SAFETY: this context is current.
        let raw = unsafe { raw::event::create(self.driver().table(), flags) }?;
        Ok(Event::own(self, raw, timing))
    }
}

impl Event {
    /// Creates the value that destroys the event.
    #[track_caller]
    fn own(context: &Context, raw: CUevent, timing: bool) -> Self {
        let own = OwnEvent {
            context: context.clone(),
            raw,
        };
        ledger::insert(own.item());
        Self {
            own: Arc::new(own),
            timing,
        }
    }

    pub(super) fn shared(&self) -> &Arc<OwnEvent> {
        &self.own
    }

    /// Takes ownership of an event without time stamps.
    ///
    /// # Safety
    ///
    /// The event must be live, belong to this context, and have no other owner.
    #[cfg(any(target_os = "linux", windows))]
    #[track_caller]
    pub(crate) unsafe fn from_raw(context: &Context, raw: CUevent) -> Self {
        Self::own(context, raw, false)
    }

    pub(crate) fn context(&self) -> &Context {
        &self.own.context
    }

    /// The driver's handle. It stays valid while the event lives.
    #[must_use]
    pub fn as_raw(&self) -> CUevent {
        self.own.raw
    }

    /// Puts the mark after everything that is in `stream` now.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the stream is of another context; otherwise any driver
    /// error.
    #[doc(alias = "cuEventRecord")]
    pub fn record<'a>(&self, stream: impl Into<StreamRef<'a>>) -> Result<()> {
        let stream = stream.into();
        if *stream.context() != self.own.context {
            return Err(Error::invalid(format!(
                "the event belongs to the {} and the stream to the {}; an event marks streams of its own \
                 context only",
                self.own.context,
                stream.context()
            )));
        }
        let open = stream.submit()?;
        // SAFETY: both handles are live and of one context.
        unsafe { raw::event::record(open.queue(), self.own.raw) }
    }

    /// Blocks the host until everything before the mark is done.
    ///
    /// # Errors
    ///
    /// Any driver error, including faults of earlier asynchronous work.
    #[doc(alias = "cuEventSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        {
            let _waits = waits::begin()?;
            // SAFETY: the event is live.
            self.beside_captures(|table| unsafe { raw::event::synchronize(table, self.own.raw) })?;
        }
        deferred::poll(After::Wait);
        after_wait::tell(After::Wait);
        Ok(())
    }

    /// Whether everything before the mark is done. Does not wait.
    ///
    /// # Errors
    ///
    /// Any driver error, including faults of earlier asynchronous work.
    #[doc(alias = "cuEventQuery")]
    pub fn is_done(&self) -> Result<bool> {
        // SAFETY: the event is live.
        self.beside_captures(|table| unsafe { raw::event::query(table, self.own.raw) })
    }

    /// Makes a driver call in a way that does not invalidate captures of this crate (R113).
    fn beside_captures<T>(&self, call: impl FnOnce(&raw::Table) -> Result<T>) -> Result<T> {
        let table = self.own.context.driver().table();
        recording::relaxed_while_capturing(table, || call(table))
    }

    /// Milliseconds of device time from `earlier` to this event. Both must be done; the resolution is about half a
    /// microsecond.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if one was created without timing;
    /// [`NotReady`](crate::ErrorKind::NotReady) if one is not done.
    #[doc(alias = "cuEventElapsedTime")]
    pub fn elapsed_ms_since(&self, earlier: &Event) -> Result<f32> {
        if !self.timing || !earlier.timing {
            return Err(Error::invalid(
                "elapsed time needs two events made by timing_event()".to_owned(),
            ));
        }
        if self.own.context != earlier.own.context {
            return Err(Error::invalid(
                "elapsed time needs two events of one context".to_owned(),
            ));
        }
        // SAFETY: both events are live, of one context, and take time stamps.
        unsafe {
            raw::event::elapsed(
                self.own.context.driver().table(),
                earlier.own.raw,
                self.own.raw,
            )
        }
    }

    fn check_driver(&self, stream: StreamRef<'_>) -> Result<()> {
        let driver = self.own.context.driver();
        driver.require_same(
            stream.context().driver(),
            format_args!("the event and the stream"),
        )
    }
}

impl Stream {
    /// Makes all later work in this stream wait for the event's mark. Does not block the host. An event that was never
    /// recorded counts as done.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the event is of another driver; otherwise any driver error.
    /// The event may be of another device.
    #[doc(alias = "cuStreamWaitEvent")]
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        self.as_ref().wait_event(event)
    }
}

impl StreamRef<'_> {
    /// See [`Stream::wait_event`].
    ///
    /// # Errors
    ///
    /// As for that method.
    #[doc(alias = "cuStreamWaitEvent")]
    pub fn wait_event(&self, event: &Event) -> Result<()> {
        event.check_driver(*self)?;
        let open = self.submit()?;
        let _turn = launches::wait(*self)?;
        // SAFETY: both handles are live and of one driver.
        unsafe { raw::stream::wait(open.queue(), event.own.raw) }
    }
}

impl OwnEvent {
    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn as_raw(&self) -> CUevent {
        self.raw
    }

    fn item(&self) -> Item {
        let device = self.context.device();
        Item::new(LedgerKind::Event, self.raw)
            .of(device.driver())
            .on(device)
    }
}

impl Drop for OwnEvent {
    fn drop(&mut self) {
        ledger::remove(&self.item());
        let table = self.context.driver().table();
        // SAFETY: nobody else has the handle; waits already issued stay valid.
        report::release("event", || unsafe { raw::event::destroy(table, self.raw) });
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Event({:p} of {:?})", self.own.raw, self.own.context)
    }
}
