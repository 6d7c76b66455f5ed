//! Managed memory, on the driver that CUDA_MEM_TEST_BACKEND names or that is there.
//!
//! One at a time: small buffers share pages, and some tests hold a stream.

use cuda_mem_tests::managed;
use cuda_mem_tests::run::{self, Options};

fn main() -> std::process::ExitCode {
    let options = Options {
        serial: true,
        ..Options::default()
    };
    run::main(&managed::all(), options)
}
