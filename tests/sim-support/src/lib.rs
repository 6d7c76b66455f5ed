//! What the simulated driver, NVML and gdrcopy share. They cannot depend on each other: a library that links the
//! simulated driver would export its functions too.
//!
//! Not for other programs: anything here may change with any version.
//!
//! Linux and Windows only; elsewhere the crate is empty.

#![cfg(any(target_os = "linux", windows))]

pub mod clock;
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub mod elf;
pub mod find;
pub mod library;
pub mod page;
#[cfg(all(windows, target_pointer_width = "64"))]
mod pe;
pub mod settings;

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub use elf::hide_in_library;
#[cfg(all(windows, target_pointer_width = "64"))]
pub use pe::hide_in_library;

/// The name of the file that cargo builds for a library.
#[macro_export]
macro_rules! library_file {
    ($name:literal) => {
        if cfg!(windows) {
            concat!($name, ".dll")
        } else {
            concat!("lib", $name, ".so")
        }
    };
}

/// Has this function, `extern "C" fn()`, run when the library is loaded.
#[macro_export]
macro_rules! on_load {
    ($function:path) => {
        #[used]
        #[cfg_attr(target_os = "linux", unsafe(link_section = ".init_array"))]
        #[cfg_attr(windows, unsafe(link_section = ".CRT$XCU"))]
        static ON_LOAD: extern "C" fn() = $function;
    };
}
