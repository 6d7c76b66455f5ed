//! Memory pools: those that this process owns, and the default pool of a device.

mod access;
mod alloc;
mod attributes;
mod builder;
mod default;
mod free;
mod pending_destroy;
mod properties;
mod recorded;
mod renew;
mod resource;
mod settings;
mod sharing;
mod snapshot;
mod spare;
mod support;
mod threshold;

pub use access::Access;
pub(crate) use access::list_of;
pub(crate) use alloc::{TOO_MUCH, is_refused_beside_capture, too_much};
pub use builder::PoolBuilder;
pub use default::{CurrentPool, DefaultPool};
pub(crate) use free::{free, free_harmlessly, free_otherwise};
use pending_destroy::End;
pub use properties::PoolProperties;
#[cfg(any(target_os = "linux", windows))]
pub(crate) use sharing::no_pool_ends;

pub use settings::{ReleaseThreshold, ReusePolicy};
pub use threshold::RaisedThreshold;

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use cuda_driver_sys::CUmemoryPool;

use crate::base::error::{Error, Failed, Result};
use crate::base::lock::Lock;
use crate::base::report;
use crate::driver::Driver;
use crate::driver::device::Device;
use crate::driver::location::{AllocationType, Location};
use crate::driver::raw;
use crate::ledger::{self, Item, LedgerKind};
use crate::stream::{deferred, recording};

/// A stream-ordered memory pool, owned by this process or the default of a device. Needs CUDA 11.2.
///
/// [`MemoryPool`] and [`DefaultPool`] dereference to it: settings, statistics and allocation are the same for both.
/// This is a handle that can be cloned; all methods may be called from any thread, even concurrently.
#[derive(Clone)]
pub struct Pool(Arc<Inner>);

/// A memory pool that this process owns.
///
/// A handle that can be cloned. Buffers stay valid after the last handle is dropped: the pool ends once all its
/// memory has been freed, at a call of this crate that synchronises, creates a pool, or ends a stream or a context: at
/// the next one, or at one of the next 64 if many were in vain; a wait for a context tries always. It then returns all memory to the driver, and is reused for the next pool with the same properties,
/// because drivers crash if a pool is destroyed while threads wait
/// ([`destroy_spares`](MemoryPool::destroy_spares)). Pools that can be shared with other processes are destroyed.
/// Most methods are in [`Pool`].
///
/// ```
/// use cuda_mem::{Driver, MemoryPool, ReleaseThreshold, ReusePolicy};
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
///
/// let pool = MemoryPool::builder(&device)
///     .release_threshold(ReleaseThreshold::Never)
///     .reuse(ReusePolicy::DETERMINISTIC)
///     .build()?;
/// let ones = pool.alloc_from(&stream, &[1.0f32; 1000])?;
/// assert_eq!(ones.to_vec()?, [1.0; 1000]);
/// assert_eq!(pool.stats()?.used.current, 4000);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPool(Pool);

impl Deref for MemoryPool {
    type Target = Pool;

    #[inline]
    fn deref(&self) -> &Pool {
        &self.0
    }
}

struct Inner {
    driver: Driver,
    location: Location,
    allocation_type: AllocationType,
    raw: CUmemoryPool,
    owner: Owner,
    /// The devices that can access the memory, one bit per ordinal. If a bit is not set, the driver has to be
    /// asked.
    reach: AtomicU64,
    /// The devices that this crate granted access.
    granted: Lock<Vec<Device>>,
    /// Whether other code relies on the access settings.
    access_is_fixed: AtomicBool,
    scopes: Lock<threshold::Scopes>,
    /// The state of its sharing with other processes.
    sharing: sharing::Sharing,
    /// The kind of pool it can be reused for once it has ended.
    kind: Option<spare::Kind>,
    recording: Option<Box<recorded::PoolRecorder>>,
}

/// The owner, which destroys the pool.
enum Owner {
    /// This crate, with the last handle.
    Us,
    /// None: it is a default pool, or already destroyed.
    Nobody,
}

// SAFETY: pools belong to no thread: their functions take explicit handles and need no current
// context, and the driver locks inside (measured with 16 threads on one pool).
unsafe impl Send for Inner {}
// SAFETY: as for `Send`: every call through a shared handle is behind the driver's lock.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        if matches!(self.owner, Owner::Nobody) {
            return;
        }
        default::forget(self.driver, self.raw);
        ledger::remove(&self.item());
        report::release("memory pool", || self.pending_destroy().destroy_deferred());
    }
}

