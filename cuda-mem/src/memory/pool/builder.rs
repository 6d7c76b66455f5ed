//! Creating a pool.

use cuda_driver_sys::{CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS, CUmemAllocationHandleType};
use cuda_driver_sys::{CUmemPoolProps, CUmemoryPool, CudaVersion};

use super::{Access, MemoryPool, ReleaseThreshold, ReusePolicy, spare};
use crate::base::error::{Bytes, Error, Result};
use crate::driver::Driver;
use crate::driver::device::{Device, HandleTypes};
use crate::driver::location::{AllocationType, Location};
use crate::driver::{raw, security};
use crate::ledger::Recorder;
use crate::stream::deferred::After;
use crate::stream::{deferred, recording};

/// Settings of a new pool; [`build`](Self::build) creates it. From [`MemoryPool::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder makes nothing until `build`"]
pub struct PoolBuilder {
    pub(super) driver: Driver,
    pub(super) location: Location,
    pub(super) allocation_type: AllocationType,
    release_threshold: ReleaseThreshold,
    reuse: Option<ReusePolicy>,
    pub(super) max_size: Option<u64>,
    pub(super) handle_types: HandleTypes,
    pub(super) hw_decompress: bool,
    access: Vec<Device>,
    pub(super) recorder: Option<Recorder>,
}

impl PoolBuilder {
    /// The requested settings, in words.
    fn in_words(&self) -> String {
        let mut words = format!(
            "a pool of {} memory on {}",
            self.allocation_type, self.location
        );
        if let Some(bytes) = self.max_size {
            words += &format!(" of at most {}", Bytes(bytes));
        }
        if !self.handle_types.is_empty() {
            words += &format!(", with handles: {}", self.handle_types);
        }
        if self.hw_decompress {
            words += ", for hardware decompression";
        }
        words
    }

    pub(super) fn new(driver: Driver, location: Location, allocation_type: AllocationType) -> Self {
        Self {
            driver,
            location,
            allocation_type,
            release_threshold: ReleaseThreshold::default(),
            reuse: None,
            max_size: None,
            handle_types: HandleTypes::empty(),
            hw_decompress: false,
            access: Vec::new(),
            recorder: None,
        }
    }

    /// How much memory the pool keeps when streams synchronise. Default: everything.
    pub fn release_threshold(mut self, threshold: ReleaseThreshold) -> Self {
        self.release_threshold = threshold;
        self
    }

    /// When memory may move between streams. Default: whenever possible.
    ///
    /// Drivers before CUDA 11.5 can hand out memory too early under
    /// [`ALLOW_OPPORTUNISTIC`](ReusePolicy::ALLOW_OPPORTUNISTIC), so there it is off unless set explicitly.
    pub fn reuse(mut self, policy: ReusePolicy) -> Self {
        self.reuse = Some(policy);
        self
    }

    /// The maximum size of the pool in bytes; the driver may round it up (to 32 MiB on an H200). Allocating beyond
    /// it is [`OutOfMemory`](crate::ErrorKind::OutOfMemory). Not for managed memory. Needs CUDA 12.2.
    pub fn max_size(mut self, bytes: u64) -> Self {
        self.max_size = Some(bytes);
        self
    }

    /// The handle types for sharing the pool with other processes. Default: none. Not for [`Location::Host`], nor
    /// for managed memory. [`HandleTypes::FABRIC`] needs CUDA 12.3.
    pub fn handle_types(mut self, types: HandleTypes) -> Self {
        self.handle_types = types;
        self
    }

    /// Lets the decompression engine write to the pool's memory. Needs CUDA 12.8 and a device with the
    /// engine. Not for managed memory.
    #[doc(alias = "CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS")]
    pub fn hw_decompress(mut self, enabled: bool) -> Self {
        self.hw_decompress = enabled;
        self
    }

