//! A simulated NCCL, for machines without a GPU.
//!
//! The built library, `libnccl_sim.so` or `nccl_sim.dll`, exports NCCL's own functions and moves data between the devices of the simulated
//! driver. All ranks of a communicator are in one process: a thread each, or one thread that groups their calls.
//!
//! It is configured by the environment, or by the machine that it was copied for, and reads this when it is first called.
//!
//! | variable | meaning |
//! |---|---|
//! | `NCCL_SIM_VERSION` | the result of `ncclGetVersion`; default 22809. Newer functions stay |
//! | `NCCL_SIM_MISSING` | symbols that an older library lacks: `ncclCommWindowRegister,ncclMemAlloc` |
//! | `NCCL_SIM_LIBRARY` | the built library, for programs that cargo did not build beside it |
//! | `NCCL_DEBUG` | `WARN`, `INFO` or `TRACE`: failures and faults are printed to standard error. Any other value: they are not |
//!
//! # Operations
//!
//! Operations run in stream order as kernels of the simulated driver, so they can be captured, and its order sanitizer
//! checks their accesses. Each waits on its stream until all ranks have come, and matches by number: the n-th collective of
//! a rank meets the n-th of the others, and the n-th send to a rank meets its n-th receive. A replayed graph counts as new
//! operations. A group's operations of one stream are one kernel, which reads for all of them before it writes for any.
//! The kernels' module stays loaded in the context of each communicator.
//!
//! Sums are formed in the order of ranks; those of 16-bit types as `f32`, rounded once. NCCL's order and rounding may
//! differ. Types and operations newer than these bindings are refused, as are sends whose receive has another type of the
//! same size.
//!
//! On a communicator that does not block, each call answers `ncclInProgress`, and so does the first
//! `ncclCommGetAsyncError` after it: a program that does not poll fails here.
//!
//! # Tests
//!
//! A [`Control`] counts calls, makes them fail, ends ranks, and lists what is live and what was wrong.
//!
//! Results follow NCCL's documentation, and are not measured. Only one process is simulated: no network, no topology, no
//! fabric.
//!
//! Linux and Windows only; elsewhere the crate is empty.

#![cfg(any(target_os = "linux", windows))]

mod calls;
mod clique;
mod communicator;
mod configuration;
pub mod control;
mod driver;
mod export;
mod functions;
mod group;
mod init;
mod launch;
mod memory;
#[cfg(target_pointer_width = "64")]
mod missing;
mod operation;
mod path;
mod plan;
mod reduce;
mod register;
mod simnccl;
mod state;
mod window;
mod words;

pub use control::{Communicator, Control, Live};
pub use path::{LIBRARY_VARIABLE, library_for, library_path, use_if_no_nccl};

#[cfg(test)]
cuda_mem_watchdog::watch_program!();
