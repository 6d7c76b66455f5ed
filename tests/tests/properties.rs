//! Random sequences of operations, on the driver that CUDA_MEM_TEST_BACKEND names or that is there.

use cuda_mem_tests::run::{self, Options};
use cuda_mem_tests::{random, tests};

fn main() -> std::process::ExitCode {
    let tests = tests! { random: sequences };
    run::main(&tests, Options::default())
}
