//! The example of sharing memory, between two processes.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::sys::LIBRARY_VARIABLE;
use cuda_mem_tests::environment::{Backend, Environment, sim_path};
use cuda_mem_tests::own_process;

/// A process that is gone when the test is.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already unless the test failed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(env: &Environment, name: &str) -> Result<Running> {
    let mut command = Command::new(own_process::example("ipc")?);
    command.arg(name).stdout(Stdio::piped());
    if env.backend == Backend::Sim {
        command.env(LIBRARY_VARIABLE, sim_path()?);
    }
    Ok(Running(command.spawn()?))
}

#[apply(case)]
fn two_processes_share_a_buffer(env: &Environment) -> Result<()> {
    let name = format!("cuda-mem-test-example-{}", std::process::id());
    let mut first = start(env, &name)?;
    let output = first.0.stdout.take().context("no output")?;
    let mut output = BufReader::new(output);
    let mut line = String::new();
    output.read_line(&mut line)?;
    ensure!(line.starts_with("waiting"), "{line}");
    let mut second = start(env, &name)?;
    let mut text = String::new();
    let found = second.0.stdout.take().context("no output")?;
    { found }.read_to_string(&mut text)?;
    ensure!(text == "the other process sent 1, 2, 3, 4\n", "{text}");
    ensure!(second.0.wait()?.success());
    text.clear();
    output.read_to_string(&mut text)?;
    ensure!(text == "the other process left 2, 4, 6, 8\n", "{text}");
    ensure!(first.0.wait()?.success());
    Ok(())
}
