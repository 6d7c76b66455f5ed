//! Eager loading, which is decided when the driver is loaded: each scenario in a process of its own, on the simulator.

use std::process::Command;

use anyhow::{Result, bail, ensure};
use cuda_mem::kernel::{Image, LoadingMode};
use cuda_mem::{Driver, ErrorKind};
use cuda_mem_tests::environment::{Environment, sim_path};

const PTX: &str = include_str!("../../data/kernels.ptx");

/// Names the scenario of a child.
const SCENARIO: &str = "CUDA_MEM_TEST_EAGER";

fn run_scenario(scenario: &str, settings: &[(&str, &str)]) -> Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .env(SCENARIO, scenario)
        .envs(settings.iter().copied());
    let output = command.env_remove("CUDA_VISIBLE_DEVICES").output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{text}");
    Ok(())
}

#[apply(case)]
fn a_library_would_come_to_every_context_and_is_refused(_: &Environment) -> Result<()> {
    let settings = [("CUDA_MODULE_LOADING", "EAGER"), ("CUDA_SIM_DEVICES", "2")];
    run_scenario("eager", &settings)
}

#[apply(case)]
fn lazy_is_the_default(_: &Environment) -> Result<()> {
    run_scenario("lazy", &[])
}

#[apply(case)]
fn old_drivers_load_at_once(_: &Environment) -> Result<()> {
    run_scenario("old", &[("CUDA_SIM_DRIVER_VERSION", "11060")])
}

fn scenario(name: &str) -> Result<()> {
    // SAFETY: the simulated driver behaves as a CUDA driver does.
    let driver = unsafe { Driver::load_from(sim_path()?) }?;
    let image = Image::ptx(PTX)?;
    let context = driver.device(0)?.primary_context()?;
    let expected = match name {
        "lazy" => LoadingMode::Lazy,
        _ => LoadingMode::Eager,
    };
    ensure!(driver.loading_mode()? == expected);
    let library = driver.load_library(&image);
    match name {
        "lazy" => drop(library?),
        "eager" | "old" => {
            let kind = library.map(drop).map_err(|error| error.kind());
            ensure!(kind == Err(ErrorKind::NotSupported), "{kind:?}");
        }
        other => bail!("no scenario is called {other}"),
    }
    context.load(&image)?.function("fill")?;
    for device in driver.devices()?.iter().skip(1) {
        ensure!(!device.has_active_context()?, "{device:?} was touched");
    }
    Ok(())
}

/// Plays the part that another process has for this one, if it has one.
pub(crate) fn as_child() -> Option<Result<()>> {
    let name = std::env::var(SCENARIO).ok()?;
    Some(scenario(&name))
}
