//! What the simulator asks of the operating system: addresses, memory with several addresses, memory that other
//! processes map too, the end of threads, and waking those that wait.
//!
//! Each system has one module with the same names.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(windows)]
mod windows;

#[cfg(target_os = "linux")]
pub(crate) use linux::*;
#[cfg(windows)]
pub(crate) use windows::*;

/// Header words for the owner of a shared file.
pub(crate) type Words = [u64; 4];
