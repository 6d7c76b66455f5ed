//! The replay as its user meets it: what it reads, what it prints, and what it says to bad logs and
//! arguments.

mod arguments;
mod comparing;
mod figures;
mod pictures;
mod reading;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Result, ensure};
use cuda_mem::sys::LIBRARY_VARIABLE;
use cuda_mem_tests::environment::{Backend, Environment, sim_path};
use cuda_mem_tests::own_process;
use serde_json::Value;

/// It ended by itself, on the driver under test.
fn replay(env: &Environment, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(own_process::example("replay")?);
    command.args(arguments);
    if env.backend == Backend::Sim {
        command.env(LIBRARY_VARIABLE, sim_path()?);
    }
    ended(command)
}

fn ended(mut command: Command) -> Result<Output> {
    let output = own_process::started(|| command.output())?;
    let errors = text(&output.stderr);
    ensure!(!errors.contains("panicked"), "{errors}");
    ensure!(output.status.code().is_some(), "killed: {errors}");
    Ok(output)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The objects that it printed, one a line.
fn objects(output: &Output) -> Result<Vec<Value>> {
    ensure!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
        .lines()
        .map(|line| Ok(serde_json::from_str(line)?))
        .collect()
}

fn json(env: &Environment, log: &Path, arguments: &[&str]) -> Result<Vec<Value>> {
    let log = log.display().to_string();
    let mut all = vec![log.as_str(), "--json"];
    all.extend_from_slice(arguments);
    objects(&replay(env, &all)?)
}

fn has(text: &str, words: &[&str]) -> Result<()> {
    for word in words {
        ensure!(text.contains(word), "{word:?} is not in: {text}");
    }
    Ok(())
}

/// This exit code, and every word in the message.
fn refused(output: &Output, code: i32, words: &[&str]) -> Result<()> {
    let errors = text(&output.stderr);
    ensure!(output.status.code() == Some(code), "{errors}");
    has(&errors, words)
}

const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

/// Five operations of one thread on one stream; at most 1,005,070 bytes alive, and 5070 at the end.
const ROWS: &str = "0,0.1,allocate,0x10,1000000,0\n0,0.2,allocate,0x20,5000,0\n\
                    0,0.3,allocate,0x30,70,0\n0,0.4,free,0x10,1000000,0\n\
                    0,0.5,allocate failure,0x0,12345,0\n0,0.6,allocate,0x10,0,0\n";

struct Log {
    folder: tempfile::TempDir,
    path: PathBuf,
}

/// A log in a scratch folder, packed or not.
fn log_of(bytes: &[u8]) -> Result<Log> {
    let folder = tempfile::tempdir()?;
    // The name says nothing about the packing.
    let path = folder.path().join("log");
    std::fs::write(&path, bytes)?;
    Ok(Log { folder, path })
}

fn log(rows: &str) -> Result<Log> {
    log_of(format!("{HEADER}{rows}").as_bytes())
}
