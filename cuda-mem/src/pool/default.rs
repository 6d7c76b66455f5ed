//! The pool that a device has by itself, and the pool that is current on it.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cuda_driver_sys::CUmemoryPool;

use super::{Inner, MemoryPool, Owner, Pool};
use crate::device::{Device, Support};
use crate::error::{Error, Result};
use crate::raw;

/// The pool that a device has by itself. It is shared with every other user in the process, always
/// there, and cannot be destroyed or exported:
///
/// ```compile_fail,E0599
/// # let device = cuda_mem::Driver::load().unwrap().device(0).unwrap();
/// device.default_pool().unwrap().close(); // error: no such method
/// ```
///
/// Its settings are everybody's: this crate never changes them without being told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultPool(Pool);

impl Deref for DefaultPool {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        &self.0
    }
}

/// The pool that plain stream-ordered allocations of a device come from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CurrentPool {
    /// The device's own pool.
    Default(DefaultPool),
    /// A pool made by this crate.
    Owned(MemoryPool),
    /// A pool that somebody else made and may destroy: only its handle.
    Foreign(CUmemoryPool),
}

/// The pools that are alive and ours, to recognise a handle that the driver answers.
static POOLS: Mutex<Vec<(usize, Weak<Inner>)>> = Mutex::new(Vec::new());

pub(super) fn remember(pool: &Arc<Inner>) {
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    pools.push((pool.raw.addr(), Arc::downgrade(pool)));
}

/// Before the handle is destroyed: afterwards the driver may use it for another pool.
pub(super) fn forget(raw: CUmemoryPool) {
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    pools.retain(|(known, _)| *known != raw.addr());
}

fn find(device: Device, raw: CUmemoryPool) -> Option<MemoryPool> {
    let pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = pools.iter().filter(|(known, _)| *known == raw.addr());
    known
        .filter_map(|(_, pool)| pool.upgrade())
        .find(|pool| pool.device == device)
        .map(|pool| MemoryPool(Pool(pool)))
}

impl Device {
    /// The pool that this device has by itself. Creates no context.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) if the device has no pools; else as the driver
    /// answers.
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// # let device = cuda_mem::Driver::load()?.device(0)?;
    /// # let stream = device.primary_context()?.stream()?;
    /// let buffer = device.default_pool()?.alloc::<u8>(&stream, 100)?;
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuDeviceGetDefaultMemPool")]
    pub fn default_pool(&self) -> Result<DefaultPool> {
        self.require_pools()?;
        // SAFETY: the device is of this driver.
        let raw = unsafe { raw::pool::default(self.driver().table(), self.as_raw()) }?;
        Ok(DefaultPool(Pool(Arc::new(Inner {
            device: *self,
            raw,
            owner: Owner::Driver,
        }))))
    }

    /// The pool that plain stream-ordered allocations of this device come from.
    ///
    /// # Errors
    ///
    /// As [`default_pool`](Self::default_pool).
    #[doc(alias = "cuDeviceGetMemPool")]
    pub fn current_pool(&self) -> Result<CurrentPool> {
        let default = self.default_pool()?;
        // SAFETY: the device is of this driver.
        let raw = unsafe { raw::pool::current(self.driver().table(), self.as_raw()) }?;
        if raw == default.as_raw() {
            return Ok(CurrentPool::Default(default));
        }
        Ok(match find(*self, raw) {
            Some(pool) => CurrentPool::Owned(pool),
            None => CurrentPool::Foreign(raw),
        })
    }

    /// Makes `pool` the one that plain stream-ordered allocations of this device come from, also
    /// those of other libraries. It does not keep the pool: when that is destroyed, the device's own
    /// is current again (R25).
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the pool is of another device.
    ///
    /// ```
    /// use cuda_mem::{CurrentPool, Driver, MemoryPool};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let pool = MemoryPool::builder(&device).build()?;
    /// device.set_current_pool(&pool)?;
    /// assert_eq!(device.current_pool()?, CurrentPool::Owned(pool.clone()));
    /// pool.close().unwrap();
    /// assert!(matches!(device.current_pool()?, CurrentPool::Default(_)));
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuDeviceSetMemPool")]
    pub fn set_current_pool(&self, pool: &Pool) -> Result<()> {
        if pool.device() != *self {
            return Err(Error::invalid(format!(
                "{pool:?} cannot be current on {self:?}: a current pool is one of its device"
            )));
        }
        // SAFETY: device and pool are live and of one driver.
        unsafe { raw::pool::set_current(self.driver().table(), self.as_raw(), pool.as_raw()) }
            .map_err(|error| error.asked(|| format!("{pool:?}")))
    }

    pub(super) fn require_pools(&self) -> Result<()> {
        match self.supports_memory_pools()? {
            Support::Yes => Ok(()),
            Support::No(reason) => Err(Error::not_supported(format!(
                "{self:?} has no memory pools: {reason}"
            ))),
        }
    }
}
