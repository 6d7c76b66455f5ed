//! The level that the environment names, in processes of their own.

use anyhow::{Result, ensure};
use cuda_mem::ledger::{Ledger, LedgerLevel};

use crate::environment::Environment;
use crate::own_process;

const LEVEL: &str = "CUDA_MEM_LEDGER";
/// Says in the other process that it is the one.
const CHILD: &str = "CUDA_MEM_TEST_LEDGER_CHILD";

/// What a process with this level says on its standard error stream.
fn said_at(level: &str, test: &str) -> Result<String> {
    let output = own_process::again()?
        .args(["--exact", test, "--nocapture"])
        .env(LEVEL, level)
        .env(CHILD, level)
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{level}: {said}");
    Ok(said)
}

#[apply(case)]
fn the_environment_chooses_the_level(env: &Environment) -> Result<()> {
    if let Ok(level) = std::env::var(CHILD) {
        ensure!(Ledger::level() == level.parse::<LedgerLevel>()?);
        let _scope = Ledger::scope();
        std::mem::forget(env.pool()?.alloc::<u8>(&env.stream()?, 1000)?);
        return Ok(());
    }
    let test = "ledger::environment::the_environment_chooses_the_level";
    let said = said_at("off", test)?;
    ensure!(!said.contains("alive"), "{said}");
    let said = said_at("bytes", test)?;
    ensure!(said.contains("1000 B        1  buffer"), "{said}");
    ensure!(!said.contains(file!()), "{said}");
    let said = said_at("origins", test)?;
    ensure!(said.contains("1000 B        1  buffer"), "{said}");
    ensure!(said.contains(file!()), "{said}");
    Ok(())
}

#[apply(case)]
fn the_end_of_the_process_is_told_of(env: &Environment) -> Result<()> {
    env.not_on_windows("a Rust program runs no functions of atexit there")?;
    if std::env::var_os(CHILD).is_some() {
        ensure!(Ledger::report_at_exit() && Ledger::report_at_exit());
        drop(env.pool()?.alloc::<u8>(&env.stream()?, 2000)?);
        std::mem::forget(env.pool()?.alloc::<u8>(&env.stream()?, 1000)?);
        return Ok(());
    }
    let test = "ledger::environment::the_end_of_the_process_is_told_of";
    let said = said_at("off", test)?;
    ensure!(!said.contains("alive"), "{said}");
    let said = said_at("bytes", test)?;
    ensure!(said.contains("1000 B        1  buffer"), "{said}");
    let said = said_at("origins", test)?;
    ensure!(said.contains("1000 B        1  buffer"), "{said}");
    ensure!(said.contains(file!()) && !said.contains("2000 B"), "{said}");
    ensure!(said.matches("still").count() == 1, "once: {said}");
    Ok(())
}

#[apply(case)]
fn a_level_that_is_none_is_told(env: &Environment) -> Result<()> {
    if std::env::var_os(CHILD).is_some() {
        drop(env.stream()?);
        ensure!(Ledger::level() == LedgerLevel::Off);
        return Ok(());
    }
    let said = said_at("all", "ledger::environment::a_level_that_is_none_is_told")?;
    ensure!(
        said.matches("CUDA_MEM_LEDGER is ignored").count() == 1,
        "{said}"
    );
    ensure!(said.contains("off, bytes or origins"), "{said}");
    Ok(())
}
