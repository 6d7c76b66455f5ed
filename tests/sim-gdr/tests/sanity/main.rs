//! gdrcopy's own sanity tests on the simulated library and the simulated driver, by their names: those of
//! version 2.5, whose functions come in two kinds, for memory of `cuMemAlloc` and for mapped memory.
//!
//! Each test is a process of its own, which has knobs of its own; what has to end with a signal is a
//! child of that.

#[allow(
    unused_imports,
    unused_macros,
    reason = "the tests of the simulated driver use all of it"
)]
#[path = "../../../sim-driver/tests/driver/apart.rs"]
mod apart;
mod attributes;
mod basic;
mod child;
mod data;
mod dma_buf;
mod environment;
mod fork;
mod invalidation;
mod library;

cuda_mem_watchdog::watch_program!();
