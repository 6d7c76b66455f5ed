//! The whole CUDA driver API, raw, opened at run time.
//!
//! Building needs no CUDA toolkit and no driver; running needs no particular version of one. The
//! types come from the newest `cuda.h`, every function is an `Option` in a [`DriverTable`], and a
//! driver that is absent or old is an error value and never a panic.
//!
//! ```
//! match cuda_driver_sys::load() {
//!     Ok(library) if library.table().has("cuMemPoolCreate") => println!("has memory pools"),
//!     Ok(_) => println!("older than CUDA 11.2"),
//!     Err(error) => println!("{error}"),
//! }
//! ```
//!
//! Names are those of the header. A table field carries the real symbol (`cuMemAlloc_v2`), because
//! the bare name is another function with an older ABI; [`SPELLINGS`] maps what C programs write
//! to the symbol. Enums are integer newtypes, so a value newer than these bindings is data. This
//! crate has no policy: ownership, errors and order are the business of `cuda-mem`.

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    clippy::all,
    clippy::multiple_unsafe_ops_per_block,
    clippy::undocumented_unsafe_blocks,
    reason = "generated from cuda.h with its names; NVIDIA documents them"
)]
mod types;

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    clippy::too_many_arguments,
    reason = "generated from cuda.h with its names; NVIDIA documents them"
)]
mod table;

mod compat;
mod functions;
#[allow(
    non_camel_case_types,
    non_upper_case_globals,
    reason = "the names of gdrapi.h, as its programs write them"
)]
pub mod gdr;
mod library;
mod names;
#[allow(
    non_camel_case_types,
    non_snake_case,
    reason = "the names of NCCL, as its header has them"
)]
pub mod nccl;
#[allow(
    non_camel_case_types,
    non_snake_case,
    reason = "the names of NVML, as its reference has them"
)]
pub mod nvml;
#[allow(
    non_camel_case_types,
    non_snake_case,
    reason = "the names of NVTX, as its headers have them"
)]
pub mod nvtx;
mod opening;
mod resolve;
mod version;
mod versions;

pub use compat::*;
pub use library::{DriverLibrary, LIBRARY_VARIABLE, LoadError, load, load_from};
pub use opening::{Attempt, AttemptFailure};
pub use table::*;
pub use types::*;
pub use version::{CudaVersion, MissingSymbol, Symbol};
pub use versions::{HEADER_VERSION, SPELLINGS, SYMBOLS};

#[cfg(test)]
cuda_mem_watchdog::watch_program!();
