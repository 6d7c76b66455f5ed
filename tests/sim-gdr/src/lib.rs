//! A simulated `libgdrapi`, for machines without a GPU and without the kernel module `gdrdrv`.
//!
//! The built library, `libgdrapi_sim.so`, exports gdrcopy's own functions. It pins and maps memory of the
//! simulated driver that is loaded in the process, however that was opened: a mapping is a second mapping of
//! that very memory. When the memory is freed, a mapping is gone and the callback flag is set, as with the
//! module; with persistent mapping it stays.
//!
//! Set up by the environment, which is read when the library is first called. What makes no sense is
//! named on standard error and ignored.
//!
//! | variable | meaning |
//! |---|---|
//! | `CUDA_SIM_GDR_VERSION` | the library's version, 1.3 to 2.6; 2.5 unless told. Symbols of other versions vanish |
//! | `CUDA_SIM_GDR_DRIVER_VERSION` | the module's version, the library's unless told. One before 2.0 does not open with a library of 2.0 or newer; before 2.5, attributes are 0 and no pin flag is known |
//! | `CUDA_SIM_GDR_OPEN_ERROR` | there is no module: `gdr_open` fails with this errno, by its number: 2, 13 |
//! | `CUDA_SIM_GDR_PERSISTENT` | 1: mappings outlive the memory |
//! | `CUDA_SIM_GDR_MAPPING` | how the platform maps: `wc` (unless told), `cached` (a coherent one) or `device` |
//! | `CUDA_SIM_GDR_MISSING` | symbols that are not there: `gdr_get_attribute,gdr_map_v2` |
//! | `GDRCOPY_USE_DMABUF_MMAP` | 1: from 2.6 on, dma-bufs of the driver in place of the module, as with the real library. They are also used where there is no module |
//!
//! Its answers are written from the sources and documents of gdrcopy, and not measured. Guesses and limits:
//! flags that mean nothing are refused by `gdr_pin_buffer_v2` also where the library would not look; forcing PCIe
//! needs a coherent platform and persistent mapping; tokens other than 0 are refused; handles that were given back
//! are refused, and so is unmapping what is not just the mapping (the real library would unmap what is there);
//! no kind of mapping differs from another but by its name; dma-bufs that overlap, and are not the same, are
//! refused by the simulated driver.
//!
//! `simgdr_pins` and `simgdr_mappings` count what is pinned and mapped in this process.
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
mod path;
mod pins;
#[cfg(target_pointer_width = "64")]
mod vanish;
mod window;

pub use path::{LIBRARY_VARIABLE, library_path};

#[cfg(test)]
cuda_mem_watchdog::watch_program!();
