//! The registrations of one buffer.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nixl_sys::RegistrationHandle;

use crate::error::{Error, Result};

/// Registrations that must have ended before the memory is freed.
#[derive(Debug, Default)]
pub(crate) struct Registrations {
    handles: Vec<RegistrationHandle>,
    /// Ending one failed, and nixl-sys has forgotten it.
    is_one_lost: bool,
}

impl Registrations {
    pub(crate) fn add(&mut self, handle: RegistrationHandle) {
        self.handles.push(handle);
    }

    pub(crate) fn count(&self) -> usize {
        self.handles.len()
    }

    /// Ends all. After an error the memory may be registered for ever: a handle of nixl-sys cannot be ended twice.
    ///
    /// nixl-sys does not tell whether NIXL itself has agreed, only whether the call could be made; and it panics where its lock
    /// is poisoned, which is an error here, because destructors end up here.
    pub(crate) fn end(&mut self) -> Result<()> {
        for mut handle in self.handles.drain(..) {
            let ended = catch_unwind(AssertUnwindSafe(|| handle.deregister()));
            // What a panic carries is forgotten, because its own destructor may panic.
            let ended = ended.map_err(mem::forget);
            self.is_one_lost |= !matches!(ended, Ok(Ok(())));
        }
        if self.is_one_lost {
            return Err(Error::MayBeRegistered);
        }
        Ok(())
    }

    /// Leaves all as they are.
    pub(crate) fn abandon(&mut self) {
        self.handles.drain(..).for_each(mem::forget);
    }
}
