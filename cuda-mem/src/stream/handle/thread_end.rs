//! A thread waits for its own default streams at its end.
//!
//! The driver lets no thread end while there is work in a default stream of that thread: its own thread-exit code then
//! hangs, and so do calls of other threads (measured, R177). Destructors of thread-local values run before that code.

use std::cell::RefCell;

use crate::base::error::Result;
use crate::driver::device::Device;
use crate::stream::context::{Context, WeakContext};

/// A context in which the thread has named its own stream.
enum Used {
    /// By the device: the context may outlive every handle of this crate.
    Primary(Device),
    /// Its owner keeps it alive as long as there is a handle.
    Foreign(WeakContext),
}

impl Used {
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

    fn wait(&self) -> Result<()> {
        let context = match self {
            Self::Primary(device) if device.has_active_context()? => device.primary_context()?,
            Self::Primary(_) => return Ok(()),
            Self::Foreign(weak) => match weak.upgrade() {
                Some(context) => context,
                None => return Ok(()),
            },
        };
        context.per_thread_stream().as_ref().wait_unless_captured()
    }
}

#[derive(Default)]
struct OwnStreams(RefCell<Vec<Used>>);

impl Drop for OwnStreams {
    fn drop(&mut self) {
        // At the end of the process the driver ends its work anyway, and the code that hangs does not run.
        if is_main_thread() {
            return;
        }
        for used in self.0.get_mut() {
            // The result matters to users of the work's results; none is left here to receive it.
            let _ = used.wait();
        }
    }
}

thread_local! {
    static OWN: OwnStreams = OwnStreams::default();
}

/// Notes that the thread names its own stream of this context.
pub(super) fn note(context: &Context) {
    // If this fails, the thread is already ending.
    let _ = OWN.try_with(|own| {
        let mut own = own.0.borrow_mut();
        if !own.iter().any(|used| used.is(context)) {
            own.retain(Used::is_there);
            own.push(if context.is_primary() {
                Used::Primary(context.device())
            } else {
                Used::Foreign(context.downgrade())
            });
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
