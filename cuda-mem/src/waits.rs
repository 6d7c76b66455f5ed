//! Threads of this crate that wait in the driver, and what must not be done beside them.
//!
//! A driver crashes, hangs or loses waits if a pool is destroyed while a thread waits for a stream that has used it (R178,
//! measured). Pools that may be kept are not destroyed at all; for the others this is what can be done. Waits of other
//! libraries are not known.

use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use crate::report;

static WAITS: RwLock<()> = RwLock::new(());

/// This thread waits as long as it has this. Such waits are not nested.
pub(crate) fn begin() -> Option<RwLockReadGuard<'static, ()>> {
    // A fork makes no calls, and nobody may be left in it to unlock this.
    (!report::is_forked()).then(|| {
        WAITS
            .read()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    })
}

/// Nobody waits as long as this lives. `None` if somebody does now; whoever asks has to try again later, because a wait
/// may last for as long as it likes.
pub(crate) fn nobody() -> Option<RwLockWriteGuard<'static, ()>> {
    match WAITS.try_write() {
        Ok(nobody) => Some(nobody),
        Err(TryLockError::Poisoned(nobody)) => Some(nobody.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
