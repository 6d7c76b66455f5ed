//! Memory of the host that devices reach, on the driver that CUDA_MEM_TEST_BACKEND names or that is there.
//!
//! One at a time: freeing pinned memory waits for the device, and some tests hold a stream.

use cuda_mem_tests::host;
use cuda_mem_tests::lab::{Backend, Lab};
use cuda_mem_tests::run::{self, Options};

fn main() -> std::process::ExitCode {
    let options = Options {
        serial: true,
        ..Options::default()
    };
    let mut all = host::all();
    if Lab::get().is_ok_and(|lab| lab.backend == Backend::Sim) {
        all.extend(host::of_sim());
    }
    run::main(&all, options)
}
