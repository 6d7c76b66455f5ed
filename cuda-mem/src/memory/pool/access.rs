//! Device access to the memory of a pool.

use std::fmt;

use std::sync::atomic::Ordering;

use cuda_driver_sys::{CUmemAccess_flags, CUmemAccessDesc, CUmemPool_attribute, CudaVersion};

use super::pending_destroy::{self, PendingDestroy};
use super::{Inner, MemoryPool, Pool};
use crate::base::error::{Error, Result};
use crate::base::report::HookDeferringGuard;
use crate::driver::device::Device;
use crate::driver::location::{AllocationType, Location};
use crate::driver::raw;
use crate::stream::Reach;
use crate::stream::recording;

/// What a device may do with the memory of a pool.
#[doc(alias = "CUmemAccess_flags")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Access {
    /// None. Copies with `cuMemcpyPeerAsync` still work.
    None,
    /// Read only. The driver does not offer this for pools.
    Read,
    /// Read and write.
    ReadWrite,
    /// A kind of access newer than this crate, as the driver's number.
    Other(u32),
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.pad("no access"),
            Self::Read => f.pad("access to read"),
            Self::ReadWrite => f.pad("access to read and write"),
            Self::Other(number) => write!(f, "access of kind {number}"),
        }
    }
}

/// `device 1: access to read and write, device 2: no access`.
pub(crate) fn list_of<P: fmt::Display>(all: &[(P, Access)]) -> String {
    let each = all.iter().map(|(who, access)| format!("{who}: {access}"));
    each.collect::<Vec<_>>().join(", ")
}

impl Access {
    pub(crate) fn to_raw(self) -> CUmemAccess_flags {
        match self {
            Self::None => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE,
            Self::Read => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
            Self::ReadWrite => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            Self::Other(number) => CUmemAccess_flags(number),
        }
    }

    pub(crate) fn from_raw(raw: CUmemAccess_flags) -> Self {
        match raw {
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE => Self::None,
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ => Self::Read,
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE => Self::ReadWrite,
            CUmemAccess_flags(number) => Self::Other(number),
        }
    }
}

impl Device {
    /// Whether this device can be given access to the memory of `peer`. A device is not a peer of itself. Creates
    /// no context.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the devices belong to two drivers; otherwise any error
    /// from the driver.
    #[doc(alias = "cuDeviceCanAccessPeer")]
    pub fn can_access_peer(&self, peer: &Device) -> Result<bool> {
        self.driver()
            .require_same(peer.driver(), format_args!("{self} and {peer}"))?;
        // SAFETY: both devices are of this driver.
        unsafe { raw::device::can_access_peer(self.driver().table(), self.as_raw(), peer.as_raw()) }
    }
}

impl Reach for Pool {
    #[inline]
    fn require_reach(&self, device: Device) -> Result<()> {
        if self.reaches(device) {
            return Ok(());
        }
        self.ask_reach(device)
    }
}

impl Pool {
    /// The access of `device` to the memory of this pool. The pool's own device has full access. Devices have no
    /// access to host pools by default. Managed memory is always accessible to every device.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the device belongs to another driver; otherwise any
    /// error from the driver.
    #[doc(alias = "cuMemPoolGetAccess")]
    pub fn access(&self, device: &Device) -> Result<Access> {
        self.0.check_driver(device)?;
        // The driver returns "none" here, but lets every device use the memory (R31, measured).
        if self.0.allocation_type == AllocationType::Managed {
            return Ok(Access::ReadWrite);
        }
        let location = Location::Device(*device).to_raw();
        // SAFETY: the pool is live.
        let flags = self
            .beside_captures(|table| unsafe { raw::pool::access(table, self.0.raw, location) })
            .map_err(|error| error.asked(|| format!("{device} and {self}")))?;
        Ok(Access::from_raw(flags))
    }

