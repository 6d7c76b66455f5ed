//! Settings of a pool.

use std::fmt;

use bitflags::bitflags;
use cuda_driver_sys::CUmemPool_attribute;

use crate::base::error::Bytes;

/// How much memory a pool may keep, allocated or unused, when a stream, an event or a context is synchronised.
/// Unused memory beyond that is then returned to the device.
///
/// Whatever the threshold, the driver reclaims the unused memory of *all* pools of a device before it reports out
/// of memory (measured on an H200; NVIDIA does not document it).
///
/// ```
/// use cuda_mem::ReleaseThreshold;
/// assert_eq!(ReleaseThreshold::Bytes(64 << 20).to_string(), "64.0 MiB");
/// assert_eq!(ReleaseThreshold::default(), ReleaseThreshold::Never);
/// ```
#[doc(alias = "CU_MEMPOOL_ATTR_RELEASE_THRESHOLD")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReleaseThreshold {
    /// Never release memory automatically; only trimming and the end of the pool do. The default in this crate,
    /// because releasing memory and mapping it again costs 50 times an allocation.
    #[default]
    Never,
    /// Keep this many bytes. `Bytes(0)`, the driver's own default, releases all unused memory at every
    /// synchronisation.
    Bytes(u64),
}

impl ReleaseThreshold {
    pub(crate) fn bytes(self) -> u64 {
        match self {
            Self::Never => u64::MAX,
            Self::Bytes(bytes) => bytes,
        }
    }

    pub(crate) fn from_bytes(bytes: u64) -> Self {
        if bytes == u64::MAX {
            Self::Never
        } else {
            Self::Bytes(bytes)
        }
    }
}

impl fmt::Display for ReleaseThreshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Never => f.write_str("never"),
            Self::Bytes(bytes) => Bytes(*bytes).fmt(f),
        }
    }
}

bitflags! {
    /// When memory freed in one stream may be reused in another before the host has seen the free complete. In the
    /// same stream, and after the host has seen it, memory is always reused.
    ///
    /// ```
    /// use cuda_mem::ReusePolicy;
    /// assert!(ReusePolicy::DETERMINISTIC.contains(ReusePolicy::FOLLOW_EVENT_DEPENDENCIES));
    /// assert_eq!(ReusePolicy::default(), ReusePolicy::DRIVER_DEFAULT);
    /// ```
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct ReusePolicy: u32 {
        /// If the allocating stream waits for a point after the free.
        #[doc(alias = "CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES")]
        const FOLLOW_EVENT_DEPENDENCIES = 1;
        /// If the driver happens to see that the free is complete. Reuse then differs from run to run.
        #[doc(alias = "CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC")]
        const ALLOW_OPPORTUNISTIC = 2;
        /// The driver may make the allocating stream wait for the free if it would otherwise have to grow the pool
        /// or fail. Saves memory, but may serialise streams.
        #[doc(alias = "CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES")]
        const ALLOW_INTERNAL_DEPENDENCIES = 4;

        /// All three: the driver's default for a new pool.
        const DRIVER_DEFAULT = 7;
        /// Only dependencies that the program created itself: reuse, and therefore the size of the pool, is the
        /// same in every run, and streams never wait for each other implicitly.
        const DETERMINISTIC = 1;
    }
}

impl ReusePolicy {
    /// No flags: memory moves between streams only after the host has seen the free complete.
    pub const NONE: Self = Self::empty();

    /// Each flag with the driver's attribute for it.
    pub(super) const ATTRIBUTES: [(Self, CUmemPool_attribute); 3] = [
        (
            Self::FOLLOW_EVENT_DEPENDENCIES,
            CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
        ),
        (
            Self::ALLOW_OPPORTUNISTIC,
            CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
        ),
        (
            Self::ALLOW_INTERNAL_DEPENDENCIES,
            CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
        ),
    ];
}

impl fmt::Display for ReusePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        bitflags::parser::to_writer(self, f)
    }
}

impl Default for ReusePolicy {
    fn default() -> Self {
        Self::DRIVER_DEFAULT
    }
}
