//! gdrcopy's own sanity tests on the simulated library and driver, under their original names: those of version 2.5,
//! whose functions have two variants, for `cuMemAlloc` memory and for mapped memory.
//!
//! Each test runs in its own process with its own settings; whatever must end with a signal runs in a child of it.

#[allow(
    unused_imports,
    unused_macros,
    reason = "the tests of the simulated driver use all of it"
)]
// A link: the archive of this crate has the file itself.
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
