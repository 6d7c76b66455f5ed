//! Machines that only the simulator can be: older drivers, missing libraries, refused kinds of memory. Each is a process of
//! its own, because the simulator reads its settings once.

#[macro_use(apply)]
extern crate macro_rules_attribute;
#[macro_use]
extern crate cuda_mem_tests;

#[cfg(target_os = "linux")]
mod arena;
#[cfg(target_os = "linux")]
mod coherent;
mod counts;
mod eager;
mod fallback;
#[cfg(target_os = "linux")]
mod gdrcopy;
mod load;
mod models;
mod nvml;
mod pools;
mod reach;
// What drivers of Linux have.
#[cfg(target_os = "linux")]
mod support;
#[cfg(target_os = "linux")]
mod versions;
mod watchdog;

use std::process::ExitCode;

use anyhow::Result;
use cuda_mem::Driver;
use cuda_mem_tests::case::Kind;
use cuda_mem_tests::run;
use cuda_mem_tests::suite::Suite;
use cuda_sim::{Machine, Simulator};

/// Starts a machine with 1 GiB in this process.
fn start(machine: Machine) -> Result<(Simulator, Driver)> {
    // Windows' own models have no managed pools.
    let machine = machine
        .memory(1 << 30)
        .set("CUDA_SIM_DRIVER_MODEL", "linux");
    let simulator = machine.start()?;
    let driver = Driver::load_simulated(&simulator)?;
    Ok((simulator, driver))
}

fn main() -> ExitCode {
    let parts = [
        eager::as_child,
        #[cfg(target_os = "linux")]
        gdrcopy::as_child,
        load::as_child,
        nvml::as_child,
        #[cfg(target_os = "linux")]
        support::as_child,
    ];
    if let Some(outcome) = parts.into_iter().find_map(|as_child| as_child()) {
        return run::exit_code(outcome);
    }
    run::main(&[
        Suite::made_of("machines", |test| {
            test.kind == Kind::Any
                && test.is_in("sim_machines")
                && !test.is_in("sim_machines::counts")
        })
        .sim_only(),
        // The simulator counts for the whole process.
        Suite::of("sim_machines::counts").sim_only().serial(),
        #[cfg(target_os = "linux")]
        versions::CONTRACT,
        #[cfg(target_os = "linux")]
        versions::RESOURCES,
        #[cfg(target_os = "linux")]
        versions::BESIDE,
        #[cfg(target_os = "linux")]
        coherent::SUITES,
        fallback::CONFORMANCE,
        watchdog::HUNG,
        watchdog::PATIENT,
    ])
}
