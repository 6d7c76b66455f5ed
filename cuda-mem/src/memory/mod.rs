//! Pools, resources and buffers.
//!
//! A [`MemoryPool`] is the driver's stream-ordered allocator. A [`MemoryResource`] is anything that allocates in
//! stream order: pools, an [`Arena`](crate::Arena), plain device memory, or one of your own. Adaptors wrap a
//! resource to count, limit, log or retry. A [`DeviceBuffer`] owns memory of any of them and frees it in the order
//! of its stream. A [`DeviceSlice`] or [`DeviceSliceMut`] names part of any memory.

pub(crate) mod adaptor;
pub(crate) mod buffer;
pub(crate) mod container;
pub(crate) mod current;
pub(crate) mod fallback;
#[cfg(feature = "metrics")]
mod metrics;
pub(crate) mod pool;
pub(crate) mod reclaim;
pub(crate) mod resource;
pub(crate) mod slice;
pub(crate) mod stats;

pub use adaptor::{
    AlignedAdaptor, CheckedAdaptor, Counter, FailureCallbackAdaptor, LimitAdaptor, LimitedAlloc,
    LiveAllocation, LoggingAdaptor, PrefetchAdaptor, RecordingAdaptor, RecoveryAdaptor,
    RecoveryPolicy, Statistics, StatisticsAdaptor, StatisticsScope, TrackingAdaptor,
};
pub use buffer::DeviceBuffer;
pub use container::{DeviceScalar, DeviceVec};
pub use current::ScopedResource;
pub use fallback::{DriverModel, Fallback, Strategy};
pub use pool::{
    Access, CurrentPool, DefaultPool, MemoryPool, Pool, PoolBuilder, PoolProperties,
    RaisedThreshold, ReleaseThreshold, ReusePolicy,
};
pub use resource::{
    DeviceSet, DirectResource, HostFlags, ManagedResource, MemoryProperties, MemoryResource,
    PinnedResource, RESOURCE_ALIGNMENT, Resource,
};
pub use slice::{DeviceMemory, DeviceMemoryMut, DeviceSlice, DeviceSliceMut, OnStream};
pub use stats::{PoolStats, Usage};
