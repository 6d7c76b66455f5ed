//! gdrcopy's library, raw, opened at run time: loads and stores of the CPU on memory of a GPU, through
//! the kernel module `gdrdrv` or, from version 2.6 on, through dma-buf.
//!
//! Written by hand for versions 1.3 to 2.6. What is said of the driver holds here too: every function is
//! an `Option` in a [`GdrTable`], and a library that is absent is an error value that lists what was
//! tried. Most functions answer 0 or a positive `errno`.
//!
//! ```
//! match cuda_driver_sys::gdr::load() {
//!     Ok(library) => println!("{} functions", library.table().count()),
//!     Err(error) => println!("{error}"),
//! }
//! ```

mod library;
mod table;
mod types;

pub use library::{GDR_LIBRARY_VARIABLE, GdrLibrary, GdrLoadError, load, load_from};
pub use table::*;
pub use types::*;
