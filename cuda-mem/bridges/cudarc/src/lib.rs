//! Memory of [cuda-mem](cuda_mem) in the calls of [cudarc] 0.19.
//!
//! Both crates use the primary context, so streams and addresses of one are valid in the other. This package adds what
//! makes that safe: who frees, and which stream waits for which.
//!
//! ```
//! # mod driver { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bridge/driver.rs")); }
//! # driver::restart_if_no_driver();
//! use cuda_mem::{Arena, Driver, Resource};
//! use cuda_mem_cudarc_bridge::{Buffer, borrow_stream};
//! use cudarc::driver::CudaContext;
//!
//! let context = CudaContext::new(0)?; // of cudarc
//! let (theirs, other) = (context.new_stream()?, context.new_stream()?);
//!
//! let arena = Arena::builder(&Driver::load()?.device(0)?).build()?; // of cuda-mem
//! let memory = Resource::from(arena).alloc::<f32>(&borrow_stream(&theirs)?, 1 << 20)?;
//! let mut x = Buffer::new(memory, &theirs)?;
//!
//! theirs.memset_zeros(&mut x)?; // cudarc's calls take it …
//! let copy = other.clone_dtod(&x)?; // … on any stream, which waits for the buffer's
//! x.memory_mut()?.fill(1.0)?; // and so do cuda-mem's: after the copy
//! assert_eq!(theirs.clone_dtoh(&x.slice(..2)?)?, [1.0, 1.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | what | how |
//! |---|---|
//! | a stream of cudarc in calls of cuda-mem | [`borrow_stream`] |
//! | memory of cuda-mem in calls of cudarc: copies, fills, cuBLAS | [`Buffer`] |
//! | parts of it | [`BufferView`], [`BufferViewMut`] |
//! | a function that takes a `CudaSlice` | [`Buffer::into_cuda_slice`], for memory of a pool |
//! | a slice of cudarc for cuda-mem | [`Buffer::from_cuda_slice`] |
//! | all allocations of cudarc, without a change to the code that makes them | [the device's current pool](#the-current-pool) |
//!
//! # Order
//!
//! A `CudaSlice` has one event for its last reader and one for its last writer, and other streams wait for those. A
//! [`Buffer`] has a list, with an event for each stream that read or wrote it, so two readers on two streams are both
//! waited for. Its own stream needs no event. [`Buffer`] has the details.
//!
//! # Kernels
//!
//! A launch of cudarc takes the address as an argument. The guards order the streams, and end after the launch:
//!
//! ```
//! # mod driver { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bridge/driver.rs")); }
//! # driver::restart_if_no_driver();
//! # use cuda_mem_cudarc_bridge::{Buffer, borrow_stream};
//! use cudarc::driver::{DevicePtrMut as _, LaunchConfig, PushKernelArg as _};
//! # let context = cudarc::driver::CudaContext::new(0)?;
//! # let (theirs, other) = (context.new_stream()?, context.new_stream()?);
//! # let pool = cuda_mem::Driver::load()?.device(0)?.default_pool()?;
//! # let mut x = Buffer::new(pool.alloc::<u32>(&borrow_stream(&theirs)?, 100)?, &theirs)?;
//! # let kernels = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../tests/data/kernels.ptx");
//! # let module = context.load_module(cudarc::nvrtc::Ptx::from_file(kernels))?;
//! let fill = module.load_function("fill")?; // memory, value, number of elements
//! {
//!     let (address, _guard) = x.device_ptr_mut(&other);
//!     let (value, n) = (7u32, 100u64);
//!     let mut launch = other.launch_builder(&fill);
//!     launch.arg(&address).arg(&value).arg(&n);
//!     // SAFETY: the arguments are those of the kernel, and the memory has `n` elements.
//!     unsafe { launch.launch(LaunchConfig::for_num_elems(100)) }?;
//! }
//! assert_eq!(x.memory()?.to_vec()?, [7; 100]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # The current pool
//!
//! cudarc allocates from the current pool of the device. A pool of cuda-mem can be that, for the whole process:
//!
//! ```
//! # mod driver { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bridge/driver.rs")); }
//! # driver::restart_if_no_driver();
//! # use cuda_mem::{Driver, MemoryPool};
//! # let device = Driver::load()?.device(0)?;
//! # let theirs = cudarc::driver::CudaContext::new(0)?.new_stream()?;
//! let pool = MemoryPool::builder(&device).build()?;
//! device.set_current_pool(&pool)?;
//! let x = theirs.alloc_zeros::<f32>(1000)?; // from `pool`
//! assert!(pool.stats()?.used.current >= 4000);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! It then has the pool's settings, such as its release threshold, and counts in its statistics. The pool's last handle must
//! stay alive: when a pool is destroyed, the device's default pool is current again.

mod buffer;
mod cuda_slice;
mod error;
mod pending_uses;
mod stream;
mod view;

pub use buffer::Buffer;
pub use error::{Error, Refused, Result};
pub use stream::borrow_stream;
pub use view::{BufferView, BufferViewMut};

// As of their counterparts in both crates.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Buffer<f32>>();
    shared::<BufferView<'_, f32>>();
    shared::<BufferViewMut<'_, f32>>();
    shared::<Error>();
};
