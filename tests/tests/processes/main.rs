//! The end of a process, and of things that others own, on the driver that the other tests use.

#[macro_use(apply)]
extern crate macro_rules_attribute;
#[macro_use]
extern crate cuda_mem_tests;

mod ends;

use std::process::ExitCode;

use cuda_mem_tests::suite::{self, Suite};

fn main() -> ExitCode {
    if let Some(played) = ends::as_child() {
        return suite::ended(played);
    }
    suite::main(&[Suite::of("processes")])
}
