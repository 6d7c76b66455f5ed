//! A simulated NVML, for machines without a GPU.
//!
//! The built library, `libnvidia_ml_sim.so` or `nvidia_ml_sim.dll`, exports NVML's own functions and reports the devices of the simulated
//! driver: the same UUIDs, PCI bus numbers, names and memory. Like NVML, it numbers them in PCI bus order and ignores
//! `CUDA_VISIBLE_DEVICES`.
//!
//! It is configured by the environment, which is read when the library is first called. Invalid values are reported on
//! standard error and ignored. Sizes take K, M, G.
//!
//! | variable | meaning |
//! |---|---|
//! | `CUDA_SIM_DEVICES` | number of GPUs, as for the simulated driver |
//! | `CUDA_SIM_MEMORY` | allocatable bytes of each, as for the simulated driver |
//! | `CUDA_SIM_DRIVER_VERSION` | the CUDA version, as for the simulated driver |
//! | `NVML_SIM_RESERVED` | bytes that each reserves in addition; default 512M |
//! | `NVML_SIM_USED` | bytes in use: `0:10G,3:70G`; for the second MIG instance of GPU 1: `1.1:5G` |
//! | `NVML_SIM_BAR1_FREE` | free bytes of each BAR1, which has 256G; default: all but 2M |
//! | `CUDA_SIM_MIG` | GPUs divided by MIG, and the number of instances of each, as for the simulated driver: `1:3` |
//! | `NVML_SIM_MIG` | the same, for NVML alone |
//! | `NVML_SIM_PROCESSES` | processes with a context, and their bytes if known: `0:4711:500M,1:12` |
//! | `NVML_SIM_COMPUTE_MODE` | modes other than 0, as numbers: `2:3` |
//! | `NVML_SIM_LOST` | GPUs that have fallen off the bus: `1,4` |
//! | `NVML_SIM_MISSING` | symbols that an older library lacks: `nvmlDeviceGetMemoryInfo_v2` |
//! | `NVML_SIM_ERROR` | the result of `nvmlInit_v2`: 9, 18 |
//!
//! Memory that this process allocates from the simulated driver also counts as used, once both libraries are loaded.
//! Contexts, streams and code take no memory there.
//!
//! Its results follow NVML's reference, and are not measured.
//!
//! Linux and Windows only; elsewhere the crate is empty.

#![cfg(any(target_os = "linux", windows))]

mod configuration;
mod driver;
mod export;
mod functions;
mod machine;
#[cfg(target_pointer_width = "64")]
mod missing;
mod path;

pub use path::{LIBRARY_VARIABLE, library_for, library_path, use_if_no_nvml};

#[cfg(test)]
cuda_mem_watchdog::watch_program!();