    /// Sets the access of devices to the memory of this pool, including memory already allocated, in one driver
    /// call: either all changes take effect or none. Best done once, when the pool is created
    /// ([`PoolBuilder::accessible_from`](super::PoolBuilder::accessible_from)): later the cost grows with the
    /// amount of memory.
    ///
    /// Access can be revoked only while no memory of the pool is allocated and the host has seen every free
    /// complete, as for [closing](MemoryPool::close) a pool: the driver does not wait for queued work (R50,
    /// measured), and that work would touch memory without access. To check this, the pool first releases its
    /// unused memory to the device. [`set_access_unchecked`](Self::set_access_unchecked) does not check.
    ///
    /// Access granted here is revoked before the pool is destroyed, because the driver may reuse the handle for
    /// another pool.
    ///
    /// # Errors
    ///
    /// All of these before anything is changed: [`NotSupported`](crate::ErrorKind::NotSupported) for a device
    /// without peer access to this one, and for read-only access; [`InvalidValue`](crate::ErrorKind::InvalidValue)
    /// for revoking the access of the pool's own device, for a device listed twice, and for a device of another
    /// driver; [`NotPermitted`](crate::ErrorKind::NotPermitted) for any change to a pool that placements
    /// [share](crate::placement::PlacedBuffer::pool), because later placements rely on its access;
    /// [`InUse`](crate::ErrorKind::InUse) for revoking access while memory is allocated, or before the host has
    /// seen its free complete: drop the buffers and synchronise their streams first. Revoking access is also
    /// [`Capturing`](crate::ErrorKind::Capturing) while this crate captures a stream, and
    /// [`NotSupported`](crate::ErrorKind::NotSupported) before CUDA 11.3, where usage cannot be queried. Otherwise
    /// any driver error.
    ///
    /// ```
    /// use cuda_mem::{Access, Driver, MemoryPool};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let driver = Driver::load()?;
    /// let device = driver.device(0)?;
    /// let pool = MemoryPool::builder(&device).build()?;
    /// assert_eq!(pool.access(&device)?, Access::ReadWrite);
    /// let peers: Vec<_> = driver
    ///     .devices()?
    ///     .into_iter()
    ///     .filter(|peer| peer.can_access_peer(&device).unwrap_or(false))
    ///     .map(|peer| (peer, Access::ReadWrite))
    ///     .collect();
    /// pool.set_access(peers)?;
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuMemPoolSetAccess")]
    pub fn set_access(&self, access: impl IntoIterator<Item = (Device, Access)>) -> Result<()> {
        let access: Vec<_> = access.into_iter().collect();
        // SAFETY: what loses access is not in use; else this is an error.
        unsafe { self.change_access(&access, || self.require_unused()) }
    }

    /// Like [`set_access`](Self::set_access), but access may be revoked while memory of the pool is allocated.
    ///
    /// # Safety
    ///
    /// No work that uses memory of this pool on a device that loses access may be queued or running, and none may
    /// be submitted afterwards: no slice on a stream of that device may be left, and no buffer on one.
    ///
    /// # Errors
    ///
    /// Same as [`set_access`](Self::set_access), except those for revoking access.
    #[doc(alias = "cuMemPoolSetAccess")]
    pub unsafe fn set_access_unchecked(
        &self,
        access: impl IntoIterator<Item = (Device, Access)>,
    ) -> Result<()> {
        let access: Vec<_> = access.into_iter().collect();
        // SAFETY: the caller's.
        unsafe { self.change_access(&access, || Ok(())) }
    }

