//! Virtual memory, on the driver that CUDA_MEM_TEST_BACKEND names or that is there.
//!
//! One at a time: some tests load code, which waits for streams that others hold.

use cuda_mem_tests::run::{self, Options};
use cuda_mem_tests::vmm;

fn main() -> std::process::ExitCode {
    let options = Options {
        serial: true,
        ..Options::default()
    };
    run::main(&vmm::all(), options)
}
