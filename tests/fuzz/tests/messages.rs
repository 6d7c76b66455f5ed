//! A fixed slice of messages between processes. Alone in its program, because it counts descriptors.

#![cfg(target_os = "linux")]

use cuda_mem_fuzz::{changes, messages};

fn open_files() -> usize {
    let files = std::fs::read_dir("/proc/self/fd").expect("Linux has it");
    files.count()
}

#[test]
fn messages_are_taken_or_refused_and_leave_no_descriptor() {
    let good = messages::genuine();
    let mut before = None;
    for (index, input) in changes::of(&good, 2500).enumerate() {
        messages::check(&input);
        // The first ones open what is kept.
        if index == good.len() {
            before = Some(open_files());
        }
    }
    assert_eq!(Some(open_files()), before);
}

cuda_mem_watchdog::watch_program!();