    /// Grants devices read and write access from the start, which is cheaper than calling
    /// [`set_access`](super::Pool::set_access) later. The pool's own device always has access.
    #[doc(alias = "cuMemPoolSetAccess")]
    pub fn accessible_from<'a>(mut self, devices: impl IntoIterator<Item = &'a Device>) -> Self {
        for device in devices {
            if !self.access.contains(device) {
                self.access.push(*device);
            }
        }
        self
    }

    /// Records every allocation and free of the pool, its trims, and how many bytes it holds. The default is not to
    /// record.
    ///
    /// Buffers of a pool that records are freed through it, as those of a [`Resource`](crate::Resource) are, and not by a
    /// direct call of the driver: [`into_raw`](crate::DeviceBuffer::into_raw) refuses them. Recording adds some tens of
    /// nanoseconds to each call, an allocation on the heap for each buffer, and a query of the bytes held after each
    /// allocation (CUDA 11.3).
    ///
    /// ```
    /// use cuda_mem::{Driver, MemoryPool};
    /// use cuda_mem::ledger::{Recorder, TraceAction};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let recorder = Recorder::ring(10_000);
    /// let pool = MemoryPool::builder(&device).record(&recorder).build()?;
    /// drop(pool.alloc::<u8>(&stream, 1000)?);
    /// let recording = recorder.recording();
    /// let actions: Vec<TraceAction> = recording.entries().iter().map(|entry| entry.action).collect();
    /// assert_eq!(actions, [TraceAction::Allocate, TraceAction::Reserved, TraceAction::Free]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn record(mut self, recorder: &Recorder) -> Self {
        self.recorder = Some(recorder.clone());
        self
    }

    /// Creates the pool. This reserves address space, but no memory yet, and creates no context.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) if the location has no pools, the driver is too old for a
    /// requested option, or a device cannot be given access; [`InvalidValue`](crate::ErrorKind::InvalidValue) for a
    /// maximum size of 0 or incompatible options; otherwise any driver error. On error nothing is left
    /// behind.
    ///
    /// ```
    /// # use cuda_mem::{Driver, ErrorKind, MemoryPool};
    /// # cuda_sim::use_if_no_driver();
    /// # let device = Driver::load()?.device(0)?;
    /// # let stream = device.primary_context()?.stream()?;
    /// let pool = MemoryPool::builder(&device).max_size(64 << 20).build()?;
    /// let error = pool.alloc::<u8>(&stream, 256 << 20).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    /// assert_eq!(error.out_of_memory().unwrap().asked, 256 << 20);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuMemPoolCreate")]
    #[track_caller]
    pub fn build(self) -> Result<MemoryPool> {
        // A pool that ends now may be reused for this one.
        deferred::poll(After::Call);
        let spare = self.kind().and_then(spare::take);
        let raw = spare.map_or_else(|| self.create(), Ok)?;
        // Owned from here on, so that a failure below ends the pool.
        let pool = MemoryPool::own(&self, raw);
        pool.set_release_threshold(self.release_threshold)?;
        let reuse = self.reuse.unwrap_or_else(|| self.default_reuse());
        if reuse != ReusePolicy::DRIVER_DEFAULT || spare.is_some() {
            pool.set_reuse_policy(reuse)?;
        }
        // Drivers before 11.3 have no high marks.
        if spare.is_some() && self.driver.version() >= CudaVersion::new(11, 3) {
            pool.reset_high_marks()?;
        }
        let access: Vec<_> = self
            .access
            .iter()
            .map(|device| (*device, Access::ReadWrite))
            .collect();
        pool.set_access(access)?;
        Ok(pool)
    }

    /// Calls the driver; the caller must destroy the returned pool.
    pub(super) fn create(&self) -> Result<CUmemoryPool> {
        if let Location::Device(device) = self.location {
            device.require_pools()?;
        }
        let props = self.props()?;
        let table = self.driver.table();
        // R113.
        recording::relaxed_while_capturing(table, || {
            // SAFETY: bytes that an old driver does not know are zero; newer fields passed the gate.
            unsafe { raw::pool::create(table, &props) }
        })
        .map_err(|error| error.asked(|| self.in_words()))
    }

    fn default_reuse(&self) -> ReusePolicy {
        if self.driver.version() < CudaVersion::new(11, 5) {
            ReusePolicy::DRIVER_DEFAULT - ReusePolicy::ALLOW_OPPORTUNISTIC
        } else {
            ReusePolicy::DRIVER_DEFAULT
        }
    }

    /// The requested option that needs the newest driver, and the version it needs.
    pub(super) fn newest_need(&self) -> Option<(&'static str, CudaVersion)> {
        let needs = [
            (
                self.allocation_type == AllocationType::Managed,
                "a pool of managed memory",
                CudaVersion::new(13, 0),
            ),
            (
                self.location == Location::Host,
                "a pool on the host",
                CudaVersion::new(13, 0),
            ),
            (
                self.hw_decompress,
                "a pool for hardware decompression",
                CudaVersion::new(12, 8),
            ),
            (
                self.handle_types.contains(HandleTypes::FABRIC),
                "a pool with fabric handles",
                CudaVersion::new(12, 3),
            ),
            (
                matches!(self.location, Location::HostNuma(_)),
                "a pool on a NUMA node of the host",
                CudaVersion::new(12, 2),
            ),
            (
                self.max_size.is_some(),
                "a maximum size of a pool",
                CudaVersion::new(12, 2),
            ),
        ];
        needs
            .into_iter()
            .find(|(asked, _, _)| *asked)
            .map(|(_, what, since)| (what, since))
    }

    pub(super) fn props(&self) -> Result<CUmemPoolProps> {
        if let Some((what, since)) = self.newest_need() {
            self.driver.require_version(what, since)?;
        }
        self.check_together()?;
        let max_size = self.max_size.unwrap_or(0);
        Ok(CUmemPoolProps {
            allocType: self.allocation_type.to_raw(),
            handleTypes: CUmemAllocationHandleType(self.handle_types.bits()),
            location: self.location.to_raw(),
            win32SecurityAttributes: security::of_pools(self.handle_types),
            maxSize: usize::try_from(max_size).unwrap_or(usize::MAX),
            usage: if self.hw_decompress {
                CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS as u16
            } else {
                0
            },
            // Zero, as required for fields that are reserved in older drivers.
            ..CUmemPoolProps::default()
        })
    }

    /// Rejects combinations that the driver would refuse without explanation, or accept and misinterpret.
    fn check_together(&self) -> Result<()> {
        let managed = self.allocation_type == AllocationType::Managed;
        let wrong = match (self.location, self.max_size) {
            (Location::Device(device), _) if device.driver() != self.driver => {
                "a pool is made on a device of its own driver"
            }
            (_, Some(0)) => {
                "a pool's maximum size must be more than 0 bytes; leave it out for no maximum"
            }
            (_, Some(_)) if managed => "a pool of managed memory has no maximum size",
            _ if managed && !self.handle_types.is_empty() => {
                "a pool of managed memory cannot be shared by handles"
            }
            _ if managed && self.hw_decompress => {
                "a pool of managed memory is no target of hardware decompression"
            }
            (Location::Anywhere, _) if !managed => {
                "only managed memory can be anywhere; name a device or the host"
            }
            (Location::Host, _) if !self.handle_types.is_empty() => {
                "a pool on the host cannot be shared by handles; name a NUMA node"
            }
            (Location::Invisible, _) => "a pool is made on a device that is visible",
            _ => return Ok(()),
        };
        Err(Error::invalid(format!(
            "{wrong} (asked for {})",
            self.in_words()
        )))
    }
}
