//! Test bodies that hold on every driver.

mod buffer;
mod capture;
mod context;
mod context_ends;
mod default_pool;
mod default_streams;
mod device;
mod failure;
mod foreign;
mod graph;
mod ipc;
mod ipc_ends;
mod ipc_loans;
mod kinds;
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
