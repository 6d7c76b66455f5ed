//! Memory resources, on the driver that CUDA_MEM_TEST_BACKEND names or that is there. A program of its
//! own: see `cuda_mem_tests::resources`.

use cuda_mem_tests::resources;
use cuda_mem_tests::run::{self, Options};

fn main() -> std::process::ExitCode {
    run::main(&resources::all(), Options::default())
}
