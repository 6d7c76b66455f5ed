//! Windows on memory of devices, on the driver that CUDA_MEM_TEST_BACKEND names or that is there.
//!
//! One at a time: giving back plain and pinned memory waits for the device, and some tests hold a stream.

use cuda_mem_tests::run::{self, Options};
use cuda_mem_tests::window;

fn main() -> std::process::ExitCode {
    let options = Options {
        serial: true,
        ..Options::default()
    };
    run::main(&window::all(), options)
}
