//! Where memory should be, on the driver that CUDA_MEM_TEST_BACKEND names or that is there.

use cuda_mem_tests::placement;
use cuda_mem_tests::run::{self, Options};

fn main() -> std::process::ExitCode {
    run::main(&placement::all(), Options::default())
}
