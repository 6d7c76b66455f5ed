//! Which driver is examined, or why there is none.

use std::path::PathBuf;

use cuda_mem::sys::{self, LIBRARY_VARIABLE, LoadError};
use cuda_mem::{Device, Driver, Error, ErrorKind};

use crate::advice;

/// A driver that has devices.
pub(crate) struct Opened {
    pub(crate) driver: Driver,
    pub(crate) devices: Vec<Device>,
    pub(crate) simulated: bool,
    /// The file behind the name that the driver was opened by.
    pub(crate) file: Option<PathBuf>,
}

/// Why there is nothing to examine.
pub(crate) struct Unopened {
    pub(crate) kind: ErrorKind,
    pub(crate) text: String,
    pub(crate) function: Option<&'static str>,
    pub(crate) code: Option<u32>,
    /// Every library that was tried, and why it did not do.
    pub(crate) tried: Vec<(String, String)>,
    pub(crate) advice: Vec<String>,
}

impl Unopened {
    fn new(error: &Error, tried: Option<LoadError>, advice: Vec<String>) -> Box<Self> {
        let tried = tried.as_ref().map_or(&[][..], LoadError::attempts).iter();
        Box::new(Self {
            kind: error.kind(),
            text: error.to_string(),
            function: error.function(),
            code: error.code().map(|code| code.0),
            tried: tried
                .map(|one| (one.path.display().to_string(), one.reason.to_string()))
                .collect(),
            advice,
        })
    }

    /// How far it came.
    pub(crate) fn words(&self) -> &'static str {
        match self.kind {
            ErrorKind::DriverMissing => "no driver",
            ErrorKind::InvalidDevice => "no device",
            _ => "driver does not start",
        }
    }
}

/// The driver of this machine, and no other, unless the simulated one is wanted.
pub(crate) fn open(simulate: bool) -> Result<Opened, Box<Unopened>> {
    let driver = if simulate { simulated() } else { real() }?;
    let started = |error: Error| Unopened::new(&error, None, advice::not_started(error.code()));
    let devices = driver.devices().map_err(started)?;
    if devices.is_empty() {
        // Drivers answer the start with an error then; this is for one that does not.
        let error = Error::new(ErrorKind::InvalidDevice, "the driver sees no device");
        return Err(Unopened::new(&error, None, advice::no_device()));
    }
    Ok(Opened {
        driver,
        devices,
        simulated: cuda_sim::is_simulator(driver.library_path()),
        file: file_of(driver),
    })
}

fn real() -> Result<Driver, Box<Unopened>> {
    Driver::load().map_err(|error| {
        if error.kind() != ErrorKind::DriverMissing {
            return Unopened::new(&error, None, advice::not_started(error.code()));
        }
        // The same failure once more, this time in its parts.
        let load = sys::load().err();
        let tried = load.as_ref().map_or(&[][..], LoadError::attempts);
        let is_named = environment(LIBRARY_VARIABLE).is_some_and(|value| !value.is_empty());
        let advice = advice::no_driver(tried, is_named, kernel_module());
        Unopened::new(&error, load, advice)
    })
}

fn simulated() -> Result<Driver, Box<Unopened>> {
    let Some(path) = cuda_sim::library_path() else {
        let text = "the simulated driver libcuda_sim.so was not found beside this program";
        let error = Error::new(ErrorKind::DriverMissing, text);
        return Err(Unopened::new(&error, None, advice::no_simulator()));
    };
    // SAFETY: this is the simulated driver of this workspace, which behaves as a CUDA driver does.
    unsafe { Driver::load_from(&path) }.map_err(|error| {
        if error.kind() != ErrorKind::DriverMissing {
            return Unopened::new(&error, None, advice::not_started(error.code()));
        }
        // SAFETY: as above.
        let load = unsafe { sys::load_from(&path) }.err();
        Unopened::new(&error, load, advice::no_simulator())
    })
}

/// A variable as it is set; what is not Unicode is shown as well as can be.
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// What the kernel's half of the driver says of itself, if it is loaded.
pub(crate) fn kernel_module() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let line = text.lines().next()?.split_whitespace();
    Some(line.collect::<Vec<_>>().join(" ")).filter(|line| !line.is_empty())
}

/// The driver is opened by a bare name, and the file behind it often tells its version: it is the one
/// that the driver's first function lies in.
fn file_of(driver: Driver) -> Option<PathBuf> {
    let address = driver.table().cuInit? as usize;
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        // address range, rights, offset, device, inode, path
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        let start = usize::from_str_radix(start, 16).ok()?;
        let end = usize::from_str_radix(end, 16).ok()?;
        let path = line.get(line.find('/')?..)?;
        (start..end).contains(&address).then(|| PathBuf::from(path))
    })
}
