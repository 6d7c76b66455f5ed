//! Making a pool.

use cuda_driver_sys::{
    CUmemAllocationType, CUmemLocationType, CUmemPoolProps, CudaVersion, location,
};

use super::{MemoryPool, ReleaseThreshold, ReusePolicy};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::{raw, report};

/// Describes a pool; [`build`](Self::build) makes it. From [`MemoryPool::builder`].
#[derive(Clone, Debug)]
#[must_use = "a builder makes nothing until `build`"]
pub struct PoolBuilder {
    device: Device,
    release_threshold: ReleaseThreshold,
    reuse: Option<ReusePolicy>,
    max_size: Option<u64>,
}

impl PoolBuilder {
    pub(super) fn new(device: Device) -> Self {
        Self {
            device,
            release_threshold: ReleaseThreshold::default(),
            reuse: None,
            max_size: None,
        }
    }

    /// How much memory the pool keeps when streams synchronise; everything, unless told otherwise.
    pub fn release_threshold(mut self, threshold: ReleaseThreshold) -> Self {
        self.release_threshold = threshold;
        self
    }

    /// When memory moves between streams; whenever possible, unless told otherwise.
    ///
    /// Drivers before CUDA 11.5 can hand out memory too early under
    /// [`ALLOW_OPPORTUNISTIC`](ReusePolicy::ALLOW_OPPORTUNISTIC), so it is left off there unless it
    /// is named here.
    pub fn reuse(mut self, policy: ReusePolicy) -> Self {
        self.reuse = Some(policy);
        self
    }

    /// The most bytes that the pool may hold; the driver may round up (to 32 MiB on an H200). Allocating beyond is
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory). Needs CUDA 12.2.
    pub fn max_size(mut self, bytes: u64) -> Self {
        self.max_size = Some(bytes);
        self
    }

    /// Makes the pool. It takes address space, but no memory yet, and creates no context.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) if the device has no pools, or the driver
    /// is too old for something that was asked for; [`InvalidValue`](crate::ErrorKind::InvalidValue)
    /// for a maximum of 0; else as the driver answers. Nothing is left behind then.
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
    pub fn build(self) -> Result<MemoryPool> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        self.device.require_pools()?;
        let props = self.props()?;
        // SAFETY: bytes that an old driver does not know are zero; newer fields passed the gate.
        let raw = unsafe { raw::pool::create(self.device.driver().table(), &props) }
            .map_err(|error| error.asked(|| format!("{self:?}")))?;
        // Owned from here, so that a failure below destroys the pool.
        let pool = MemoryPool::own(self.device, raw);
        pool.set_release_threshold(self.release_threshold)?;
        let reuse = self.reuse.unwrap_or_else(|| self.default_reuse());
        if reuse != ReusePolicy::DRIVER_DEFAULT {
            pool.set_reuse_policy(reuse)?;
        }
        Ok(pool)
    }

    fn default_reuse(&self) -> ReusePolicy {
        if self.device.driver().version() < CudaVersion::new(11, 5) {
            ReusePolicy::DRIVER_DEFAULT - ReusePolicy::ALLOW_OPPORTUNISTIC
        } else {
            ReusePolicy::DRIVER_DEFAULT
        }
    }

    fn props(&self) -> Result<CUmemPoolProps> {
        let mut props = CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            location: location(
                CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                self.device.as_raw(),
            ),
            // Zero: what an older driver calls reserved must be.
            ..CUmemPoolProps::default()
        };
        if let Some(bytes) = self.max_size {
            let since = CudaVersion::new(12, 2);
            self.device
                .driver()
                .require_version("a maximum size of a pool", since)?;
            if bytes == 0 {
                return Err(Error::invalid(
                    "a pool's maximum size must be more than 0 bytes; leave it out for no maximum"
                        .to_owned(),
                ));
            }
            props.maxSize = usize::try_from(bytes).unwrap_or(usize::MAX);
        }
        Ok(props)
    }
}