    /// # Safety
    ///
    /// Unless `check` is an error, devices that lose access must not be using the memory.
    unsafe fn change_access(
        &self,
        access: &[(Device, Access)],
        check: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.require_healthy()?;
        let mut entries = Vec::with_capacity(access.len());
        for (index, (device, wanted)) in access.iter().enumerate() {
            self.check_access(device, *wanted)?;
            if access[..index].iter().any(|(before, _)| before == device) {
                return Err(Error::invalid(format!("{device} is named twice")));
            }
            // The device has this access anyway.
            let has_it =
                self.device() == Some(*device) || self.0.allocation_type == AllocationType::Managed;
            if !has_it {
                entries.push(CUmemAccessDesc {
                    location: Location::Device(*device).to_raw(),
                    flags: wanted.to_raw(),
                });
            }
        }
        if entries.is_empty() {
            return Ok(());
        }
        self.require_own_access()?;
        // Held over the call, so that the record matches the driver's last change.
        let mut granted = self.granted()?;
        let mut is_taken = false;
        for (device, wanted) in access {
            if *wanted == Access::None && self.access(device)? != Access::None {
                is_taken = true;
                // From now on, any use of the memory there asks the driver, and waits for the lock.
                self.0.reach.fetch_and(!bit(*device), Ordering::Relaxed);
            }
        }
        if is_taken {
            check()?;
        }
        // SAFETY: the pool is live. Taking access does not wait (R50, measured), so work that is queued would lose it:
        // the devices that lose it have none, as was checked.
        let set = self
            .beside_captures(|table| unsafe { raw::pool::set_access(table, self.0.raw, &entries) });
        if let Err(error) = set {
            if !error.had_no_effect() {
                // It may be carried out all the same; then it is taken back before the pool serves others.
                for (device, wanted) in access {
                    let is_given = *wanted != Access::None && self.device() != Some(*device);
                    if is_given && !granted.contains(device) {
                        granted.push(*device);
                    }
                }
            }
            return Err(error.asked(|| format!("{self} with {}", list_of(access))));
        }
        for (device, wanted) in access {
            granted.retain(|known| known != device);
            let bit = bit(*device);
            if *wanted == Access::None {
                self.0.reach.fetch_and(!bit, Ordering::Relaxed);
            } else if self.device() != Some(*device) {
                granted.push(*device);
                self.0.reach.fetch_or(bit, Ordering::SeqCst);
            }
        }
        self.forget_reach_if_failed();
        Ok(())
    }

    /// `Ok` if no device can be using the memory, because all of it has been freed.
    fn require_unused(&self) -> Result<()> {
        let driver = self.0.driver;
        driver.require_version("taking access to a pool", CudaVersion::new(11, 3))?;
        // First the check that does not change the pool.
        let used = self.wide(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?;
        // SAFETY: the pool is live, and the driver new enough.
        if used > 0 || !unsafe { pending_destroy::is_idle(driver, self.0.raw) }? {
            return Err(Error::memory_in_use());
        }
        Ok(())
    }

    fn require_own_access(&self) -> Result<()> {
        if !self.0.access_is_fixed.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(Error::not_permitted(format!(
            "{self} serves all placements for the same devices in its context, so its access is fixed; \
             build a pool of your own, or request a placement with other peers"
        )))
    }

    fn check_access(&self, device: &Device, wanted: Access) -> Result<()> {
        self.0.check_driver(device)?;
        if self.device() == Some(*device) {
            return if wanted == Access::ReadWrite {
                Ok(())
            } else {
                Err(Error::invalid(format!(
                    "{device} owns {self}; its access cannot be less than {}",
                    Access::ReadWrite
                )))
            };
        }
        if self.0.allocation_type == AllocationType::Managed && wanted != Access::ReadWrite {
            return Err(Error::invalid(format!(
                "{self} is everybody's; nobody's access can be less than {}",
                Access::ReadWrite
            )));
        }
        if !matches!(wanted, Access::None | Access::ReadWrite) {
            return Err(Error::not_supported(format!(
                "pools give {} or {}, and {wanted} was asked for",
                Access::None,
                Access::ReadWrite
            )));
        }
        let Some(owner) = self.device() else {
            return Ok(());
        };
        if wanted == Access::ReadWrite && !device.can_access_peer(&owner)? {
            return Err(Error::not_supported(format!(
                "{device} cannot reach the memory of {owner}: they are no peers on this machine"
            )));
        }
        Ok(())
    }

    /// The hook may ask for access.
    fn granted(&self) -> Result<HookDeferringGuard<'_, Vec<Device>>> {
        self.0.granted.lock().map(HookDeferringGuard::new)
    }

