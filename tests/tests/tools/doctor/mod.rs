//! The doctor as its user meets it: what it says of machines that lack something, in both forms, and
//! of machines that have no driver at all.

mod healthy;
mod ill;
mod nothing;
// A process of Linux takes all its address space for these. Wine needs a byte for each 4 KiB of it, and Windows has no
// `ulimit`.
#[cfg(target_os = "linux")]
mod unusable;

use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::sys::LIBRARY_VARIABLE;
use cuda_mem_tests::environment::{Environment, sim_path};
use cuda_mem_tests::own_process;
use serde_json::Value;

use super::examples::full_disk;

/// What processes of this system share pools through, as the doctor names it.
const HANDLE: &str = if cfg!(windows) {
    "handle"
} else {
    "descriptor"
};

/// The kinds of pool that the doctor tries.
const KINDS: [&str; 6] = ["plain", HANDLE, "fabric", "host", "numa_0", "managed"];

/// The program with these arguments, on a machine where nothing is set but these.
fn doctor(set: &[(&str, &str)], arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(own_process::example("doctor")?);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CUDA_SIM_") {
            command.env_remove(name.as_ref());
        }
    }
    command
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env_remove(LIBRARY_VARIABLE)
        .env("CUDA_SIM_LIBRARY", sim_path()?)
        .envs(set.iter().copied())
        .args(arguments);
    Ok(command)
}

/// It ended by itself, and nothing in it panicked.
fn ended(mut command: Command) -> Result<(i32, String)> {
    let output: Output = own_process::started(|| command.output())?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(!errors.contains("panicked"), "{errors}");
    let code = output.status.code().context("killed")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok((code, text))
}

/// The JSON document, whose own exit code is the process's.
fn document(command: Command) -> Result<Value> {
    let (code, text) = ended(command)?;
    let value: Value = serde_json::from_str(&text).with_context(|| text.clone())?;
    ensure!(value["exit_code"] == code, "{code}: {value}");
    ensure!(value["format"] == 1, "{value}");
    Ok(value)
}

/// The document about a simulated machine.
fn machine(settings: &[(&str, &str)]) -> Result<Value> {
    let value = document(doctor(settings, &["--simulate", "--json"])?)?;
    for device in list(&value["devices"])? {
        // The examination left no trace, whatever there was to find.
        let context = &device["context"];
        ensure!(context["active_before"] == false, "{settings:?}: {device}");
        ensure!(context["active_after"] == false, "{settings:?}: {device}");
    }
    Ok(value)
}

fn list(value: &Value) -> Result<&[Value]> {
    Ok(value.as_array().context("no list")?)
}

/// All strings of a list as one text.
fn joined(value: &Value) -> Result<String> {
    let lines: Option<Vec<&str>> = list(value)?.iter().map(Value::as_str).collect();
    Ok(lines.context("not only texts")?.join("\n"))
}

fn has(text: &str, words: &[&str]) -> Result<()> {
    for word in words {
        ensure!(text.contains(word), "{word:?} is not in: {text}");
    }
    Ok(())
}

/// A device with this verdict, for these reasons, and with this advice.
fn found(device: &Value, verdict: &str, because: &[&str], advice: &[&str]) -> Result<()> {
    ensure!(device["verdict"] == verdict, "{device:#}");
    has(&joined(&device["because"])?, because)?;
    has(&joined(&device["advice"])?, advice)
}

#[apply(case)]
fn arguments_and_exit_codes_are_explained(_: &Environment) -> Result<()> {
    let (code, _) = ended(doctor(&[], &["--teapot"])?)?;
    ensure!(code == 2);
    let (code, help) = ended(doctor(&[], &["--help"])?)?;
    ensure!(code == 0);
    has(
        &help,
        &["--json", "--measure", "--simulate", "Exit codes", "  3  "],
    )
}

#[apply(case)]
fn a_reader_that_leaves_is_no_failure_and_a_full_disk_is(_: &Environment) -> Result<()> {
    let mut command = doctor(&[], &["--simulate"])?;
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = own_process::started(|| command.spawn())?;
    drop(child.stdout.take());
    let output = child.wait_with_output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.code() == Some(0) && errors.is_empty(),
        "{errors}"
    );
    let mut command = doctor(&[], &["--simulate"])?;
    command.stdout(full_disk()?).stderr(full_disk()?);
    let status = own_process::started(|| command.status())?;
    ensure!(status.code() == Some(3), "{status}");
    Ok(())
}
