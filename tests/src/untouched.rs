//! No device is touched that nobody asked for.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::OnceLock;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::placement::Nvml;
use cuda_mem::sys::SYMBOLS;

use crate::case::Kind;
use crate::environment::{Backend, DEVICE, Environment};
use crate::suite::Suite;

/// The name of the suite.
pub(crate) const SUITE: &str = "untouched";

/// Everything that runs on one device in one process, on the last of several.
#[must_use]
pub const fn suite() -> Suite {
    const MODULES: [&str; 8] = [
        "arena",
        "contract",
        "host",
        "managed",
        "modules",
        "resources",
        "vmm",
        "window",
    ];
    // One at a time: what is active is a matter of the whole process.
    Suite::made_of(SUITE, |test| {
        test.kind == Kind::Any && MODULES.iter().any(|module| test.is_in(module))
    })
    .with(DEVICE, "last")
    .devices(2)
    .serial()
    .untouched()
}

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

/// Functions behind what the system's drivers lack.
const LACKING: &[(&str, &str)] = if cfg!(windows) {
    &[
        ("cuIpcOpenEventHandle", "events are not shared on Windows"),
        ("cuMemGetHandleForAddressRange", "Windows has no dma-buf"),
        ("cuMemAdvise", MANAGED),
        ("cuMemPrefetchAsync", MANAGED),
        ("cuMemRangeGetAttributes", MANAGED),
    ]
} else {
    &[]
};

const MANAGED: &str = "drivers of Windows keep managed memory in one place at a time";

/// The least that a program takes of a device. The driver itself took 64 KiB once, of a device that nobody used.
const LEAST: u64 = 2 << 20;

/// What NVML says of a device: processes, and bytes in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    processes: usize,
    used: u64,
}

impl Seen {
    /// Whether no program came or went between two looks.
    fn is_as(self, other: Self) -> bool {
        self.processes == other.processes && self.used.abs_diff(other.used) < LEAST
    }
}

/// The other devices as they were at the first look, if there is NVML. The machine must be nobody else's.
fn at_first(env: &Environment) -> Result<&'static [Seen]> {
    static FIRST: OnceLock<Vec<Seen>> = OnceLock::new();
    if let Some(first) = FIRST.get() {
        return Ok(first);
    }
    let now = look(env)?;
    Ok(FIRST.get_or_init(|| now))
}

/// Nothing on the simulator, whose NVML knows nothing of the simulated driver.
fn look(env: &Environment) -> Result<Vec<Seen>> {
    if env.backend == Backend::Sim {
        return Ok(Vec::new());
    }
    let (nvml, own) = (Nvml::load()?, env.device()?);
    let mut seen = Vec::new();
    for device in env
        .driver
        .devices()?
        .into_iter()
        .filter(|device| *device != own)
    {
        let device = device.nvml(&nvml)?;
        let processes = device.processes()?;
        ensure!(
            processes
                .iter()
                .all(|process| process.pid != std::process::id()),
            "NVML lists this process on {device:?}"
        );
        seen.push(Seen {
            processes: processes.len(),
            used: device.memory()?.used,
        });
    }
    Ok(seen)
}

/// Looks at the other devices before anything is done.
///
/// # Errors
///
/// As [`check`].
pub fn start(env: &Environment) -> Result<()> {
    for seen in at_first(env)? {
        println!(
            "another device: {} processes, {} bytes in use",
            seen.processes, seen.used
        );
    }
    check(env)
}

/// An error if any device but the one under test has a context now, made by anybody in this process; or if NVML sees
/// a process or memory in use there that it did not see at the start.
///
/// # Errors
///
/// Which device, and what.
pub fn check(env: &Environment) -> Result<()> {
    let own = env.device()?;
    for device in env.driver.devices()? {
        ensure!(
            device == own || !device.has_active_context()?,
            "{device:?} has a context, and only {own:?} was used"
        );
    }
    let (first, now) = (at_first(env)?, look(env)?);
    ensure!(
        first.len() == now.len() && first.iter().zip(&now).all(|(first, now)| first.is_as(*now)),
        "other devices changed from {first:?} to {now:?}"
    );
    Ok(())
}

/// Names a file to which each process adds the functions that it has called.
pub const CALLED: &str = "CUDA_MEM_TEST_UNTOUCHED_CALLS";

/// Adds what this process has called to the file, if there is one.
///
/// # Errors
///
/// If it cannot be written.
pub fn note_calls(env: &Environment) -> Result<()> {
    let (Some(file), Ok(control)) = (std::env::var_os(CALLED), env.control()) else {
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
            let mut known = ELSEWHERE.iter().chain(LACKING);
            if !called.contains(function) && known.all(|known| known.0 != function) {
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
