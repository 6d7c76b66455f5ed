//! NCCL, raw, opened at run time: the functions that the safe layer uses to move data between GPUs.
//!
//! Written by hand, because the list is short. What is said of the driver holds here too: every function is an `Option` in an
//! [`NcclTable`], result codes are integers with names, and a library that is absent is an error value that lists what was
//! tried.
//!
//! ```
//! match cuda_driver_sys::nccl::load() {
//!     Ok(library) => println!("{} functions", library.table().count()),
//!     Err(error) => println!("{error}"),
//! }
//! ```

mod library;
mod result;
mod table;
mod types;

pub use library::{NCCL_LIBRARY_VARIABLE, NcclLibrary, NcclLoadError, load, load_from};
pub use result::ncclResult_t;
pub use table::*;
pub use types::*;
