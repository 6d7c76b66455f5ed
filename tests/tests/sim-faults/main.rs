//! Driver calls that fail, on the simulator: typed errors or reports of destructors, nothing left over, no panic.

#[macro_use(apply)]
extern crate macro_rules_attribute;
#[macro_use]
extern crate cuda_mem_tests;

mod arena;
mod arena_ends;
mod arena_moves;
mod arena_panics;
mod collective;
mod deferred;
mod dlpack;
mod graph;
mod host;
// Through descriptors.
#[cfg(unix)]
mod ipc;
mod managed;
mod placement;
mod pools;
mod refused;
mod single;
mod sweep;
mod vmm;
mod waits;
mod wrong_frees;

use std::process::ExitCode;

use cuda_mem_tests::case::{Kind, Test};
use cuda_mem_tests::run;
use cuda_mem_tests::suite::Suite;

fn main() -> ExitCode {
    run::main(&[
        faults(Suite::made_of("faults-1", is_of_first_half)),
        faults(Suite::made_of("faults-2", |test| {
            is_ours(test) && !is_of_first_half(test) && !is_of_nccl(test)
        })),
        faults(Suite::made_of("faults-nccl", is_of_nccl)),
        sweep::PAIRS,
        managed::REFUSED,
    ])
}

fn is_ours(test: &Test) -> bool {
    matches!(test.kind, Kind::Any | Kind::Simulator) && test.is_in("sim_faults")
}

/// Splits the tests into two suites that take about as long and run side by side.
fn is_of_first_half(test: &Test) -> bool {
    is_ours(test)
        && ["sweep", "single", "pools", "refused", "placement", "graph"]
            .iter()
            .any(|module| test.is_in(&format!("sim_faults::{module}")))
}

/// They launch graphs, after which streams wait for each other by other calls.
fn is_of_nccl(test: &Test) -> bool {
    is_ours(test) && test.is_in("sim_faults::collective")
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
