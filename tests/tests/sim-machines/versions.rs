//! Older and newer drivers: the same contract, on simulated drivers of other versions. What a
//! version lacks is skipped with that reason, or is a typed error; nothing else may differ.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::{CudaVersion, ErrorKind};
use cuda_mem_tests::case::{Kind, Test};
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::own_process;
use cuda_mem_tests::suite::Suite;

/// The contract, and what only this file asks.
pub(crate) const CONTRACT: Suite = Suite::made_of("contract-of-a-version", |test| {
    is_one_of(test, &["contract", "sim_machines::versions::missing"])
})
.staged()
.sim_only();

/// Resources and managed memory. They wait for whole devices, so they share no process with the contract.
pub(crate) const RESOURCES: Suite = Suite::made_of("resources-of-a-version", |test| {
    is_one_of(test, &["resources", "managed"])
})
.staged()
.sim_only();

/// Memory without pools, placement and the ledger, one test at a time.
pub(crate) const BESIDE: Suite = Suite::made_of("beside-of-a-version", |test| {
    // It asks no driver of what came with any version, and takes long.
    is_one_of(test, &["host", "vmm", "placement", "ledger"])
        && test.name() != "ledger::ends::pairs_leave_nothing"
})
.staged()
.sim_only()
.serial();

fn is_one_of(test: &Test, modules: &[&str]) -> bool {
    matches!(test.kind, Kind::Any | Kind::Staged) && modules.iter().any(|module| test.is_in(module))
}

/// Runs some tests, and what only this file asks, on a driver of `version`. Returns the tests that
/// were skipped, each with the CUDA version that it needs.
fn skipped_on(version: u32, what: &Suite) -> Result<BTreeMap<String, String>> {
    let output = own_process::command(what.name)?
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env("CUDA_MEM_TEST_BACKEND", "sim")
        .env("CUDA_SIM_DRIVER_VERSION", version.to_string())
        .env_remove("CUDA_MEM_TEST_REQUIRE_GPU")
        // As newer drivers do it by themselves; `eager.rs` asks what is refused otherwise.
        .env("CUDA_MODULE_LOADING", "LAZY")
        .output()
        .context("could not start the contract")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "on version {version}:\n{text}{errors}"
    );
    let shown = CudaVersion::from_raw(version);
    ensure!(
        text.contains(&format!("CUDA {shown}")),
        "not a driver of {shown}:\n{text}"
    );
    let mut skipped = BTreeMap::new();
    for line in text.lines().filter(|line| line.contains("... ignored")) {
        let (_, reason) = line
            .split_once("(needs CUDA ")
            .with_context(|| format!("a skip for another reason: {line}"))?;
        let needed = reason.split(',').next().unwrap_or_default();
        let name = line.trim_start_matches("test ").split_whitespace().next();
        skipped.insert(name.unwrap_or_default().to_owned(), needed.to_owned());
    }
    Ok(skipped)
}

/// Nothing else is missing than what came with `needed` or later, and something is.
fn only_misses(version: u32, needed: &[&str]) -> Result<()> {
    only_misses_of(version, &[&CONTRACT, &RESOURCES], needed)
}

fn only_misses_of(version: u32, what: &[&Suite], needed: &[&str]) -> Result<()> {
    let mut skipped = BTreeMap::new();
    for suite in what {
        skipped.extend(skipped_on(version, suite)?);
    }
    for version in needed {
        ensure!(
            skipped.values().any(|found| found == version),
            "{skipped:?}"
        );
    }
    for (name, found) in &skipped {
        ensure!(needed.contains(&found.as_str()), "{name} needs {found}");
    }
    Ok(())
}

#[apply(case)]
fn cuda_11_2_has_no_statistics_and_no_maximum_size(_: &Environment) -> Result<()> {
    only_misses(11_020, &["11.3", "11.4", "12.2", "12.3", "12.9", "13.0"])
}

#[apply(case)]
fn cuda_11_4_has_no_maximum_size(_: &Environment) -> Result<()> {
    only_misses(11_040, &["12.2", "12.3", "12.9", "13.0"])
}

#[apply(case)]
fn cuda_12_0_has_no_maximum_size(_: &Environment) -> Result<()> {
    only_misses(12_000, &["12.2", "12.3", "12.9", "13.0"])
}

/// Old drivers are loaded all the same, and what they lack is a typed error or a skip.
#[apply(case)]
fn memory_without_pools_needs_little(_: &Environment) -> Result<()> {
    only_misses_of(
        11_020,
        &[&BESIDE],
        &["11.3", "11.4", "12.0", "12.2", "13.0"],
    )?;
    only_misses_of(12_000, &[&BESIDE], &["12.2", "13.0"])
}

#[apply(case)]
fn cuda_12_2_has_no_pools_of_the_host(_: &Environment) -> Result<()> {
    only_misses(12_020, &["12.3", "12.9", "13.0"])
}

/// Nor does 13.0, because nothing that an older version skips needs a newer one.
#[apply(case)]
fn newer_than_cuda_13_0_skips_nothing(_: &Environment) -> Result<()> {
    only_misses(13_050, &[])
}

/// What the children ask beyond the contract.
mod missing {
    use super::*;

    #[apply(case_staged)]
    fn newer_symbols_are_not_there(env: &Environment) -> Result<()> {
        let version = env.driver.version();
        for symbol in &cuda_mem::sys::SYMBOLS {
            ensure!(
                symbol.since() <= version || !env.driver.has(symbol.name()),
                "{} came with {}",
                symbol.name(),
                symbol.since()
            );
        }
        Ok(())
    }

    #[apply(case_staged)]
    fn statistics_before_11_3_are_a_typed_error(env: &Environment) -> Result<()> {
        let pool = env.pool()?;
        if env.need(11, 3).is_ok() {
            pool.stats()?;
            return pool.reset_high_marks().map_err(Into::into);
        }
        for refused in [pool.stats().map(drop), pool.reset_high_marks()] {
            let error = refused.err().context("an old driver has statistics")?;
            ensure!(error.kind() == ErrorKind::NotSupported, "{error}");
            ensure!(error.needs_version() == Some(CudaVersion::new(11, 3)));
        }
        Ok(())
    }
}
