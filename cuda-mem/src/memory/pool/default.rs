//! Default pools and current pools.

use std::ops::Deref;
use std::sync::{Arc, Weak};

use cuda_driver_sys::{CUmemoryPool, CudaVersion};

use super::{Inner, MemoryPool, Owner, Pool};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::lock::Lock;
use crate::driver::Driver;
use crate::driver::capabilities::{Capability, Support};
use crate::driver::device::Device;
use crate::driver::location::{AllocationType, Location};
use crate::driver::raw;

/// The default pool of a device or another location. It is shared with every other user in the process, always
/// exists, and cannot be destroyed or exported:
///
/// ```compile_fail,E0599
/// # let device = cuda_mem::Driver::load().unwrap().device(0).unwrap();
/// device.default_pool().unwrap().close(); // error: no such method
/// ```
///
/// Its settings are shared by all users: this crate never changes them unless asked to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefaultPool(Pool);

impl Deref for DefaultPool {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        &self.0
    }
}

/// The pool that plain stream-ordered allocations of a device or another location come from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CurrentPool {
    /// The default pool of the location.
    Default(DefaultPool),
    /// A pool made by this crate.
    Owned(MemoryPool),
    /// The handle of a pool that other code created and may destroy.
    Foreign(CUmemoryPool),
}

// SAFETY: the foreign handle is only a number here: whoever gives it to the driver vouches for it.
unsafe impl Send for CurrentPool {}
// SAFETY: as for `Send`.
unsafe impl Sync for CurrentPool {}

/// The live pools of this crate, to recognise a handle returned by the driver.
static POOLS: Lock<Vec<(Driver, usize, Weak<Inner>)>> = Lock::new(Vec::new());

/// The default pools requested so far. They live as long as the process, and all handles to one share this crate's
/// state for it.
static DEFAULTS: Lock<Vec<DefaultPool>> = Lock::new(Vec::new());

pub(super) fn remember(pool: &Arc<Inner>) {
    if let Some(mut pools) = POOLS.lock_unless_forked() {
        pools.push((pool.driver, pool.raw.addr(), Arc::downgrade(pool)));
    }
}

/// Called before the handle is destroyed: afterwards the driver may reuse it for another pool.
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

/// The single shared value for a default pool's handle.
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

/// Identifies a handle that the driver returned as current.
fn current_of(driver: Driver, raw: CUmemoryPool, default: DefaultPool) -> CurrentPool {
    if raw == default.as_raw() {
        return CurrentPool::Default(default);
    }
    match find(driver, raw) {
        Some(pool) => CurrentPool::Owned(pool),
        None => CurrentPool::Foreign(raw),
    }
}

/// Makes a pool that is about to be destroyed no longer current.
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
    /// The default pool of this device. Creates no context. Takes two driver calls and a lock, so keep the handle.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) if the device has no pools; otherwise any error from the
    /// driver.
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
    /// Same as [`default_pool`](Self::default_pool).
    #[doc(alias = "cuDeviceGetMemPool")]
    pub fn current_pool(&self) -> Result<CurrentPool> {
        let default = self.default_pool()?;
        // SAFETY: the device is of this driver.
        let raw = unsafe { raw::pool::current(self.driver().table(), self.as_raw()) }?;
        Ok(current_of(self.driver(), raw, default))
    }

    /// Makes `pool` the one that plain stream-ordered allocations of this device come from, including those of
    /// other libraries. The device does not keep the pool alive: when the pool ends, the device's default pool is
    /// current again (R25).
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the pool belongs to another device.
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
        pool.beside_captures(|table| unsafe {
            raw::pool::set_current(table, self.as_raw(), pool.as_raw())
        })
        .map_err(|error| error.asked(|| pool.to_string()))
    }

    pub(super) fn require_pools(&self) -> Result<()> {
        match self.support(Capability::MemoryPools)? {
            Support::Yes => Ok(()),
            Support::No(reason) => Err(Error::not_supported(format!(
                "{self} has no memory pools: {reason}"
            ))),
        }
    }
}

impl Driver {
    /// The default pool of a location for this type of memory. Needs CUDA 13.0; for devices and pinned memory use
    /// [`Device::default_pool`], which does not.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) if the driver is too old or the location has no pools;
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if no pool has this combination of location and type:
    /// managed pools are at [`Anywhere`](Location::Anywhere), pinned ones never are. Otherwise any error from the
    /// driver.
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

    /// The pool that plain stream-ordered allocations of this location and type come from. Needs CUDA 13.0.
    ///
    /// # Errors
    ///
    /// Same as [`default_pool_at`](Self::default_pool_at).
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

    /// Makes `pool` the current one of its own location and type. This does not keep the pool alive: when it ends, the
    /// default is current again (R25). Needs CUDA 13.0; for devices and pinned memory use
    /// [`Device::set_current_pool`], which does not.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the pool belongs to another driver; otherwise same as
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
        pool.beside_captures(|table| unsafe {
            raw::pool::set_current_at(table, place, kind, pool.as_raw())
        })
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
