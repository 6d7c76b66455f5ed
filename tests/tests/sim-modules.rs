//! Code that the simulated driver refuses, and the reason that it gives.

use cuda_mem_tests::modules;
use cuda_mem_tests::run::{self, Options};

fn main() -> std::process::ExitCode {
    let options = Options {
        sim_only: true,
        ..Options::default()
    };
    run::main(&modules::of_the_simulator(), options)
}
