//! The programs of this package on the simulated driver. One test program, because most of its time goes into waiting.

mod answers;
mod functions;
mod waits;

use std::ffi::OsStr;
use std::process::Command;

/// Writes the committed texts and the page instead of comparing them. For when questions were added or the simulator
/// follows the hardware better.
const WRITE: &str = "CUDA_PROBE_WRITE";

const COMMAND: &str = "CUDA_PROBE_WRITE=1 cargo test -p cuda-mem-probe --test sim";

/// Topics that are asked of two devices, and have a record of their own.
const OF_TWO_DEVICES: [&str; 3] = ["across", "peers", "views"];

fn probe(arguments: &[&OsStr], devices: u32) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_probe"))
        .args(arguments)
        .env("CUDA_SIM_DEVICES", devices.to_string())
        .output()
        .expect("the probe runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("the probe prints UTF-8")
}

cuda_mem_watchdog::watch_program!();
