//! What a user of an arena can count on, on the driver that CUDA_MEM_TEST_BACKEND names or that is there.

use cuda_mem_tests::arena;
use cuda_mem_tests::run::{self, Options};

fn main() -> std::process::ExitCode {
    run::main(&arena::all(), Options::default())
}
