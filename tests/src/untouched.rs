//! No device is touched that nobody asked for.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write as _;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::sys::SYMBOLS;

use crate::lab::Lab;

/// What the public operations of the crate ask of the driver; `cargo xtask coverage` writes it.
const OPERATIONS: &str = include_str!("../data/operations.txt");

/// Functions behind public operations that no test of one device comes to, and why.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "cuDeviceCanAccessPeer",
        "asks about two devices, and both are named",
    ),
    (
        "cuMemcpyPeerAsync",
        "copies between two devices, and both are named",
    ),
];

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

/// Names a file to which each process adds the functions that it has called.
pub const CALLED: &str = "CUDA_MEM_TEST_UNTOUCHED_CALLS";

/// Adds what this process has called to the file, if there is one.
///
/// # Errors
///
/// If it cannot be written.
pub fn note_calls(lab: &Lab) -> Result<()> {
    let (Some(file), Ok(control)) = (std::env::var_os(CALLED), lab.control()) else {
        return Ok(());
    };
    let mut text = String::new();
    for symbol in SYMBOLS
        .iter()
        .filter(|symbol| control.calls(symbol.name()) > 0)
    {
        text.push_str(base(symbol.name()));
        text.push('\n');
    }
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    file.write_all(text.as_bytes())?;
    Ok(())
}

/// An error if a public operation asks something of the driver that is not among these functions: then it is not
/// known what that does to other devices.
///
/// # Errors
///
/// Which ones.
pub fn require_all(called: &str) -> Result<()> {
    let called: BTreeSet<&str> = called.lines().collect();
    let mut missing = Vec::new();
    for line in OPERATIONS.lines().filter(|line| !line.starts_with('#')) {
        let (operation, functions) = line.split_once(": ").context("a line of operations.txt")?;
        for function in functions.split(' ') {
            if !called.contains(function) && ELSEWHERE.iter().all(|known| known.0 != function) {
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
