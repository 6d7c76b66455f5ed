//! Memory that third parties map too, which only Linux has.

#[cfg(target_os = "linux")]
mod files;
#[cfg(not(target_os = "linux"))]
mod none;

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

#[cfg(target_os = "linux")]
pub(crate) use files::{Bases, Part, Pieces, pause, reopen};
#[cfg(not(target_os = "linux"))]
pub(crate) use none::Pieces;

/// Held by running work; memory moves only when none runs. Taken after the lock on the mapped space.
static RUNNING: RwLock<()> = RwLock::new(());

/// Prevents memory from moving while it lives.
pub(crate) fn stay() -> RwLockReadGuard<'static, ()> {
    RUNNING.read().unwrap_or_else(PoisonError::into_inner)
}
