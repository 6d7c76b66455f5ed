//! Driver calls that fail, on the simulator: typed errors or reports of destructors, nothing left over, no panic.

#[macro_use(apply)]
extern crate macro_rules_attribute;
#[macro_use]
extern crate cuda_mem_tests;

mod arena;
mod dlpack;
mod graph;
mod host;
mod ipc;
mod managed;
mod placement;
mod single;
mod sweep;
mod vmm;

use std::process::ExitCode;

use cuda_mem_tests::run;
use cuda_mem_tests::suite::Suite;

fn main() -> ExitCode {
    // One at a time: what fails fails for the whole process.
    run::main(&[
        Suite::of("sim_faults")
            .serial()
            .drops_fail()
            .sim_only()
            // Pieces of memory are copied thousands of times.
            .with("CUDA_SIM_GRANULARITY", "64K"),
        sweep::PAIRS,
        managed::REFUSED,
    ])
}
