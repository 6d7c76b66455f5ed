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

use cuda_mem_tests::case::{Kind, Test};
use cuda_mem_tests::run;
use cuda_mem_tests::suite::Suite;

fn main() -> ExitCode {
    run::main(&[
        faults(Suite::made_of("faults-of-calls", is_of_calls)),
        faults(Suite::made_of("faults-of-memory", |test| {
            test.kind == Kind::Any && test.is_in("sim_faults") && !is_of_calls(test)
        })),
        sweep::PAIRS,
        managed::REFUSED,
    ])
}

/// About half of the time.
fn is_of_calls(test: &Test) -> bool {
    test.kind == Kind::Any
        && ["sweep", "single", "placement", "graph"]
            .iter()
            .any(|module| test.is_in(&format!("sim_faults::{module}")))
}

const fn faults(suite: Suite) -> Suite {
    // One at a time: what fails fails for the whole process.
    suite
        .serial()
        .drops_fail()
        .sim_only()
        // Pieces of memory are copied thousands of times.
        .with("CUDA_SIM_GRANULARITY", "64K")
}
