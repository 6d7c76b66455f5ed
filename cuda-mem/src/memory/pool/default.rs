//! The pools that are there by themselves, and the pools that are current.

use std::ops::Deref;
use std::sync::{Arc, Weak};

use cuda_driver_sys::{CUmemoryPool, CudaVersion};

use super::{Inner, MemoryPool, Owner, Pool};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::lock::Lock;
use crate::driver::Driver;
use crate::driver::device::{Device, Support};
use crate::driver::location::{AllocationType, Location};
use crate::driver::raw;

/// The pool that a device, or another place, has by itself. It is shared with every other user in the process, always
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

/// The pool that plain stream-ordered allocations of a device, or another place, come from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CurrentPool {
    /// The pool that the place has by itself.
    Default(DefaultPool),
    /// A pool made by this crate.
    Owned(MemoryPool),
    /// A pool that somebody else made and may destroy: only its handle.
    Foreign(CUmemoryPool),
}

// SAFETY: the foreign handle is only a number here: whoever gives it to the driver vouches for it.
unsafe impl Send for CurrentPool {}
// SAFETY: as for `Send`.
unsafe impl Sync for CurrentPool {}

/// The pools that are alive and ours, to recognise a handle that the driver answers.
static POOLS: Lock<Vec<(Driver, usize, Weak<Inner>)>> = Lock::new(Vec::new());

/// The default pools that were asked for. They live as long as the process, and all handles of one
/// share what this crate knows of it.
static DEFAULTS: Lock<Vec<DefaultPool>> = Lock::new(Vec::new());

pub(super) fn remember(pool: &Arc<Inner>) {
    if let Some(mut pools) = POOLS.lock_unless_forked() {
        pools.push((pool.driver, pool.raw.addr(), Arc::downgrade(pool)));
    }
}

/// Before the handle is destroyed: afterwards the driver may use it for another pool.
pub(super) fn forget(driver: Driver, raw: CUmemoryPool) {
    if let Some(mut pools) = POOLS.lock_unless_forked() {
        pools.retain(|(owner, known, _)| *owner != driver || *known != raw.addr());
    }
}

fn find(driver: Driver, raw: CUmemoryPool) -> Option<MemoryPool> {
    let pools = POOLS.lock_unless_forked()?;
    // Handles of two drivers may have the same value.
    let known = pools
        .iter()
        .find(|(owner, known, _)| *owner == driver && *known == raw.addr());
    let pool = known.and_then(|(_, _, pool)| pool.upgrade());
    pool.map(|pool| MemoryPool(Pool(pool)))
}

/// The one value for a default pool's handle.
fn default_of(
    driver: Driver,
    place: (Location, AllocationType),
    raw: CUmemoryPool,
) -> Result<DefaultPool> {
    let mut defaults = DEFAULTS.lock()?;
    let known = defaults
        .iter()
        .find(|pool| pool.as_raw() == raw && pool.driver() == driver);
    if let Some(known) = known {
        return Ok(known.clone());
    }
    let pool = DefaultPool(Pool(Arc::new(Inner::new(
        driver,
        place,
        raw,
        Owner::Nobody,
    ))));
    defaults.push(pool.clone());
    Ok(pool)
}

/// What a handle is that the driver answered as current.
fn current_of(driver: Driver, raw: CUmemoryPool, default: DefaultPool) -> CurrentPool {
    if raw == default.as_raw() {
        return CurrentPool::Default(default);
    }
    match find(driver, raw) {
        Some(pool) => CurrentPool::Owned(pool),
        None => CurrentPool::Foreign(raw),
    }
}

/// A pool that is to be destroyed is not current any more.
pub(super) fn unset_current(
    driver: Driver,
    (location, allocation_type): (Location, AllocationType),
    raw: CUmemoryPool,
) -> Result<()> {
    let table = driver.table();
    if let (Location::Device(device), AllocationType::Pinned) = (location, allocation_type) {
        let device = device.as_raw();
        // SAFETY: the device is of this driver.
        if unsafe { raw::pool::current(table, device) }? != raw {
            return Ok(());
        }
        // SAFETY: as above.
        let default = unsafe { raw::pool::default(table, device) }?;
        // SAFETY: as above, and the pool is live.
        return unsafe { raw::pool::set_current(table, device, default) };
    }
    if driver.version() < CudaVersion::new(13, 0) {
        return Ok(());
    }
    let (place, kind) = (location.to_raw(), allocation_type.to_raw());
    // SAFETY: the pool was made for this place and type.
    let current = unsafe { raw::pool::current_at(table, place, kind) };
    match current {
        Ok(current) if current == raw => {}
        Ok(_) => return Ok(()),
        // Its place is only a preference, and there may be no current pool of it.
        Err(error)
            if allocation_type == AllocationType::Managed
                && error.kind() == ErrorKind::InvalidValue =>
        {
            return Ok(());
        }
        Err(error) => return Err(error),
    }
    // SAFETY: as above.
    let default = unsafe { raw::pool::default_at(table, place, kind) }?;
    // SAFETY: as above, and the pool is live.
    unsafe { raw::pool::set_current_at(table, place, kind, default) }
}

