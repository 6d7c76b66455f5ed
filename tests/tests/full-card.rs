//! Running out of the whole card. A program of its own, because no test of any process may run beside it.

use cuda_mem_tests::resources;
use cuda_mem_tests::run::{self, Options};

fn main() -> std::process::ExitCode {
    run::main(&resources::full_card(), Options::default())
}
