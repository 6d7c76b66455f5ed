//! The examples of collective operations: on two GPUs with NCCL, or on the simulated driver and NCCL.

// NCCL is for Linux: its `ncclMemAlloc` wants memory that is shared by descriptor, which no driver of Windows has.
#[cfg(target_os = "linux")]
mod allreduce;
mod broadcast_weights;
mod ranks;

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::ErrorKind;
use cuda_mem::collective::{Nccl, NcclVersion};
use cuda_mem::sys::LIBRARY_VARIABLE;
use cuda_mem::sys::nccl::NCCL_LIBRARY_VARIABLE;
use cuda_mem_tests::environment::{Backend, Environment, Skip, sim_path};
use cuda_mem_tests::own_process;
use serde_json::Value;

use super::examples::{Ended, ended};

/// A skip unless there are two GPUs and an NCCL with windows.
fn require_nccl(env: &Environment) -> Result<()> {
    let devices = env.driver.device_count()?;
    if devices < 2 {
        return Err(Skip("there is one device".to_owned()).into());
    }
    let least = NcclVersion::new(2, 27, 0);
    match Nccl::load() {
        Ok(nccl) if nccl.version()? >= least => Ok(()),
        Ok(nccl) => {
            let found = nccl.version()?;
            Err(Skip(format!("needs NCCL {least}, found {found}")).into())
        }
        Err(error) if error.kind() == ErrorKind::NcclMissing => Err(Skip(error.to_string()).into()),
        Err(error) => Err(error.into()),
    }
}

fn run(env: &Environment, example: &str, arguments: &[&str]) -> Result<Ended> {
    let mut command = Command::new(own_process::example(example)?);
    command.args(arguments).stdin(Stdio::null());
    match env.backend {
        Backend::Gpu => require_nccl(env)?,
        Backend::Sim => {
            let nccl = nccl_sim::library_path().context("libnccl_sim.so was not built")?;
            command
                .env(LIBRARY_VARIABLE, sim_path()?)
                .env(NCCL_LIBRARY_VARIABLE, nccl)
                .env("CUDA_SIM_DEVICES", "2");
        }
    }
    ended(command, None).with_context(|| format!("{example} {arguments:?}"))
}

/// What an example printed that has done its work.
fn printed(env: &Environment, example: &str, arguments: &[&str]) -> Result<String> {
    let ended = run(env, example, arguments)?;
    ensure!(ended.code == 0, "{arguments:?}: {}", ended.errors);
    Ok(ended.out)
}

/// The object that it printed, with what all of them tell.
fn object(env: &Environment, example: &str, arguments: &[&str]) -> Result<Value> {
    let object: Value = serde_json::from_str(&printed(env, example, arguments)?)?;
    let backend = match env.backend {
        Backend::Sim => "simulated",
        Backend::Gpu => "gpu",
    };
    ensure!(object["backend"] == backend, "{object}");
    for key in ["device", "driver", "nccl", "method"] {
        let is_there = object[key].as_str().is_some_and(|word| !word.is_empty());
        ensure!(is_there, "no {key}: {object}");
    }
    Ok(object)
}

fn rows(object: &Value) -> Result<&[Value]> {
    let rows = object["rows"].as_array();
    Ok(rows.with_context(|| format!("no rows: {object}"))?)
}

/// This exit code, each word in the message, and no output.
fn refused(ended: &Ended, code: i32, words: &[&str]) -> Result<()> {
    let errors = &ended.errors;
    ensure!(ended.code == code, "code {}: {errors}", ended.code);
    for word in words {
        ensure!(errors.contains(word), "{word:?} is not in: {errors}");
    }
    ensure!(ended.out.is_empty(), "it has printed {}", ended.out);
    Ok(())
}
