//! The built simulator, driven as a program drives a driver.
//!
//! The simulator has one state a process, so the tests of this file take turns.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "every call goes through one macro, which says why"
)]

mod harness;
mod pools;
mod smoke;
