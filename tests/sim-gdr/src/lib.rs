//! A simulated `libgdrapi`, for machines without a GPU and without the kernel module `gdrdrv`.
//!
//! The built library, `libgdrapi_sim.so`, exports gdrcopy's own functions. It pins and maps memory of the simulated
//! driver loaded in the process, however that was opened: a mapping is a second mapping of the same memory. When the
//! memory is freed, its mapping is revoked and the callback flag is set, as with the module; with persistent mapping it
//! stays.
//!
//! It is configured by the environment, which is read when the library is first called. Invalid values are reported on
//! standard error and ignored.
//!
//! | variable | meaning |
//! |---|---|
//! | `CUDA_SIM_GDR_VERSION` | the library's version, 1.3 to 2.6; default 2.5. Symbols of other versions are hidden |
//! | `CUDA_SIM_GDR_DRIVER_VERSION` | the module's version; default: the library's. A library of 2.0 or newer cannot open one before 2.0; before 2.5, attributes are 0 and no pin flag is known |
//! | `CUDA_SIM_GDR_OPEN_ERROR` | no module: `gdr_open` fails with this errno, given as a number: 2, 13 |
//! | `CUDA_SIM_GDR_PERSISTENT` | 1: mappings outlive the memory |
//! | `CUDA_SIM_GDR_MAPPING` | the platform's kind of mapping: `wc` (default), `cached` (coherent) or `device` |
//! | `CUDA_SIM_GDR_MISSING` | missing symbols: `gdr_get_attribute,gdr_map_v2` |
//! | `GDRCOPY_USE_DMABUF_MMAP` | 1: from 2.6 on, the driver's dma-bufs instead of the module, as with the real library. They are also used if there is no module |
//!
//! Its results follow the sources and documentation of gdrcopy, and are not measured. Guesses and limits:
//! `gdr_pin_buffer_v2` refuses meaningless flags even where the library would ignore them; forcing PCIe needs a
//! coherent platform and persistent mapping; tokens other than 0 are refused; released handles are refused, and so is
//! unmapping anything but exactly the mapping (the real library would unmap whatever is there); kinds of mapping differ
//! only by name; the simulated driver refuses dma-bufs that overlap without being equal.
//!
//! `simgdr_pins` and `simgdr_mappings` count the pins and mappings of this process.
//!
//! Linux only; elsewhere the crate is empty.

#![cfg(target_os = "linux")]

mod configuration;
mod driver;
mod export;
mod functions;
#[cfg(target_pointer_width = "64")]
mod hidden;
mod path;
mod pins;
mod window;

pub use path::{LIBRARY_VARIABLE, library_for, library_path};

#[cfg(test)]
cuda_mem_watchdog::watch_program!();
