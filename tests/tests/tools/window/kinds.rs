//! Kinds of windows that few machines have, simulated wherever this runs.

use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::sys::LIBRARY_VARIABLE;
use cuda_mem::sys::gdr::GDR_LIBRARY_VARIABLE;
use cuda_mem_tests::environment::{Environment, sim_path};
use cuda_mem_tests::own_process;

use super::{ended, list, object, text, windows};

/// On a simulated machine whose dma-bufs can be mapped, and which has gdrcopy.
fn on_one_with_all(arguments: &[&str]) -> Result<Output> {
    let gdr = gdrapi_sim::library_path().context("the simulated gdrcopy was not built")?;
    ended(
        with(arguments)?
            .env(GDR_LIBRARY_VARIABLE, gdr)
            .env("CUDA_SIM_DRIVER_VERSION", "13030")
            .env("CUDA_SIM_DMA_BUF_MMAP", "1"),
    )
}

/// On a simulated machine that has neither.
fn on_a_plain_one(arguments: &[&str]) -> Result<Output> {
    ended(with(arguments)?.env(GDR_LIBRARY_VARIABLE, "/nowhere/libgdrapi.so"))
}

fn with(arguments: &[&str]) -> Result<Command> {
    let mut command = Command::new(own_process::example("window")?);
    command.args(arguments).args(["--quick", "--json"]);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CUDA_SIM_") {
            command.env_remove(name);
        }
    }
    command.env_remove("CUDA_VISIBLE_DEVICES");
    command.env(LIBRARY_VARIABLE, sim_path()?);
    Ok(command)
}

#[apply(case)]
fn every_kind_is_measured_where_it_can_be_had(_: &Environment) -> Result<()> {
    for tool in ["latency", "bandwidth", "calls", "ping-pong"] {
        let report = object(&on_one_with_all(&[tool])?)?;
        let all = ["host-mapped", "dma-buf", "gdrcopy", "copies"];
        ensure!(windows(&report)? == all, "{report}");
        for kind in all {
            let mut rows = list(&report, "rows")?.iter();
            let has = rows.any(|row| row["way"] == kind || row["window"] == kind);
            ensure!(has, "no row of {kind}: {report}");
        }
    }
    Ok(())
}

#[apply(case)]
fn gdrcopy_has_calls_of_its_own(_: &Environment) -> Result<()> {
    let report = object(&on_one_with_all(&["calls"])?)?;
    for row in list(&report, "rows")? {
        if row["call"] == "gdr_info" {
            ensure!(row["window"] == "gdrcopy", "{row}");
            return Ok(());
        }
    }
    anyhow::bail!("nothing of gdr_info: {report}")
}

#[apply(case)]
fn a_kind_that_is_not_there_is_named_with_the_reason(_: &Environment) -> Result<()> {
    let report = object(&on_a_plain_one(&["ping-pong"])?)?;
    ensure!(windows(&report)? == ["host-mapped", "copies"], "{report}");
    let output = on_a_plain_one(&["latency", "--kind", "gdrcopy"])?;
    ensure!(output.status.code() == Some(1), "{:?}", output.status);
    let errors = text(&output.stderr);
    ensure!(
        errors.contains("gdrcopy: ") && errors.contains("/nowhere/libgdrapi.so"),
        "{errors}"
    );
    ensure!(output.stdout.is_empty(), "{}", text(&output.stdout));
    Ok(())
}

#[apply(case)]
fn one_kind_can_be_asked_for(_: &Environment) -> Result<()> {
    let report = object(&on_one_with_all(&["ping-pong", "--kind", "dma-buf"])?)?;
    ensure!(windows(&report)? == ["dma-buf"], "{report}");
    ensure!(list(&report, "rows")?.len() == 1, "{report}");
    Ok(())
}
