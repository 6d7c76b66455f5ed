//! The ledger, on the driver that CUDA_MEM_TEST_BACKEND names or that is there.
//!
//! One at a time: there is one ledger in a process.

use cuda_mem_tests::lab::{Backend, Lab};
use cuda_mem_tests::ledger;
use cuda_mem_tests::run::{self, Options};

fn main() -> std::process::ExitCode {
    let options = Options {
        serial: true,
        ..Options::default()
    };
    let mut all = ledger::all();
    if Lab::get().is_ok_and(|lab| lab.backend == Backend::Sim) {
        all.extend(ledger::of_sim());
    }
    run::main(&all, options)
}
