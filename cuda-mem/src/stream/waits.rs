//! Threads of this crate that wait in the driver, and operations that must not run at the same time.
//!
//! A driver crashes, hangs or loses waits if a pool is destroyed while a thread waits for a stream that has used it
//! (R178, measured). Pools that may be kept are not destroyed at all; for the others there is this lock. Waits of
//! other libraries are not known, nor those inside calls that free host memory or release a context.

#![forbid(unsafe_code)]

use std::sync::{RwLockReadGuard, RwLockWriteGuard};

use crate::base::error::Result;
use crate::base::lock::SharedLock;

static WAITS: SharedLock<()> = SharedLock::new(());

/// Held by the calling thread during a wait. Waits do not nest.
pub(crate) fn begin() -> Result<RwLockReadGuard<'static, ()>> {
    WAITS.read()
}

/// Excludes all waits. `None` if a thread is waiting now: the caller tries again later, because a wait may take
/// arbitrarily long.
pub(crate) fn exclude() -> Result<Option<RwLockWriteGuard<'static, ()>>> {
    WAITS.try_write()
}
