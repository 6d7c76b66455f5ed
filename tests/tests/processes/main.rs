//! The end of a process, and of things that others own, on the driver that the other tests use.

#[macro_use(apply)]
extern crate macro_rules_attribute;
#[macro_use]
extern crate cuda_mem_tests;

mod ends;

use std::process::ExitCode;

use cuda_mem_tests::run;
use cuda_mem_tests::suite::Suite;

fn main() -> ExitCode {
    if let Some(outcome) = ends::as_child() {
        return run::exit_code(outcome);
    }
    run::main(&[Suite::of("processes")])
}
