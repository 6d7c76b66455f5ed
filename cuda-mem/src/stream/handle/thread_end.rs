//! A thread waits for its own default streams at its end.
//!
//! The driver lets no thread end while there is work in a default stream of that thread: its own thread-exit code then
//! hangs, and so do calls of other threads (measured, R177). Destructors of thread-local values run before that code.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use crate::base::error::Result;
use crate::driver::device::Device;
use crate::stream::context::{Context, WeakContext};
use crate::stream::epoch::{self, Progress};

/// A context in which the thread has named its own stream.
enum Used {
    /// By the device: the context may outlive every handle of this crate.
    Primary(Device),
    /// Its owner keeps it alive as long as there is a handle.
    Foreign(WeakContext),
}

impl Used {
    fn of(context: &Context) -> Self {
        if context.is_primary() {
            Self::Primary(context.device())
        } else {
            Self::Foreign(context.downgrade())
        }
    }

    fn is(&self, context: &Context) -> bool {
        match self {
            Self::Primary(device) => context.is_primary() && *device == context.device(),
            Self::Foreign(weak) => weak.is_of(context),
        }
    }

    /// Whether there may still be a stream to wait for.
    fn is_there(&self) -> bool {
        match self {
            Self::Primary(_) => true,
            Self::Foreign(weak) => weak.upgrade().is_some(),
        }
    }

    fn context(&self) -> Result<Option<Context>> {
        match self {
            Self::Primary(device) if device.has_active_context()? => {
                device.primary_context().map(Some)
            }
            Self::Primary(_) => Ok(None),
            Self::Foreign(weak) => Ok(weak.upgrade()),
        }
    }
}

/// A context, and what the thread's handles of its own stream there have been seen to do.
struct OwnStream {
    used: Used,
    handles: Vec<Weak<Progress>>,
}

impl OwnStream {
    fn note(&mut self, handle: &Arc<Progress>) {
        if self.handles.len() == self.handles.capacity() {
            self.handles.retain(|handle| handle.strong_count() > 0);
        }
        self.handles.push(Arc::downgrade(handle));
    }

    fn wait(&self) -> Result<()> {
        let Some(context) = self.used.context()? else {
            return Ok(());
        };
        let epoch = epoch::take();
        context
            .per_thread_stream()
            .as_ref()
            .wait_unless_captured()?;
        // Only this thread can query the stream, and it is ending. Other threads may still have handles.
        for handle in self.handles.iter().filter_map(Weak::upgrade) {
            handle.advance(epoch);
        }
        Ok(())
    }
}

#[derive(Default)]
struct OwnStreams(RefCell<Vec<OwnStream>>);

impl Drop for OwnStreams {
    fn drop(&mut self) {
        // At the end of the process the driver ends its work anyway, and the code that hangs does not run.
        if is_main_thread() {
            return;
        }
        for own in self.0.get_mut() {
            // The result matters to users of the work's results; none is left here to receive it.
            let _ = own.wait();
        }
    }
}

thread_local! {
    static OWN: OwnStreams = OwnStreams::default();
}

/// Notes that the thread names its own stream of this context, by a handle whose progress this is, if it is kept.
pub(super) fn note(context: &Context, handle: Option<&Arc<Progress>>) {
    // If this fails, the thread is already ending.
    let _ = OWN.try_with(|streams| {
        let mut streams = streams.0.borrow_mut();
        let known = streams.iter().position(|own| own.used.is(context));
        let place = known.unwrap_or_else(|| {
            streams.retain(|own| own.used.is_there());
            streams.push(OwnStream {
                used: Used::of(context),
                handles: Vec::new(),
            });
            streams.len() - 1
        });
        if let Some(handle) = handle {
            streams[place].note(handle);
        }
    });
}

fn is_main_thread() -> bool {
    rustix::thread::gettid()
        .as_raw_nonzero()
        .get()
        .cast_unsigned()
        == std::process::id()
}