impl Inner {
    fn new(
        driver: Driver,
        (location, allocation_type): (Location, AllocationType),
        raw: CUmemoryPool,
        owner: Owner,
    ) -> Self {
        let reach = access::reach_at_first(location, allocation_type);
        Self {
            driver,
            location,
            allocation_type,
            raw,
            owner,
            reach: AtomicU64::new(reach),
            granted: Lock::default(),
            access_is_fixed: AtomicBool::new(false),
            scopes: Lock::default(),
            sharing: sharing::Sharing::default(),
            kind: None,
            recording: None,
        }
    }

    fn item(&self) -> Item {
        let device = match self.location {
            Location::Device(device) => Some(device),
            _ => None,
        };
        Item::new(LedgerKind::Pool, self.raw)
            .of(self.driver)
            .on(device)
    }

    /// The parts needed to end the pool.
    fn pending_destroy(&mut self) -> pending_destroy::PendingDestroy {
        pending_destroy::PendingDestroy {
            driver: self.driver,
            place: (self.location, self.allocation_type),
            raw: self.raw,
            granted: self.granted.get_mut().clone(),
            kind: self.kind,
            stays: *self.sharing.has_failed.get_mut(),
            has_failed: false,
            has_stepped_down: false,
        }
    }
}

impl MemoryPool {
    /// Returns a builder for a pool on `device`.
    pub fn builder(device: &Device) -> PoolBuilder {
        PoolBuilder::new(
            device.driver(),
            Location::Device(*device),
            AllocationType::Pinned,
        )
    }

    /// Returns a builder for a pool at any location, such as the host.
    ///
    /// ```
    /// use cuda_mem::{Driver, MemoryPool};
    /// use cuda_mem::driver::{AllocationType, Location};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let driver = Driver::load()?;
    /// let device = driver.device(0)?;
    /// let builder = MemoryPool::builder_at(driver, Location::HostNuma(0), AllocationType::Pinned)
    ///     .accessible_from([&device]);
    /// if builder.support()?.is_yes() {
    ///     let stream = device.primary_context()?.stream()?;
    ///     let buffer = builder.build()?.alloc_from(&stream, &[1u8, 2, 3])?;
    ///     assert_eq!(buffer.to_vec()?, [1, 2, 3]);
    /// }
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn builder_at(
        driver: Driver,
        location: Location,
        allocation_type: AllocationType,
    ) -> PoolBuilder {
        PoolBuilder::new(driver, location.known(driver), allocation_type.known())
    }

    /// Takes ownership of a pool that the driver created.
    #[track_caller]
    fn own(as_built: &PoolBuilder, raw: CUmemoryPool) -> Self {
        let place = (as_built.location, as_built.allocation_type);
        let mut inner = Inner::new(as_built.driver, place, raw, Owner::Us);
        inner.sharing.handle_types = as_built.handle_types;
        inner.kind = as_built.kind();
        inner.recording = as_built
            .recorder
            .clone()
            .map(recorded::PoolRecorder::new)
            .map(Box::new);
        ledger::insert(inner.item());
        Self::share(inner)
    }

    /// Removes the pool from the ledger: it is never to be destroyed.
    pub(crate) fn leave_ledger(&self) {
        ledger::remove(&self.0.0.item());
    }

    fn share(inner: Inner) -> Self {
        let inner = Arc::new(inner);
        default::remember(&inner);
        Self(Pool(inner))
    }

