//! Memory at addresses of your choice: virtual memory, host memory, managed memory.
//!
//! [`MappedMemory`] and [`GrowableBuffer`] map [`PhysicalMemory`] into an [`AddressRange`]. [`PinnedBuffer`] and
//! [`Registered`] are host memory that devices can access. A [`ManagedBuffer`] migrates between host and devices.

pub(crate) mod host;
pub(crate) mod managed;
pub(crate) mod migration_stats;
pub(crate) mod vmm;

pub use host::{HostMemory, InFlightBuffer, PinnedBuffer, RegisterFlags, Registered, Returned};
pub use managed::{Advice, ManagedBuffer, ManagedRange, RangeInfo};
pub use migration_stats::MigrationStats;
pub use vmm::{
    AddressRange, Granularity, GrowableBuffer, MappedMemory, MappedMemoryBuilder, Mapping,
    PhysicalMemory, PhysicalMemoryBuilder,
};
