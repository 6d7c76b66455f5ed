//! NVML, the library behind `nvidia-smi`, raw, opened at run time: the few functions that tell about
//! GPUs before anybody uses them.
//!
//! Written by hand, because the list is short. What is said of the driver holds here too: every
//! function is an `Option` in an [`NvmlTable`], result codes are integers with names, and a library
//! that is absent is an error value that lists what was tried.
//!
//! ```
//! match cuda_driver_sys::nvml::load() {
//!     Ok(library) => println!("{} functions", library.table().count()),
//!     Err(error) => println!("{error}"),
//! }
//! ```

mod library;
mod result;
mod table;
mod types;

pub use library::{NVML_LIBRARY_VARIABLE, NvmlLibrary, NvmlLoadError, load, load_from};
pub use result::nvmlReturn_t;
pub use table::*;
pub use types::*;
