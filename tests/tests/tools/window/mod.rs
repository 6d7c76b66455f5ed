//! The tools for windows as their user meets them: each measures what it says, with every kind of window that there is,
//! and names the others with the reason.

mod arguments;
#[path = "../../../../cuda-mem/examples/window/figures.rs"]
mod figures;
#[cfg(unix)]
mod kinds;
mod pure;
mod tools;

use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::sys::LIBRARY_VARIABLE;
use cuda_mem_tests::environment::{Backend, Environment, sim_path};
use cuda_mem_tests::own_process;
use serde_json::Value;

/// On the driver under test, with few measurements.
fn quick(env: &Environment, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(own_process::example("window")?);
    command.args(arguments).arg("--quick");
    if env.backend == Backend::Sim {
        command.env(LIBRARY_VARIABLE, sim_path()?);
    }
    ended(&mut command)
}

fn ended(command: &mut Command) -> Result<Output> {
    let output = own_process::started(|| command.output())?;
    let errors = text(&output.stderr);
    ensure!(!errors.contains("panicked"), "{errors}");
    ensure!(output.status.code().is_some(), "killed: {errors}");
    Ok(output)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The one object that it printed.
fn object(output: &Output) -> Result<Value> {
    ensure!(output.status.success(), "{}", text(&output.stderr));
    Ok(serde_json::from_str(&text(&output.stdout))?)
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value]> {
    let list = value[key].as_array();
    let list = list.with_context(|| format!("no list {key}: {value}"))?;
    ensure!(!list.is_empty(), "{key} is empty");
    Ok(list)
}

/// A word of an object.
fn word<'a>(value: &'a Value, key: &str) -> Result<&'a str> {
    let word = value[key].as_str().filter(|word| !word.is_empty());
    word.with_context(|| format!("no {key}: {value}"))
}

/// A figure that was measured: a number, and none below 0.
fn figure(value: &Value, key: &str) -> Result<f64> {
    let figure = value[key].as_f64().filter(|figure| *figure >= 0.0);
    figure.with_context(|| format!("no {key}: {value}"))
}

/// The windows that can be had; every other one has a reason.
fn windows(report: &Value) -> Result<Vec<&str>> {
    let mut all = Vec::new();
    for window in list(report, "windows")? {
        let kind = word(window, "kind")?;
        match window["available"].as_bool() {
            Some(true) => all.push(kind),
            _ => drop(word(window, "reason")?),
        }
    }
    Ok(all)
}
