//! The programs of this package on the simulated driver.

mod answers;
mod functions;
mod waits;

use std::ffi::OsStr;
use std::process::Command;
use std::sync::LazyLock;

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

/// Topics whose questions are asked side by side too, because they take longest.
const LONG: [&str; 6] = [
    "copies",
    "ipc_events",
    "kinds",
    "loading",
    "managed_use",
    "observe",
];

/// All answers of the simulator about some topics, and the functions that each question calls. The topics are asked side
/// by side: most of the time goes into showing that something does not happen.
fn probe_the_simulator(devices: u32, is_wanted: impl Fn(&str) -> bool) -> String {
    let library = cuda_sim::library_path().expect("cargo has built the simulator");
    let list = probe(&["--list".as_ref()], devices);
    // A question alone, or a topic with its dot, in the order of the topics and within one in that of the list.
    let mut topics: Vec<(&str, &str)> = Vec::new();
    for question in list.lines() {
        let Some((topic, _)) = question
            .split_once('.')
            .filter(|(topic, _)| is_wanted(topic))
        else {
            continue;
        };
        let part = if LONG.contains(&topic) {
            question
        } else {
            &question[..=topic.len()]
        };
        if !topics.contains(&(topic, part)) {
            topics.push((topic, part));
        }
    }
    topics.sort_by_key(|(topic, _)| *topic);
    let topics: Vec<&str> = topics.into_iter().map(|(_, part)| part).collect();
    let ask = |only: &str| {
        let arguments = [
            "--calls".as_ref(),
            "--library".as_ref(),
            library.as_os_str(),
            "--only".as_ref(),
            only.as_ref(),
        ];
        probe(&arguments, devices)
    };
    let texts: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = topics
            .iter()
            .map(|topic| scope.spawn(|| ask(topic)))
            .collect();
        let texts = threads.into_iter().map(|thread| thread.join());
        texts.map(|text| text.expect("the probe runs")).collect()
    });
    for (topic, text) in topics.iter().zip(&texts) {
        assert!(text.starts_with("# CUDA 13.0 on Simulated GPU 0\n"));
        assert!(text.lines().count() > 1, "{topic}");
    }
    texts.concat()
}

/// What [`probe_the_simulator`] says of one device; asked once.
fn of_one_device() -> &'static str {
    static TEXT: LazyLock<String> =
        LazyLock::new(|| probe_the_simulator(1, |topic| !OF_TWO_DEVICES.contains(&topic)));
    &TEXT
}

/// The same of two.
fn of_two_devices() -> &'static str {
    static TEXT: LazyLock<String> =
        LazyLock::new(|| probe_the_simulator(2, |topic| OF_TWO_DEVICES.contains(&topic)));
    &TEXT
}

cuda_mem_watchdog::watch_program!();
