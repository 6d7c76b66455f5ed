//! The program `waits` runs on the simulated driver, in every way it knows, and says what it did.

use std::process::{Command, Output};

fn waits(arguments: &[&str]) -> Output {
    let library = cuda_sim::library_path().expect("cargo has built the simulator");
    Command::new(env!("CARGO_BIN_EXE_waits"))
        .arg("seconds=0")
        .args(arguments)
        .env(cuda_driver_sys::LIBRARY_VARIABLE, library)
        .output()
        .expect("the program runs")
}

#[test]
fn every_option_is_known() {
    for arguments in [
        &[][..],
        &["memory=plain", "events=fresh", "beside=streams"],
        &["beside-memory=plain", "events=own-fresh", "end=waits"],
        &["reuse=off", "beside=threads", "events=kept"],
    ] {
        let output = waits(arguments);
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        let end = "1 passes in ";
        assert!(
            text.contains(&arguments.join(" ")) && text.contains(end),
            "{text}"
        );
        assert!(text.ends_with("every word right\n"), "{text}");
    }
}

#[test]
fn an_unknown_option_is_named() {
    let output = waits(&["events=none"]);
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("'events=none' is not known"), "{text}");
}
