//! A simulated CUDA driver.
//!
//! The built library, `libcuda_sim.so`, exports the driver's own functions, so a program that uses the driver API runs
//! without a GPU and gets the results measured on a real driver. See the README for what is simulated, and for the
//! environment variables that configure it.
//!
//! The Rust side of this crate only finds the library, controls a loaded one, and gives it models of a program's
//! kernels: see [`library_path`], [`Control`] and [`kernel`].
//!
//! ```
//! let path = cuda_sim::library_path().expect("cargo has built the library");
//! // SAFETY: the simulator's functions have the signatures of the driver.
//! let driver = unsafe { cuda_driver_sys::load_from(&path) }?.table();
//! let control = cuda_sim::Control::open(&path)?;
//!
//! let init = driver.cuInit.expect("every driver has it");
//! // SAFETY: cuInit takes no pointers.
//! unsafe { init(0) };
//! assert_eq!(control.calls("cuInit"), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! On Windows, `cuda_sim.dll`: without dma-bufs, and memory is shared with other processes by handles of Windows.
//! Elsewhere the crate is empty.

#![cfg(any(target_os = "linux", windows))]

mod abi;
mod alloc;
mod attributes;
mod buffer_id;
mod callback;
mod clock;
mod configuration;
mod context;
pub mod control;
mod copy;
mod device;
mod direct;
mod dma_buf;
mod event;
mod export;
mod fault;
mod graph;
#[cfg(target_pointer_width = "64")]
mod hidden;
mod host;
mod init;
mod ipc;
mod limits;
mod live;
mod logs;
mod machine;
mod managed;
mod memory;
mod models;
mod module;
mod path;
mod peer;
mod pieces;
mod plane;
mod pointer;
mod pool;
mod private;
mod proc_address;
mod queue;
mod reach;
mod resident;
mod sanitizer;
mod simcuda;
mod slab;
mod state;
mod stream;
mod system;
mod system_allocated;
mod table;
#[doc(hidden)]
pub mod texts;
mod thread;
mod visible;
mod vmm;

pub use control::{Control, ControlError, Live};
/// The driver's result codes, for calls that are to fail.
pub use cuda_driver_sys::CUresult;
pub use machine::{Machine, Simulator, StartError, Violations};
pub use models::{Launch, LaunchError, kernel};
pub use path::{LIBRARY_VARIABLE, is_simulator, library_path, use_if_no_driver};

#[cfg(test)]
cuda_mem_watchdog::watch_program!();
