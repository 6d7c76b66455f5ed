//! All resources in turn.

use std::process::Command;

use anyhow::{Result, bail, ensure};
use cuda_mem::sys::LIBRARY_VARIABLE;
use cuda_mem_tests::environment::{Environment, sim_path};
use cuda_mem_tests::own_process;

use super::super::examples::side_by_side;
use super::{ROWS, ended, has, log, objects, refused, replay, text};

const ALL: [&str; 7] = [
    "pool",
    "default-pool",
    "direct",
    "managed",
    "managed-pool",
    "pinned",
    "host-pool",
];

#[apply(case)]
fn every_resource_is_in_it_or_named_with_the_reason(env: &Environment) -> Result<()> {
    let path = log(ROWS)?;
    let path = path.path.display().to_string();
    let ways: [&[&str]; 2] = [&["--passes", "1"], &["--json"]];
    let outputs = side_by_side(&ways, |way| {
        replay(env, &[&[&*path, "--compare"], *way].concat())
    })?;
    let [table, output] = &outputs[..] else {
        bail!("{} outputs", outputs.len());
    };
    ensure!(table.status.success(), "{}", text(&table.stderr));
    has(&text(&table.stdout), &ALL)?;
    let ran = objects(output)?;
    for name in ALL {
        let lines = ran
            .iter()
            .filter(|object| object["resource"] == name)
            .count();
        let errors = text(&output.stderr);
        // From the start of a line: names end as others do, such as `managed-pool`.
        let start = format!("{name}: not run: ");
        let reason = errors.lines().any(|line| line.starts_with(&start));
        ensure!(
            if reason { lines == 0 } else { lines == 2 },
            "{name}: {lines}"
        );
    }
    Ok(())
}

#[apply(case)]
fn what_a_device_lacks_is_told_and_no_failure(_: &Environment) -> Result<()> {
    let path = log(ROWS)?;
    let simulated = |arguments: &[&str], pools: &str| {
        let mut command = Command::new(own_process::example("replay")?);
        command
            .arg(&path.path)
            .args(arguments)
            .env(LIBRARY_VARIABLE, sim_path()?)
            .env("CUDA_SIM_POOLS", pools)
            .env_remove("CUDA_VISIBLE_DEVICES");
        ended(command)
    };
    let output = simulated(&["--compare"], "0")?;
    ensure!(output.status.success(), "{}", text(&output.stderr));
    has(
        &text(&output.stdout),
        &["pool: not run: device 0 has no memory pools", "direct"],
    )?;
    refused(&simulated(&[], "0")?, 1, &["pool", "no memory pools"])?;
    // Nothing of it ran.
    let limit = ["--compare", "--adaptor", "limit=10"];
    refused(&simulated(&limit, "1")?, 1, &["0 resources"])
}
