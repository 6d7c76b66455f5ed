//! GPU memory with ownership: stream-ordered CUDA memory pools for Rust.
//!
//! The driver is found and opened at run time. Building needs no CUDA toolkit; on a machine without a GPU, loading
//! returns a typed error and never panics.
//!
//! ```
//! use cuda_mem::{Driver, MemoryPool, ReleaseThreshold, ReusePolicy};
//!
//! # cuda_sim::use_if_no_driver();
//! let driver = Driver::load()?;                      // typed error if there is none
//! let device = driver.device(0)?;
//! let context = device.primary_context()?;           // the only context that is created
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
//! Work is submitted to streams, and memory is allocated and freed in stream order. A [`DeviceBuffer`] knows its
//! stream; to use it on another stream, call [`DeviceBuffer::on`], which orders the two.
//!
//! # Cost
//!
//! Allocating and dropping a buffer of a pool takes two driver calls and no heap memory, and sets no current context,
//! except on default streams. With an arena it usually takes no driver call.
//!
//! # Where things are
//!
//! | module | contents |
//! |---|---|
//! | [`driver`] | the driver, devices and their capabilities, locations, pointers |
//! | [`stream`] | contexts, streams, events |
//! | [`memory`] | pools, resources, adaptors, buffers, slices, statistics |
//! | [`arena`] | the sub-allocator |
//! | [`mapped`] | virtual, pinned, registered and managed memory |
//! | [`interop`] | graphs, other processes, other libraries' tensors, GPUDirect |
//! | [`placement`] | where memory should be; visible devices; NVML |
//! | [`cpu_mapping`] | device memory that the processor reads and writes |
//! | [`kernel`] | device code |
//! | [`collective`] | NCCL |
//! | [`ledger`] | live objects, with their size and origin |
//! | [`base`] | errors, including those of destructors |
//!
//! The names in the first example, and related ones, are also available at the root.
//!
//! # Features
//!
//! None is on by default, and each only adds:
//!
//! | feature | adds |
//! |---|---|
//! | `export` | files of snapshots and timelines, for PyTorch's memory viewer and for Perfetto |
//! | `metrics` | gauges and counters of the statistics, for the crate `metrics` |
//! | `sim` | `Driver::simulated` and `Driver::load_simulated`: drivers of simulated machines, for tests |
//! | `tracing` | spans and events of what is slow or fails, for the crate `tracing` |
//!
//! # Errors
//!
//! Every failure is an [`Error`] with a [kind](ErrorKind), the driver function that failed and the driver's result
//! code. Destructors never panic; their failures are counted and passed to a [hook](base::on_drop_failure).

pub mod arena;
pub mod base;
pub mod collective;
pub mod cpu_mapping;
pub mod driver;
pub mod interop;
pub mod kernel;
pub mod ledger;
pub mod mapped;
pub mod memory;
pub mod placement;
pub mod stream;

pub use arena::Arena;
pub use base::{Error, ErrorKind, Result};
pub use cuda_driver_sys as sys;
pub use cuda_driver_sys::CudaVersion;
pub use driver::{Device, Driver};
pub use memory::{
    Access, DefaultPool, DeviceBuffer, DeviceSlice, DeviceSliceMut, MemoryPool, MemoryResource,
    Pool, PoolBuilder, PoolStats, ReleaseThreshold, Resource, ReusePolicy, Usage,
};
pub use stream::{Context, Event, Stream};

#[cfg(test)]
cuda_mem_watchdog::watch_program!();
