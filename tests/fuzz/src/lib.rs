//! Fuzzing of what others wrote. Each module has one `check`, which reads any bytes and panics if a promise
//! about them does not hold.
//!
//! `targets/` hands them what libFuzzer finds, with nightly Rust; the tests of this package hand them a
//! fixed slice of changed good inputs, with any Rust.

#![cfg(target_os = "linux")]

pub mod changes;
pub mod code;
pub mod headers;
pub mod logs;
pub mod messages;
pub mod names;
pub mod visible;

// The model that is taken from `cuda-mem` expects them two modules above its own.
pub(crate) use cuda_mem::placement::{Identity, VisibleDevice};
