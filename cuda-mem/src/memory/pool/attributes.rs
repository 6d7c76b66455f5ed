//! What the driver keeps about a pool: its settings, its statistics, and how much it holds.

use cuda_driver_sys::{CUmemPool_attribute, CudaVersion};

use super::{Pool, ReleaseThreshold, ReusePolicy};
use crate::base::error::Result;
use crate::base::telemetry::span;
use crate::driver::raw;
use crate::memory::stats::{PoolStats, Usage};

impl Pool {
    /// How much memory the pool may keep when streams synchronise.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuMemPoolGetAttribute")]
    pub fn release_threshold(&self) -> Result<ReleaseThreshold> {
        let bytes = self.wide(CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)?;
        Ok(ReleaseThreshold::from_bytes(bytes))
    }

    /// When memory freed in one stream may be reused in another without host synchronisation.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuMemPoolGetAttribute")]
    pub fn reuse_policy(&self) -> Result<ReusePolicy> {
        let mut policy = ReusePolicy::empty();
        for (flag, attribute) in ReusePolicy::ATTRIBUTES {
            // SAFETY: the pool is live, and these attributes are 4 bytes wide.
            let on = self.beside_captures(|table| unsafe {
                raw::pool::narrow_attribute(table, self.0.raw, attribute)
            })?;
            policy.set(flag, on != 0);
        }
        Ok(policy)
    }

    /// Sets the reuse policy: three driver calls. If one fails, those before it have taken effect.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuMemPoolSetAttribute")]
    pub fn set_reuse_policy(&self, policy: ReusePolicy) -> Result<()> {
        for (flag, attribute) in ReusePolicy::ATTRIBUTES {
            let on = policy.contains(flag);
            // SAFETY: the pool is live, and these attributes are flags.
            self.beside_captures(|table| unsafe {
                raw::pool::set_flag(table, self.0.raw, attribute, on)
            })?;
        }
        Ok(())
    }

    /// Releases unused memory to the device, down to as little as possible but no less than `keep` bytes. Does
    /// nothing if the pool already holds less.
    ///
    /// Never waits: memory whose free the host has not yet seen complete, by synchronising, stays.
    ///
    /// # Errors
    ///
    /// Any driver error.
    ///
    /// ```
    /// # use cuda_mem::{Driver, MemoryPool};
    /// # cuda_sim::use_if_no_driver();
    /// # let device = Driver::load()?.device(0)?;
    /// # let stream = device.primary_context()?.stream()?;
    /// let pool = MemoryPool::builder(&device).build()?;
    /// drop(pool.alloc::<u8>(&stream, 100 << 20)?);
    /// stream.synchronize()?; // now the host has seen the free
    /// pool.trim_to(0)?;
    /// assert_eq!(pool.stats()?.reserved.current, 0);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuMemPoolTrimTo")]
    pub fn trim_to(&self, keep: u64) -> Result<()> {
        // The driver rounds up, and the largest numbers wrap to 0 (measured), so everything would be released. No
        // pool holds this much.
        let keep = usize::try_from(keep.min(1 << 48)).unwrap_or(usize::MAX);
        span!(DEBUG, "trim", pool = %self, keep);
        // SAFETY: the pool is live.
        let trimmed = self
            .beside_captures(|table| unsafe { raw::pool::trim(table, self.0.raw, keep) })
            .map_err(|error| error.asked(|| format!("keep {keep} bytes of {self}")));
        if let Some(recorded) = self.recorded() {
            recorded.trimmed(keep);
        }
        trimmed
    }

    /// The memory that the pool holds and has allocated. Takes four driver calls, about 0.1 µs together.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) before CUDA 11.3; otherwise any driver error.
    #[doc(alias = "cuMemPoolGetAttribute")]
    pub fn stats(&self) -> Result<PoolStats> {
        self.require_stats()?;
        use CUmemPool_attribute as A;
        Ok(PoolStats {
            reserved: Usage {
                current: self.wide(A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?,
                high: self.wide(A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH)?,
            },
            used: Usage {
                current: self.wide(A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?,
                high: self.wide(A::CU_MEMPOOL_ATTR_USED_MEM_HIGH)?,
            },
        })
    }

    /// Resets both high marks to the current numbers.
    ///
    /// # Errors
    ///
    /// Same as [`stats`](Self::stats).
    #[doc(alias = "cuMemPoolSetAttribute")]
    pub fn reset_high_marks(&self) -> Result<()> {
        self.require_stats()?;
        // Zero is the only value that the driver accepts, and resets the mark to the current value.
        self.set_wide(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0)?;
        self.set_wide(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0)
    }

    pub(super) fn require_stats(&self) -> Result<()> {
        let what = "the pool's statistics";
        let since = CudaVersion::new(11, 3);
        self.0.driver.require_version(what, since)
    }

    pub(super) fn write_threshold(&self, bytes: u64) -> Result<()> {
        self.set_wide(
            CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
            bytes,
        )
    }

    /// Reads an attribute that is 8 bytes wide.
    pub(super) fn wide(&self, attribute: CUmemPool_attribute) -> Result<u64> {
        // SAFETY: the pool is live; the callers name only attributes of this width.
        self.beside_captures(|table| unsafe {
            raw::pool::wide_attribute(table, self.0.raw, attribute)
        })
        .map_err(|error| error.asked(|| format!("attribute {} of {self}", attribute.0)))
    }

    /// Writes an attribute that is 8 bytes wide.
    fn set_wide(&self, attribute: CUmemPool_attribute, value: u64) -> Result<()> {
        // SAFETY: as in `wide`.
        self.beside_captures(|table| unsafe {
            raw::pool::set_wide_attribute(table, self.0.raw, attribute, value)
        })
        .map_err(|error| error.asked(|| format!("attribute {} of {self} to {value}", attribute.0)))
    }
}
