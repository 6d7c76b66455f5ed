//! The built simulator, driven as a program drives a driver.
//!
//! The simulator has one state a process, so the tests of this file take turns.

mod annotate;
mod apart;
mod callbacks;
#[cfg(target_os = "linux")]
mod coherent;
mod control;
mod copies;
mod devices;
#[cfg(target_os = "linux")]
mod dma_buf;
mod graph_kernels;
mod graphs;
mod handles;
mod harness;
#[cfg(target_os = "linux")]
mod header;
mod host;
mod kernel_access;
mod kernels;
mod launches;
mod libraries;
mod logs;
mod machines;
mod managed;
mod mapped;
mod memory;
mod modules;
mod nodes;
mod peers;
mod places;
mod pools;
mod pressure;
#[cfg(target_os = "linux")]
mod process;
mod reuse;
mod sanitizer;
mod several;
mod streams;
mod told;
mod variables;
mod vmm;

cuda_mem_watchdog::watch_program!();
