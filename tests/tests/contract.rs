//! The contract, on the driver that CUDA_MEM_TEST_BACKEND names or that is there.

use cuda_mem_tests::run::{self, Options};
use cuda_mem_tests::{contract, peers, resources};

fn main() -> std::process::ExitCode {
    let mut all = contract::all();
    // Whoever wants to know what the tests call wants to know it of all that are written once; the
    // machine has two devices then.
    if run::writes_calls() {
        all.extend(peers::all());
        all.extend(resources::all());
    }
    run::main(&all, Options::default())
}