impl Device {
    /// The pool that this device has by itself. Creates no context. Two driver calls and a lock: keep the
    /// handle.
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
        let place = (Location::Device(*self), AllocationType::Pinned);
        default_of(self.driver(), place, raw)
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
        Ok(current_of(self.driver(), raw, default))
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
    /// use cuda_mem::{Driver, MemoryPool};
    /// use cuda_mem::memory::CurrentPool;
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
        pool.require_healthy()?;
        if pool.device() != Some(*self) {
            return Err(Error::invalid(format!(
                "{pool} cannot be current on {self}: a current pool is one of its device"
            )));
        }
        // SAFETY: device and pool are live and of one driver.
        unsafe { raw::pool::set_current(self.driver().table(), self.as_raw(), pool.as_raw()) }
            .map_err(|error| error.asked(|| pool.to_string()))
    }

    pub(super) fn require_pools(&self) -> Result<()> {
        match self.supports_memory_pools()? {
            Support::Yes => Ok(()),
            Support::No(reason) => Err(Error::not_supported(format!(
                "{self} has no memory pools: {reason}"
            ))),
        }
    }
}

impl Driver {
    /// The pool that a place has by itself, for memory of this type. Needs CUDA 13.0; for devices and
    /// pinned memory there is [`Device::default_pool`], which does not.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) if the driver is too old or the place has no
    /// pools; [`InvalidValue`](crate::ErrorKind::InvalidValue) if no pool is of this place and type: managed
    /// ones are [`Anywhere`](Location::Anywhere), pinned ones never. Else as the driver answers.
    ///
    /// ```
    /// use cuda_mem::Driver;
    /// use cuda_mem::driver::{AllocationType, Location};
    /// # cuda_sim::use_if_no_driver();
    /// let driver = Driver::load()?;
    /// match driver.default_pool_at(Location::Host, AllocationType::Pinned) {
    ///     Ok(pool) => assert_eq!(pool.location(), Location::Host),
    ///     Err(error) => println!("{error}"),
    /// }
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuMemGetDefaultMemPool")]
    pub fn default_pool_at(
        &self,
        location: Location,
        allocation_type: AllocationType,
    ) -> Result<DefaultPool> {
        let location = location.known(*self);
        let allocation_type = allocation_type.known();
        self.require_pools_at(location)?;
        let (place, kind) = (location.to_raw(), allocation_type.to_raw());
        // SAFETY: the driver refuses a location that it does not know.
        let raw = unsafe { raw::pool::default_at(self.table(), place, kind) }
            .map_err(|error| error.asked(|| format!("{allocation_type} memory on {location}")))?;
        default_of(*self, (location, allocation_type), raw)
    }

    /// The pool that plain stream-ordered allocations of this place and type come from. Needs CUDA
    /// 13.0.
    ///
    /// # Errors
    ///
    /// As [`default_pool_at`](Self::default_pool_at).
    #[doc(alias = "cuMemGetMemPool")]
    pub fn current_pool_at(
        &self,
        location: Location,
        allocation_type: AllocationType,
    ) -> Result<CurrentPool> {
        let default = self.default_pool_at(location, allocation_type)?;
        let (place, kind) = (location.to_raw(), allocation_type.to_raw());
        // SAFETY: as in `default_pool_at`.
        let raw = unsafe { raw::pool::current_at(self.table(), place, kind) }
            .map_err(|error| error.asked(|| format!("{allocation_type} memory on {location}")))?;
        Ok(current_of(*self, raw, default))
    }

    /// Makes `pool` the current one of its own place and type. It does not keep the pool: when that is
    /// destroyed, the default is current again (R25). Needs CUDA 13.0; for devices and pinned memory
    /// there is [`Device::set_current_pool`], which does not.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the pool is of another driver; else as
    /// [`default_pool_at`](Self::default_pool_at).
    #[doc(alias = "cuMemSetMemPool")]
    pub fn set_current_pool_at(&self, pool: &Pool) -> Result<()> {
        pool.require_healthy()?;
        if pool.driver() != *self {
            return Err(Error::invalid(format!("{pool} belongs to another driver")));
        }
        self.require_pools_at(pool.location())?;
        let (place, kind) = (pool.location().to_raw(), pool.allocation_type().to_raw());
        // SAFETY: the pool is live and of this driver.
        unsafe { raw::pool::set_current_at(self.table(), place, kind, pool.as_raw()) }
            .map_err(|error| error.asked(|| pool.to_string()))
    }

    fn require_pools_at(&self, location: Location) -> Result<()> {
        let since = CudaVersion::new(13, 0);
        self.require_version("the pool of a place and type", since)?;
        match location {
            Location::Device(device) if device.driver() != *self => Err(Error::invalid(format!(
                "{device} belongs to another driver"
            ))),
            Location::Device(device) => device.require_pools(),
            _ => Ok(()),
        }
    }
}
