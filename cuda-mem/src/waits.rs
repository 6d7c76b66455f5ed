//! Threads of this crate that wait in the driver, and what must not be done beside them.
//!
//! A driver crashes, hangs or loses waits if a pool is destroyed while a thread waits for a stream that has used it (R178,
//! measured). Pools that may be kept are not destroyed at all; for the others this is what can be done. Waits of other
//! libraries are not known, nor those inside of calls that free host memory or release a context.

#![forbid(unsafe_code)]

use std::sync::{RwLockReadGuard, RwLockWriteGuard};

use crate::error::Result;
use crate::lock::SharedLock;

static WAITS: SharedLock<()> = SharedLock::new(());

/// This thread waits as long as it has this. Such waits are not nested.
pub(crate) fn begin() -> Result<RwLockReadGuard<'static, ()>> {
    WAITS.read()
}

/// Nobody waits as long as this lives. `None` if somebody does now; whoever asks has to try again later, because a wait
/// may last for as long as it likes.
pub(crate) fn nobody() -> Result<Option<RwLockWriteGuard<'static, ()>>> {
    WAITS.try_write()
}
