//! Test bodies that hold on every driver.

mod buffer;
mod capture;
mod capture_elsewhere;
mod capture_meetings;
mod capture_pools;
mod context;
mod context_ends;
mod default_pool;
mod default_streams;
mod deferred;
mod device;
mod device_waits;
mod dlpack;
mod failure;
mod foreign;
#[cfg(unix)]
mod foreign_captures;
mod futures;
mod graph;
#[cfg(windows)]
mod handles;
mod imports;
#[cfg(unix)]
mod ipc;
#[cfg(unix)]
mod ipc_captures;
#[cfg(unix)]
mod ipc_ends;
#[cfg(unix)]
mod ipc_exports;
#[cfg(unix)]
mod ipc_full;
#[cfg(unix)]
mod ipc_loans;
mod kinds;
mod limit_futures;
mod order;
mod plain;
mod pointer;
mod pool;
mod pool_ends;
mod reuse;
mod rules;
mod samples;
mod samples_graph;
mod slices;
mod threshold;
mod waits;
