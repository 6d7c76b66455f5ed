//! What runs in a process of its own. Only the main thread runs there, so that it may change the
//! environment.

use std::process::{ExitCode, Termination as _};

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::driver::Uuid;
use cuda_mem::placement::{Selector, Visibility};
use cuda_mem::{Driver, Error, ErrorKind, sys};

use super::{SCENARIO, VARIABLE};

/// Runs the scenario that this process was started for, if it was. To be called first in `main`.
#[must_use]
pub fn as_child() -> Option<ExitCode> {
    let scenario = std::env::var(SCENARIO).ok()?;
    if scenario == "main" {
        // As after a `main` that returns this.
        return Some(program().report());
    }
    let outcome = match &*scenario {
        "devices" => devices(),
        "changed" => changed(),
        "set" => set(),
        "second" => second(),
        "none" => none(),
        other => Err(anyhow::anyhow!("no scenario {other:?}")),
    };
    Some(match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    })
}

/// The UUID without what it is of, which the driver does not tell.
fn digits(uuid: Uuid) -> String {
    uuid.to_string().trim_start_matches("GPU-").to_owned()
}

/// Changes the variable behind the library's back.
fn change(value: &str) {
    // SAFETY: this program has started no thread that reads the environment; those of a driver do not
    // look at it once that is initialised.
    unsafe { std::env::set_var(VARIABLE, value) };
}

fn set_devices(devices: &[Selector]) -> Result<(), Error> {
    // SAFETY: as in `change`.
    unsafe { Visibility::set(devices) }
}

fn too_late() -> Result<()> {
    let before = std::env::var_os(VARIABLE);
    let Err(error) = set_devices(&[]) else {
        bail!("the variable was set too late");
    };
    ensure!(error.kind() == ErrorKind::NotPermitted, "{error}");
    ensure!(std::env::var_os(VARIABLE) == before, "changed: {error}");
    println!("{error}");
    Ok(())
}

fn devices() -> Result<()> {
    let driver = match Driver::load() {
        Ok(driver) => driver,
        Err(error) if error.kind() == ErrorKind::InvalidDevice => {
            println!("0 devices");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    let visibility = driver.visibility();
    ensure!(*visibility.at_start() == Visibility::current());
    ensure!(visibility.changed().is_none());
    ensure!(
        visibility.was_initialised_before_us() == Some(false),
        "{visibility:?}"
    );
    if let Some(mismatch) = visibility.check()? {
        bail!("{mismatch}");
    }
    let all = driver.devices()?;
    for device in &all {
        println!("device {}", digits(device.uuid()?));
    }
    println!("{} devices", all.len());
    Ok(())
}

fn changed() -> Result<()> {
    let driver = Driver::load()?;
    let visibility = driver.visibility();
    ensure!(visibility.changed().is_none());
    change("");
    let changed = visibility.changed().context("a change goes unnoticed")?;
    println!("{changed}");
    ensure!(changed.now == visibility.now() && changed.at_start == *visibility.at_start());
    ensure!(
        driver.device_count()? == 1,
        "the driver has seen the change"
    );
    ensure!(visibility.check()?.is_none(), "it was right at the start");
    // The same driver, and a second time opened: what it read stays what it was.
    let path = driver.library_path().context("no path")?;
    // SAFETY: it is the driver that was opened before.
    let again = unsafe { Driver::load_from(path) }?;
    ensure!(again.visibility().at_start() == visibility.at_start());
    ensure!(again.visibility().was_initialised_before_us() == Some(false));
    Ok(())
}

/// The last device, by number; a device by its UUID would need another process to find it.
fn set() -> Result<()> {
    // A list that names nothing good is refused before anything is touched.
    let twice = set_devices(&[Selector::Index(0), Selector::Index(0)]);
    ensure!(twice.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
    ensure!(Visibility::current().devices().is_none());
    set_devices(&[])?;
    ensure!(
        Visibility::current()
            .devices()
            .is_some_and(|value| value.is_empty())
    );
    let last = std::env::var(super::LAST)?.parse()?;
    set_devices(&[Selector::Index(last)])?;
    let driver = Driver::load()?;
    ensure!(driver.device_count()? == 1);
    println!("{}", digits(driver.device(0)?.uuid()?));
    ensure!(driver.visibility().was_initialised_before_us() == Some(false));
    too_late()
}

/// What another library does that uses CUDA.
fn second() -> Result<()> {
    let table = sys::load()?.table();
    let init = table.cuInit.context("no cuInit")?;
    // SAFETY: it takes flags, which must be 0.
    let answer = unsafe { init(0) };
    ensure!(answer.0 == 0, "{answer}");
    too_late()?;
    change("-1");
    let visibility = Driver::load()?.visibility();
    ensure!(
        visibility.was_initialised_before_us() == Some(true),
        "{visibility:?}"
    );
    println!("{}", visibility.check()?.context("it went unnoticed")?);
    Ok(())
}

/// A user's program.
fn program() -> cuda_mem::Result<()> {
    let ordinal = std::env::var(super::LAST).ok();
    let ordinal = ordinal.and_then(|text| text.parse().ok()).unwrap_or(0);
    Driver::load()?.device(ordinal)?;
    Ok(())
}

fn none() -> Result<()> {
    let Err(error) = Driver::load() else {
        bail!("there is a device");
    };
    ensure!(error.kind() == ErrorKind::InvalidDevice, "{error}");
    too_late()
}
