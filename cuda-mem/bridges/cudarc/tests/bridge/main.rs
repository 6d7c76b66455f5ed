//! Both crates on one machine, on a GPU if there is one and on the simulated driver otherwise.
//!
//! One test runs at a time: some of them look at the statistics of the driver, or let its calls fail.

mod common;
mod copies;
mod driver;
mod order;
mod ownership;

use anyhow::Result;
use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> Result<()> {
    driver::restart_if_no_driver();
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    if !arguments.list {
        common::announce()?;
    }
    let tests = [copies::TESTS, order::TESTS, ownership::TESTS].concat();
    let trials = tests
        .into_iter()
        .map(|(name, test)| Trial::test(name, move || checked(test)))
        .collect();
    libtest_mimic::run(&arguments, trials).exit()
}

/// A test's name and body.
type Test = (&'static str, fn() -> Result<()>);

/// Runs a test. On the simulated driver nothing may have been out of order, and nothing may be left.
fn checked(test: fn() -> Result<()>) -> Result<(), Failed> {
    test().map_err(|error| format!("{error:?}"))?;
    let Some(simulator) = common::simulator() else {
        return Ok(());
    };
    let reports = simulator.reports();
    simulator.reset();
    let live = simulator.live();
    if reports.is_empty() && live.allocations == 0 && live.streams == 0 {
        return Ok(());
    }
    Err(format!("reports: {reports:?}; left: {live:?}").into())
}
