//! A simulated NVML, for machines without a GPU.
//!
//! The built library, `libnvidia_ml_sim.so`, exports NVML's own functions and tells of the devices that
//! the simulated driver has: the same UUIDs, places on the PCI bus, names and memory. As NVML does, it
//! counts them in the order of the PCI bus and does not look at `CUDA_VISIBLE_DEVICES`.
//!
//! Set up by the environment, which is read when the library is first called. What makes no sense is
//! named on standard error and ignored. Sizes take K, M, G.
//!
//! | variable | meaning |
//! |---|---|
//! | `CUDA_SIM_DEVICES` | how many GPUs there are, as for the simulated driver |
//! | `CUDA_SIM_MEMORY` | bytes that each can give out, as for the simulated driver |
//! | `CUDA_SIM_DRIVER_VERSION` | the CUDA version, as for the simulated driver |
//! | `NVML_SIM_RESERVED` | bytes that each keeps for itself beside these; 512M unless told |
//! | `NVML_SIM_USED` | bytes in use: `0:10G,3:70G`; of the second MIG instance of GPU 1: `1.1:5G` |
//! | `NVML_SIM_BAR1_FREE` | bytes that are free of each BAR1, which has 256G; all but 2M unless told |
//! | `NVML_SIM_MIG` | GPUs that are divided by MIG, and the instances of each: `1:3` |
//! | `NVML_SIM_PROCESSES` | processes with a context, and their bytes if they are known: `0:4711:500M,1:12` |
//! | `NVML_SIM_COMPUTE_MODE` | modes other than 0, by their numbers: `2:3` |
//! | `NVML_SIM_LOST` | GPUs that have fallen off the bus: `1,4` |
//! | `NVML_SIM_MISSING` | symbols that an older library lacks: `nvmlDeviceGetMemoryInfo_v2` |
//! | `NVML_SIM_ERROR` | what `nvmlInit_v2` answers: 9, 18 |
//!
//! What this process has allocated from the simulated driver counts as used too, once both libraries are
//! loaded. Contexts, streams and code take no memory there.
//!
//! What it answers is written from the reference of NVML, and not measured.
//!
//! Linux only; elsewhere the crate is empty.

#![cfg(target_os = "linux")]

mod driver;
#[cfg(target_pointer_width = "64")]
#[path = "../../sim-driver/src/elf.rs"]
mod elf;
mod export;
#[path = "../../sim-driver/src/find.rs"]
mod find;
mod functions;
mod knobs;
mod machine;
#[cfg(target_pointer_width = "64")]
mod missing;
mod path;

pub use path::{LIBRARY_VARIABLE, library_path, use_if_no_nvml};

#[cfg(test)]
cuda_mem_watchdog::watch_program!();