    /// Ends the pool now and returns the result, whereas dropping the last handle defers the end until the memory
    /// is freed and only reports failures. Afterwards all memory has been returned to the driver. A pool that can
    /// be shared with other processes is destroyed; if a thread is waiting at this moment, it is destroyed later,
    /// and a failure then is only reported.
    ///
    /// # Errors
    ///
    /// [`InUse`](crate::ErrorKind::InUse) while other handles exist, or buffers, or frees that the host has not
    /// seen complete: synchronise the streams first. The error contains the pool, unless the driver may have destroyed it
    /// despite the error. It is accessible from other devices as before, or, if the driver refuses that, from none:
    /// [`access`](Pool::access) tells.
    ///
    /// ```
    /// # use cuda_mem::{Driver, ErrorKind, MemoryPool};
    /// # cuda_sim::use_if_no_driver();
    /// # let device = Driver::load()?.device(0)?;
    /// let pool = MemoryPool::builder(&device).build()?;
    /// let clone = pool.clone();
    /// let failed = pool.close().unwrap_err();
    /// assert_eq!(failed.error.kind(), ErrorKind::InUse);
    /// drop(clone);
    /// failed.object.expect("it was not touched").close()?;
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuMemPoolDestroy")]
    pub fn close(self) -> Result<(), Failed<Self>> {
        let mut inner = match Arc::try_unwrap(self.0.0) {
            Ok(inner) => inner,
            Err(shared) => {
                // Another thread may have dropped its handle since.
                let others = (Arc::strong_count(&shared) - 1).max(1);
                let pool = Self(Pool(shared));
                return Err(Failed::new(Error::in_use("the pool", others), pool));
            }
        };
        // The handle in the list belongs to the shared value that this was.
        default::forget(inner.driver, inner.raw);
        let item = inner.item();
        let ended = ledger::remove(&item);
        let mut pending_destroy = inner.pending_destroy();
        // Checked twice: it stays the current pool if it cannot be closed, and while it is current, other code may
        // still allocate from it.
        let quiet = pending_destroy.is_idle();
        let quiet = match quiet {
            Ok(true) => pending_destroy.is_at_rest(),
            other => other,
        };
        let was_idle = matches!(quiet, Ok(true));
        let ended_well = match quiet {
            Ok(true) => pending_destroy.end(),
            Ok(false) => Err(Error::memory_in_use()),
            Err(error) => {
                ledger::restore(&item, ended);
                let pool = Self::share(inner);
                return Err(Failed::new(error, pool));
            }
        };
        match ended_well {
            Ok(end) => {
                inner.owner = Owner::Nobody;
                match end {
                    End::Ended(withdrawn) => withdrawn.map_err(Failed::lost),
                    End::NotYet => {
                        deferred::defer(Box::new(pending_destroy));
                        Ok(())
                    }
                }
            }
            Err(error) if error.had_no_effect() => {
                if was_idle {
                    inner.grant_again(&pending_destroy);
                }
                ledger::restore(&item, ended);
                Err(Failed::new(error, Self::share(inner)))
            }
            Err(error) => {
                // The driver may have destroyed it despite the error, and may reuse the handle.
                inner.owner = Owner::Nobody;
                Err(Failed::lost(error))
            }
        }
    }
}

impl Pool {
    /// The driver that the pool belongs to.
    #[inline]
    #[must_use]
    pub fn driver(&self) -> Driver {
        self.0.driver
    }

    /// The location of the memory; for a managed pool, its preferred location.
    #[must_use]
    pub fn location(&self) -> Location {
        self.0.location
    }

    /// The allocation type of the memory.
    #[must_use]
    pub fn allocation_type(&self) -> AllocationType {
        self.0.allocation_type
    }

    /// The device that the memory belongs to; `None` if it does not belong to a single device.
    #[inline]
    #[must_use]
    pub fn device(&self) -> Option<Device> {
        match (self.0.location, self.0.allocation_type) {
            (Location::Device(device), AllocationType::Pinned) => Some(device),
            _ => None,
        }
    }

    /// The driver's handle. It is valid as long as this pool or a clone of it exists.
    #[inline]
    #[must_use]
    pub fn as_raw(&self) -> CUmemoryPool {
        self.0.raw
    }

    #[inline]
    fn table(&self) -> &'static raw::Table {
        self.0.driver.table()
    }

    /// Makes a driver call in a way that does not invalidate captures of this crate (R113).
    #[inline]
    fn beside_captures<T>(&self, call: impl FnOnce(&raw::Table) -> Result<T>) -> Result<T> {
        let table = self.table();
        recording::relaxed_while_capturing(table, || call(table))
    }
}

/// Two handles are equal if they refer to the same pool of the same driver.
impl PartialEq for Pool {
    fn eq(&self, other: &Self) -> bool {
        // Handles of two drivers may have the same value.
        self.0.raw == other.0.raw && self.0.driver == other.0.driver
    }
}

impl Eq for Pool {}

/// Its handle and place, in words.
impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool {:p} on {}", self.0.raw, self.0.location)?;
        if self.0.allocation_type != AllocationType::Pinned {
            write!(f, " ({} memory)", self.0.allocation_type)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({:p} on {}", self.0.raw, self.0.location)?;
        if self.0.allocation_type != AllocationType::Pinned {
            write!(f, ", {:?}", self.0.allocation_type)?;
        }
        f.write_str(")")
    }
}
