//! The examples as a person meets them: what they print, and what they say to mistakes.

#[macro_use(apply)]
extern crate macro_rules_attribute;
#[macro_use]
extern crate cuda_mem_tests;

mod collectives;
mod doctor;
mod examples;
mod ipc;
mod quickstart;
mod replay;
mod report;
mod window;

use std::process::ExitCode;

use cuda_mem_tests::run;
use cuda_mem_tests::suite::Suite;

fn main() -> ExitCode {
    run::main(&[Suite::of("tools")])
}
