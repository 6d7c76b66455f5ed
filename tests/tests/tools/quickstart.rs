//! The main job as its user meets it: output, and what it says to bad arguments.

use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::sys::LIBRARY_VARIABLE;
use cuda_mem_tests::environment::{Backend, Environment, sim_path};
use cuda_mem_tests::own_process;

/// Runs it on the driver under test.
fn quickstart(env: &Environment, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(own_process::example("quickstart")?);
    command.args(arguments);
    if env.backend == Backend::Sim {
        command.env(LIBRARY_VARIABLE, sim_path()?);
    }
    Ok(own_process::started(|| command.output())?)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A log with these rows, in a scratch folder.
fn log(rows: &str) -> Result<(tempfile::TempDir, String)> {
    let dir = tempfile::tempdir()?;
    let path = dir.path().join("log.csv");
    std::fs::write(
        &path,
        format!("Thread,Time,Action,Pointer,Size,Stream\n{rows}"),
    )?;
    Ok((dir, path.display().to_string()))
}

const ROWS: &str = "0,0.1,allocate,0x10,1000000,0\n0,0.2,allocate,0x20,5000,3\n\
                    0,0.3,free,0x10,1000000,0\n0,0.4,allocate,0x10,70,0\n";

/// Code 2, nothing on standard output, and every word in the message.
fn refused(output: &Output, words: &[&str]) -> Result<()> {
    let error = text(&output.stderr);
    ensure!(
        output.status.code() == Some(2),
        "{:?}: {error}",
        output.status
    );
    for word in words {
        ensure!(error.contains(word), "{word} is not in: {error}");
    }
    Ok(())
}

#[apply(case)]
fn tables_tell_the_whole_story(env: &Environment) -> Result<()> {
    let (_dir, path) = log(ROWS)?;
    let output = quickstart(env, &["--trace", &path, "--bytes", "100001"])?;
    let shown = text(&output.stdout);
    ensure!(output.status.success(), "{}", text(&output.stderr));
    for word in [
        "CUDA",
        "memory pools",
        "allocated on two streams",
        "checked every byte",
        "trimmed",
        "high marks reset",
        "reserved / asked",
        "arena",
    ] {
        ensure!(shown.contains(word), "{word} is not in: {shown}");
    }
    Ok(())
}

#[apply(case)]
fn json_is_one_object_with_the_same_figures(env: &Environment) -> Result<()> {
    let (_dir, path) = log(ROWS)?;
    let output = quickstart(env, &["--trace", &path, "--json"])?;
    ensure!(output.status.success(), "{}", text(&output.stderr));
    let value: serde_json::Value = serde_json::from_str(&text(&output.stdout))?;
    ensure!(value["replay"]["operations"] == 4, "{value}");
    ensure!(value["replay"]["peak_asked_bytes"] == 1_005_000, "{value}");
    ensure!(
        value["replay"]["stats"]["used_bytes"] == 0,
        "everything is freed: {value}"
    );
    let arena = &value["replay"]["arena"];
    let reserved = arena["reserved_high_bytes"].as_u64();
    ensure!(reserved.is_some_and(|bytes| bytes >= 1_005_000), "{arena}");
    ensure!(arena["ns_per_operation_warm"].is_number(), "{arena}");
    let steps = value["tour"].as_array().context("no tour")?;
    let last = steps.last().context("an empty tour")?;
    ensure!(last["stats"]["reserved_bytes"] == 0, "{last}");
    Ok(())
}

/// As under Windows' driver model for computing. The reserved bytes of `cuMemAlloc` are nowhere counted.
#[apply(case_of_sim)]
fn a_device_without_pools_is_told_so_and_served(_: &Environment) -> Result<()> {
    let (_dir, path) = log(ROWS)?;
    let on_tcc = |arguments: &[&str]| -> Result<Output> {
        let mut command = Command::new(own_process::example("quickstart")?);
        command.args(["--trace", &path]).args(arguments);
        command.env(LIBRARY_VARIABLE, sim_path()?);
        command.env("CUDA_SIM_DRIVER_MODEL", "tcc");
        Ok(own_process::started(|| command.output())?)
    };
    let output = on_tcc(&[])?;
    let shown = text(&output.stdout);
    ensure!(output.status.success(), "{}", text(&output.stderr));
    for word in [
        "no tour of a pool",
        "memory pools are missing: not on this device",
        "not counted",
    ] {
        ensure!(shown.contains(word), "{word} is not in: {shown}");
    }
    let output = on_tcc(&["--json"])?;
    ensure!(output.status.success(), "{}", text(&output.stderr));
    let value: serde_json::Value = serde_json::from_str(&text(&output.stdout))?;
    ensure!(value["tour"].is_null(), "{value}");
    let replay = &value["replay"];
    ensure!(replay["driver"] == "cuMemAlloc", "{replay}");
    ensure!(replay["stats"].is_null(), "{replay}");
    let reserved = replay["arena"]["reserved_high_bytes"].as_u64();
    ensure!(reserved.is_some_and(|bytes| bytes >= 1_005_000), "{replay}");
    Ok(())
}

#[apply(case)]
fn a_broken_line_is_named(env: &Environment) -> Result<()> {
    let (_dir, path) = log(&format!("{ROWS}0,0.5,free,0x99,1,0\n"))?;
    let output = quickstart(env, &["--trace", &path])?;
    refused(&output, &["log.csv", "line 6", "0x99", "not allocated"])?;
    ensure!(output.stdout.is_empty(), "nothing was begun");
    Ok(())
}

#[apply(case)]
fn a_log_that_is_not_there_is_named(env: &Environment) -> Result<()> {
    refused(
        &quickstart(env, &["--trace", "/nowhere/log.csv"])?,
        &["/nowhere/log.csv"],
    )
}

#[apply(case)]
fn bad_arguments_are_named(env: &Environment) -> Result<()> {
    let (_dir, path) = log(ROWS)?;
    let device = ["--trace", path.as_str(), "--device", "77"];
    refused(&quickstart(env, &device)?, &["--device 77", "device 77 of"])?;
    refused(&quickstart(env, &["--bytes", "0"])?, &["--bytes"])?;
    refused(&quickstart(env, &["--bytes", "many"])?, &["--bytes"])?;
    refused(&quickstart(env, &["--teapot"])?, &["--teapot"])
}

/// A log that needs more memory than there is ends with the numbers and code 1.
#[apply(case)]
fn running_out_is_told_with_numbers(env: &Environment) -> Result<()> {
    let (_dir, path) = log("0,0.1,allocate,0x10,1125899906842624,0\n")?;
    let output = quickstart(env, &["--trace", &path])?;
    let error = text(&output.stderr);
    ensure!(output.status.code() == Some(1), "{error}");
    for word in [
        "operation 1",
        "CUDA_ERROR_OUT_OF_MEMORY (2)",
        "1.0 PiB",
        "device free",
    ] {
        ensure!(error.contains(word), "{word} is not in: {error}");
    }
    Ok(())
}
