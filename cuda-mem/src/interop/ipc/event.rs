//! Events shared between processes.

use cuda_driver_sys::CUresult;

use super::handles::EventHandle;
use crate::base::error::{ErrorKind, Result};
use crate::driver::raw;
use crate::stream::context::Context;
use crate::stream::event::Event;
use crate::stream::recording;

impl Event {
    /// A handle with which another process opens this event, through [`Context::import_event`]. The event must come
    /// from [`Context::interprocess_event`].
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](ErrorKind::InvalidValue) for other events.
    #[doc(alias = "cuIpcGetEventHandle")]
    pub fn export(&self) -> Result<EventHandle> {
        let table = self.context().driver().table();
        let _current = self.context().bind()?;
        // As for pools.
        recording::relaxed_while_capturing(table, || {
            // SAFETY: the event is live and its context current.
            unsafe { raw::ipc::export_event(table, self.as_raw()) }
        })
        .map_err(|error| {
            error.asked(|| "an event, which must be made to be interprocess".to_owned())
        })
        .map(EventHandle)
    }
}

impl Context {
    /// Opens an event of another process. It can be recorded and waited for in both processes; each wait refers to the
    /// last recording in either.
    ///
    /// If a process dies before a recording is reached, it is never reached: streams that wait for it hang, and
    /// dropping their context's last handle returns only at the end of the process (both measured). Where a process may
    /// die, wait for its message on the host instead.
    ///
    /// # Errors
    ///
    /// [`PeerGone`](ErrorKind::PeerGone) if the event no longer exists; [`InvalidContext`](ErrorKind::InvalidContext)
    /// in the process that made it (measured).
    #[doc(alias = "cuIpcOpenEventHandle")]
    #[track_caller]
    pub fn import_event(&self, handle: &EventHandle) -> Result<Event> {
        let current = self.bind()?;
        let table = self.driver().table();
        let raw = recording::relaxed_while_capturing(table, || {
            // SAFETY: this context is current. A driver wrote the handle: handles come from `export`, or from
            // `from_bytes` and `from_raw`, whose callers vouch for it.
            unsafe { raw::ipc::import_event(table, handle.0) }
        });
        drop(current);
        let raw = raw.map_err(|error| {
            // Measured: the driver's answer when the event's context is gone.
            error.meaning(
                CUresult::CUDA_ERROR_MAP_FAILED,
                ErrorKind::PeerGone,
                "the event, or the process that made it, is gone",
            )
        })?;
        // SAFETY: made just now, in this context.
        Ok(unsafe { Event::from_raw(self, raw) })
    }
}
