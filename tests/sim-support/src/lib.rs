//! What the simulated driver, NVML and gdrcopy share. They cannot depend on each other: a library that links the
//! simulated driver would export its functions too.
//!
//! Not for other programs: anything here may change with any version.
//!
//! Linux only; elsewhere the crate is empty.

#![cfg(target_os = "linux")]

pub mod clock;
#[cfg(target_pointer_width = "64")]
pub mod elf;
pub mod find;
pub mod page;
pub mod settings;
