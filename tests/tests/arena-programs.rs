//! Random programs over arenas, and many moves in one, on the driver that CUDA_MEM_TEST_BACKEND names or that is there.

use cuda_mem_tests::run::{self, Options};
use cuda_mem_tests::{arena, tests};

fn main() -> std::process::ExitCode {
    let tests = tests! { arena: random_programs, many_moves };
    // Random programs look at what the whole process has mapped.
    let options = Options {
        serial: true,
        ..Options::default()
    };
    run::main(&tests, options)
}
