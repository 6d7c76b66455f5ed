//! NVTX's memory extension, raw: how a tool such as compute-sanitizer learns which parts of memory are in use.
//!
//! NVTX is no library to open. A tool that wants to be notified sets [`NVTX_INJECTION_VARIABLE`] to its own library, and
//! [`load`] hands that library an empty table, which it fills. Written by hand for the extension's compatibility number
//! [`NVTX_EXT_COMPATID_MEM`].
//!
//! ```
//! // Call it after `cuInit`, as tools ask for.
//! match cuda_driver_sys::nvtx::load() {
//!     Ok(Some(tool)) => println!("{} has {} functions", tool.path().display(), tool.table().count()),
//!     Ok(None) => println!("no tool"),
//!     Err(error) => println!("{error}"),
//! }
//! ```

mod table;
mod tool;
mod types;

pub use table::*;
pub use tool::{NVTX_INJECTION_VARIABLE, NvtxLoadError, NvtxTool, load, load_from};
pub use types::*;
