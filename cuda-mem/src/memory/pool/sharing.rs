//! The state of a pool's sharing with other processes.

use std::sync::RwLockWriteGuard;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_driver_sys::CUmemoryPool;

use super::MemoryPool;
use crate::base::error::{Error, Result};
use crate::base::lock::Lock;
use crate::base::report::HookDeferringGuard;
use crate::driver::Driver;
use crate::driver::device::HandleTypes;
use crate::driver::raw;
use crate::stream::{recording, waits};

/// Part of a pool.
#[derive(Debug)]
pub(super) struct Sharing {
    /// The handle types that it was created with.
    pub(super) handle_types: HandleTypes,
    /// An export failed. Then a driver may crash at the next allocation, or where the pool is destroyed (R127, R192).
    pub(super) has_failed: AtomicBool,
}

impl Default for Sharing {
    fn default() -> Self {
        Self {
            handle_types: HandleTypes::empty(),
            has_failed: AtomicBool::new(false),
        }
    }
}

/// Held while a pool is destroyed, and by calls that share memory between processes: doing both at once has crashed
/// a driver (R28).
static ENDS: Lock<()> = Lock::new(());

/// While the returned guard lives, no pool is destroyed.
pub(crate) fn no_pool_ends() -> Result<HookDeferringGuard<'static, ()>> {
    ENDS.lock().map(HookDeferringGuard::new)
}

/// See [`alone`]. The hook waits for both locks.
pub(super) struct Alone {
    _no_waits: RwLockWriteGuard<'static, ()>,
    _no_ends: HookDeferringGuard<'static, ()>,
}

/// Blocks sharing between processes and waits of this crate. `None` if a thread is waiting now.
pub(super) fn alone() -> Result<Option<Alone>> {
    // The lock order of `ipc::registry`. The second lock blocks every wait of this crate, so it is taken last.
    let no_ends = no_pool_ends()?;
    Ok(waits::exclude()?.map(|no_waits| Alone {
        _no_waits: no_waits,
        _no_ends: no_ends,
    }))
}

/// For pools that no stream has used, or if it is known that no thread is waiting (R178).
///
/// # Safety
/// Same as [`raw::pool::destroy`].
pub(super) unsafe fn destroy(driver: Driver, pool: CUmemoryPool) -> Result<()> {
    let _ends = no_pool_ends()?;
    recording::relaxed_if_possible(driver.table(), || {
        // SAFETY: the caller gives up the handle.
        unsafe { raw::pool::destroy(driver.table(), pool) }
    })
}

impl MemoryPool {
    #[cfg(any(target_os = "linux", windows))]
    pub(crate) fn handle_types(&self) -> HandleTypes {
        self.0.0.sharing.handle_types
    }

    /// Prevents further allocation from this pool, and its destruction: the driver might crash.
    #[cfg(any(target_os = "linux", windows))]
    pub(crate) fn note_failed_export(&self) {
        self.0.0.sharing.has_failed.store(true, Ordering::SeqCst);
        self.forget_reach_if_failed();
    }
}

impl super::Pool {
    /// Allocations look at the reach first, and then ask in `require_reach`. Called after each change of either: one of
    /// two threads sees both.
    pub(super) fn forget_reach_if_failed(&self) {
        if self.0.sharing.has_failed.load(Ordering::SeqCst) {
            self.0.reach.store(0, Ordering::SeqCst);
        }
    }

    /// An error after a failed export, after which the pool must not be used.
    pub(crate) fn require_healthy(&self) -> Result<()> {
        if !self.0.sharing.has_failed.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Error::not_permitted(format!(
            "{self} could not be exported before, and the driver does not survive its further use; \
             build another pool; fabric handles need a fabric"
        )))
    }
}
