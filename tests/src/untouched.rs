//! No device is touched that nobody asked for.

use anyhow::{Result, ensure};
use cuda_mem::sys::{SYMBOLS, Symbol};

use crate::lab::{Backend, Lab};

/// What the public operations of the crate ask of the driver; `cargo xtask coverage` writes it.
const OPERATIONS: &str = include_str!("../data/operations.txt");

/// Functions behind public operations that no test of one process and one device comes to.
const ELSEWHERE: &[(&str, &str)] = &[];

/// An error if any device but the one under test has a context now, made by anybody in this process.
///
/// # Errors
///
/// Which device has one.
pub fn check(lab: &Lab) -> Result<()> {
    let own = lab.device()?;
    for device in lab.driver.devices()? {
        ensure!(
            device == own || !device.has_active_context()?,
            "{device:?} has a context, and only {own:?} was used"
        );
    }
    Ok(())
}

/// An error if an operation asks something of the driver that has not been asked in this process: then it is not
/// known what that does to other devices.
///
/// # Errors
///
/// Which ones.
pub fn everything_was_asked(lab: &Lab) -> Result<()> {
    if lab.backend == Backend::Gpu {
        return Ok(());
    }
    let control = lab.control()?;
    let was_called = |function: &str| {
        let of = |symbol: &&Symbol| base(symbol.name()) == function;
        SYMBOLS
            .iter()
            .filter(of)
            .any(|symbol| control.calls(symbol.name()) > 0)
    };
    let mut missing = Vec::new();
    for line in OPERATIONS.lines().filter(|line| !line.starts_with('#')) {
        let Some((operation, functions)) = line.split_once(": ") else {
            continue;
        };
        for function in functions.split(' ') {
            if !was_called(function) && ELSEWHERE.iter().all(|known| known.0 != function) {
                missing.push(format!("{function} of {operation}"));
            }
        }
    }
    ensure!(missing.is_empty(), "never asked: {}", missing.join(", "));
    Ok(())
}

/// The name without the marks of newer ABIs and of default streams.
fn base(symbol: &str) -> &str {
    let name = symbol.trim_end_matches("_ptsz").trim_end_matches("_ptds");
    match name.rsplit_once("_v") {
        Some((base, version)) if version.bytes().all(|digit| digit.is_ascii_digit()) => base,
        _ => name,
    }
}
