//! Running out of the whole card. A program of its own, because no test of any process may run beside it.

use cuda_mem_tests::run::{self, Options};
use cuda_mem_tests::{arena, resources};

fn main() -> std::process::ExitCode {
    let mut tests = resources::full_card();
    tests.extend(arena::full_card());
    let options = Options {
        serial: true,
        ..Options::default()
    };
    run::main(&tests, options)
}