    /// Whether `device` can access the memory: one load, if it is known.
    #[inline]
    pub(crate) fn reaches(&self, device: Device) -> bool {
        self.is_in_reach(self.place_in_reach(device))
    }

    /// The argument of [`is_in_reach`](Self::is_in_reach) for the device; for callers that check twice.
    #[inline]
    pub(crate) fn place_in_reach(&self, device: Device) -> u64 {
        if self.0.driver == device.driver() {
            bit(device)
        } else {
            0
        }
    }

    /// See [`reaches`](Self::reaches).
    #[inline]
    pub(crate) fn is_in_reach(&self, place: u64) -> bool {
        self.0.reach.load(Ordering::Relaxed) & place != 0
    }

    /// `Ok` if `device` can access the memory, according to the driver.
    #[cold]
    fn ask_reach(&self, device: Device) -> Result<()> {
        self.require_healthy()?;
        // Held over the query, so that no thread revokes the access before it is recorded.
        let _granted = self.granted()?;
        if self.access(&device)? == Access::ReadWrite {
            // Other code has granted it.
            self.0.reach.fetch_or(bit(device), Ordering::SeqCst);
            self.forget_reach_if_failed();
            return self.require_healthy();
        }
        Err(Error::invalid(format!(
            "{device} has no access to {self}; take a stream of the pool's device, or give access \
             with `Pool::set_access`"
        )))
    }
}

impl MemoryPool {
    /// From now on, device access to the memory cannot be changed.
    pub(crate) fn fix_access(&self) {
        self.0.0.access_is_fixed.store(true, Ordering::Relaxed);
    }
}

/// The bit of a device in [`Inner::reach`]; for devices without one, the driver is asked.
#[inline]
fn bit(device: Device) -> u64 {
    1_u64.checked_shl(device.ordinal()).unwrap_or(0)
}

/// The devices that have access to the memory of a new pool.
pub(super) fn reach_at_first(location: Location, allocation_type: AllocationType) -> u64 {
    match (location, allocation_type) {
        (_, AllocationType::Managed) => u64::MAX,
        (Location::Device(device), _) => bit(device),
        _ => 0,
    }
}

impl Inner {
    fn check_driver(&self, device: &Device) -> Result<()> {
        self.driver
            .require_same(device.driver(), format_args!("{device} and the pool"))
    }

    /// The pool was not ended after all, so the devices get their access back. If the driver refuses, they count as
    /// devices without it from now on, but it is withdrawn once more before the pool ends: some may have it.
    pub(super) fn grant_again(&mut self, pending_destroy: &PendingDestroy) {
        if set_all(pending_destroy, Access::ReadWrite).is_err() {
            for device in self.granted.get_mut().iter() {
                *self.reach.get_mut() &= !bit(*device);
            }
        }
    }
}

/// Revokes the access that was granted, before the driver may reuse the handle for another pool (R27).
pub(super) fn withdraw(pending_destroy: &PendingDestroy) -> Result<()> {
    set_all(pending_destroy, Access::None)
}

/// Sets the access of all devices that this crate granted any.
fn set_all(pending_destroy: &PendingDestroy, access: Access) -> Result<()> {
    let entries: Vec<_> = pending_destroy
        .granted
        .iter()
        .map(|device| CUmemAccessDesc {
            location: Location::Device(*device).to_raw(),
            flags: access.to_raw(),
        })
        .collect();
    if entries.is_empty() {
        return Ok(());
    }
    let table = pending_destroy.driver.table();
    recording::with_relaxed_capture_mode(table, || {
        // SAFETY: the pool is live, and no memory of it is handed out.
        unsafe { raw::pool::set_access(table, pending_destroy.raw, &entries) }
    })
}
