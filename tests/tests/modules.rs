//! Code on devices, on the driver that CUDA_MEM_TEST_BACKEND names or that is there.
//!
//! One at a time: on a GPU the loading of code may wait for the device, and some tests hold a stream.

use cuda_mem_tests::modules;
use cuda_mem_tests::run::{self, Options};

fn main() -> std::process::ExitCode {
    let options = Options {
        serial: true,
        ..Options::default()
    };
    run::main(&modules::all(), options)
}
