//! A simulated tool for NVTX's memory extension, for machines without a GPU and without NVIDIA's tools.
//!
//! A program that runs with `NVTX_INJECTION64_PATH` set to the built library, `libnvtx_sim.so` or `nvtx_sim.dll`, attaches to it as it
//! would to compute-sanitizer. The tool checks the calls: regions lie in a heap and do not overlap, whatever ends
//! was there, versions and names are right. It writes what is wrong to standard error at once, and the regions that are
//! left when the process ends. It does not see what kernels access.
//!
//! | variable | meaning |
//! |---|---|
//! | `NVTX_SIM_MISSING` | functions that the tool does not fill in: `nvtxMemRegionsName` |
//! | `NVTX_SIM_REFUSE` | `extension`: it refuses to attach; `heaps`: it refuses every heap |
//!
//! Its rules follow NVIDIA's header and compute-sanitizer's manual, and are not measured.
//!
//! Linux and Windows only; elsewhere the crate is empty.

#![cfg(any(target_os = "linux", windows))]

mod control;
mod functions;
mod rules;

pub use control::{Control, Region, State, library_path};

#[cfg(test)]
cuda_mem_watchdog::watch_program!();
