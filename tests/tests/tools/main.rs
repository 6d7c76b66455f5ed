//! The examples as a person meets them: what they print, and what they say to mistakes.

#[macro_use(apply)]
extern crate macro_rules_attribute;
#[macro_use]
extern crate cuda_mem_tests;

mod collectives;
mod doctor;
mod examples;
// The example sends descriptors, which are Linux'.
#[cfg(target_os = "linux")]
mod ipc;
mod quickstart;
mod replay;
mod report;
mod window;

use std::process::ExitCode;

use cuda_mem_tests::run;
use cuda_mem_tests::suite::Suite;

// Errors of the system, as messages end with them. The words before differ by system.

const NO_FILE: &str = "(os error 2)";
/// A file in a folder that is not there.
const NO_FOLDER: &str = if cfg!(windows) {
    "(os error 3)"
} else {
    NO_FILE
};
const DISK_FULL: &str = if cfg!(windows) {
    "(os error 112)"
} else {
    "(os error 28)"
};

fn main() -> ExitCode {
    run::main(&[Suite::of("tools")])
}
