//! GPU memory with ownership: stream-ordered CUDA memory pools for Rust.
//!
//! The driver is found and opened at run time. Building needs no CUDA toolkit, and a machine
//! without a GPU gets a typed error and never a panic.
//!
//! ```
//! use cuda_mem::{Driver, MemoryPool, ReleaseThreshold, ReusePolicy};
//!
//! # cuda_sim::use_if_no_driver();
//! let driver = Driver::load()?;                      // typed error if there is none
//! let device = driver.device(0)?;
//! let context = device.primary_context()?;           // the only context that comes to be
//! let (stream, other) = (context.stream()?, context.stream()?);
//!
//! let pool = MemoryPool::builder(&device)
//!     .release_threshold(ReleaseThreshold::Never)
//!     .reuse(ReusePolicy::DETERMINISTIC)
//!     .build()?;
//!
//! let mut x = pool.alloc::<f32>(&stream, 1 << 20)?;  // elements; freed on `stream` when dropped
//! x.copy_from(&vec![1.0; 1 << 20])?;
//! {
//!     let mut x = x.on(&other)?;                     // `other` waits for `stream` here …
//!     x.fill(2.0)?;
//! }                                                  // … and `stream` for `other` here
//! assert_eq!(x.to_vec()?, vec![2.0; 1 << 20]);       // synchronises the stream
//! println!("{}", pool.stats()?);
//! # Ok::<(), cuda_mem::Error>(())
//! ```
//!
//! # Order
//!
//! Work goes to streams, and memory comes and goes in a stream's order. A [`DeviceBuffer`] knows its
//! stream; using it on another one goes through [`DeviceBuffer::on`], which orders the two.
//!
//! # Cost
//!
//! Allocating and dropping a buffer is two driver calls. It takes no memory of the heap and does not
//! change the current context.
//!
//! # Errors
//!
//! Every failure is an [`Error`] with a [kind](ErrorKind), the driver's function and its own code.
//! Destructors never panic; what fails in them is counted and told to a
//! [hook](on_drop_failure).

mod adaptor;
mod after_wait;
mod arena;
mod barrier;
mod biased;
mod buffer;
mod container;
mod context;
mod copy;
mod current;
mod deferred;
mod device;
mod driver;
mod epoch;
mod error;
mod event;
mod fallback;
mod gdr;
mod gpu_direct;
mod graph;
mod host;
#[cfg(target_os = "linux")]
mod ipc;
mod join;
mod launches;
mod ledger;
mod location;
mod lock;
mod managed;
mod module;
mod nvml;
mod origin;
mod pages;
mod placement;
mod pointer;
mod pool;
mod raw;
mod reclaim;
mod recording;
mod report;
mod resource;
mod stage;
mod stats;
mod stream;
mod table;
mod traffic;
mod visible;
mod vmm;
mod waits;
mod window;

pub use adaptor::{
    AlignedAdaptor, Counter, FailureCallbackAdaptor, Ladder, LimitAdaptor, LiveAllocation,
    LoggingAdaptor, PrefetchAdaptor, RecoveryAdaptor, Statistics, StatisticsAdaptor,
    StatisticsScope, TrackingAdaptor,
};
pub use arena::{
    Arena, ArenaBacking, ArenaBuilder, ArenaPin, ArenaStats, CapturePool, FreeSpace, SleepContents,
};
pub use buffer::{DeviceBuffer, Loan, ReadLoan};
pub use container::{DeviceScalar, DeviceVec};
pub use context::{Context, Current, MemoryInfo};
pub use cuda_driver_sys as sys;
pub use cuda_driver_sys::CudaVersion;
pub use current::ScopedResource;
pub use device::{Capabilities, Device, HandleTypes, PciId, Reason, Support, Uuid};
pub use driver::Driver;
pub use error::{Error, ErrorKind, Failed, OutOfMemory, Remedy, Result, Tried};
pub use event::Event;
pub use fallback::{DriverModel, Fallback, Strategy};
pub use gdr::{Gdr, GdrKernelFacts};
#[cfg(target_os = "linux")]
pub use gpu_direct::DmaBuf;
pub use gpu_direct::{FlushOptions, FlushScope, GpuDirect, WritesOrdering};
pub use graph::{
    Adopted, AdoptedMut, Capture, CaptureMode, Graph, GraphBuffer, GraphExec, GraphMemoryStats,
    Instantiate, Left, LeftBuffer, Node, NodeMemory,
};
pub use host::{HostLoan, HostMemory, PinnedBuffer, RegisterFlags, Registered};
#[cfg(target_os = "linux")]
pub use ipc::{
    Channel, EventHandle, FabricHandle, ImportedPool, Lent, Listener, Message, Peers, PointerToken,
    SharedBuffer,
};
pub use ledger::{Ledger, LedgerGroup, LedgerKind, LedgerLevel, LedgerReport, LedgerScope};
pub use location::{AllocationType, Location};
pub use managed::{Advice, ManagedBuffer, ManagedRange, RangeInfo};
pub use module::{
    Argument, Arguments, Function, Image, Launch, Library, LoadingMode, Module, Occupancy, Value,
};
pub use nvml::{
    Bar1Memory, ComputeMode, DeviceChoice, MigMode, Nvml, NvmlDevice, NvmlMemory, NvmlProcess,
};
pub use placement::{
    AccessPattern, Capability, DeviceCapabilities, Export, Grant, Lifetime, Machine, PageClass,
    PlaceError, Placed, Placement, PlacementKind, PlacementRequest, PlacementStep,
};
pub use pointer::{MemoryKind, PointerInfo};
pub use pool::{
    Access, CurrentPool, DefaultPool, MemoryPool, Pool, PoolBuilder, PoolProperties,
    RaisedThreshold, ReleaseThreshold, ReusePolicy,
};
pub use report::{DropCounts, DropFailure, drop_counts, on_drop_failure};
pub use resource::{
    DeviceSet, DirectResource, HostFlags, ManagedResource, MemoryProperties, MemoryResource,
    PinnedResource, RESOURCE_ALIGNMENT, Resource,
};
pub use stats::{PoolStats, Usage};
pub use stream::{Stream, StreamRef};
pub use traffic::Traffic;
pub use visible::{
    DriverVisibility, EndReason, Ended, Identity, MigIdentity, Repeated, Selector, Visibility,
    VisibilityChanged, VisibilityMismatch, Visible, VisibleDevice,
};
pub use vmm::{
    AddressRange, Granularity, GrowableBuffer, MappedMemory, MappedMemoryBuilder, Mapping,
    PhysicalMemory, PhysicalMemoryBuilder,
};
pub use window::{
    MappingKind, Window, WindowChoice, WindowFacts, WindowKind, WindowOptions, WindowReason,
};

/// The code of the book's page, so that it is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../docs/src/getting-started.md")]
struct GettingStarted;

#[cfg(test)]
cuda_mem_watchdog::watch_program!();
