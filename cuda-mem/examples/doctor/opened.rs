//! Which driver is examined, or why there is none.

use std::path::PathBuf;

use cuda_mem::sys::{self, LIBRARY_VARIABLE};
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
    /// Nothing was opened; else there is a driver that has no device to offer.
    pub(crate) is_driver_missing: bool,
    pub(crate) kind: String,
    pub(crate) text: String,
    pub(crate) function: Option<&'static str>,
    pub(crate) code: Option<u32>,
    /// Every library that was tried, and why it did not do.
    pub(crate) tried: Vec<(String, String)>,
    pub(crate) advice: Vec<String>,
}

/// The driver of this machine, and no other, unless the simulated one is wanted.
pub(crate) fn open(simulate: bool) -> Result<Opened, Unopened> {
    let driver = if simulate {
        simulated()?
    } else {
        Driver::load().map_err(|error| refused(&error))?
    };
    let devices = driver.devices().map_err(|error| refused(&error))?;
    if devices.is_empty() {
        return Err(Unopened {
            is_driver_missing: false,
            kind: format!("{:?}", ErrorKind::InvalidDevice),
            text: "the driver started and sees no device".to_owned(),
            function: None,
            code: None,
            tried: Vec::new(),
            advice: advice::no_device(),
        });
    }
    Ok(Opened {
        driver,
        devices,
        simulated: cuda_sim::is_simulator(driver.library_path()),
        file: file_of(driver),
    })
}

fn simulated() -> Result<Driver, Unopened> {
    let Some(path) = cuda_sim::library_path() else {
        return Err(Unopened {
            is_driver_missing: true,
            kind: format!("{:?}", ErrorKind::DriverMissing),
            text: "the simulated driver libcuda_sim.so was not found beside this program".to_owned(),
            function: None,
            code: None,
            tried: Vec::new(),
            advice: vec![
                "Build it with `cargo build -p cuda-sim`, or name it in CUDA_SIM_LIBRARY.".to_owned(),
            ],
        });
    };
    // SAFETY: this is the simulated driver of this workspace, which behaves as a CUDA driver does.
    unsafe { Driver::load_from(path) }.map_err(|error| refused(&error))
}

fn refused(error: &Error) -> Unopened {
    let is_driver_missing = error.kind() == ErrorKind::DriverMissing;
    // The same failure once more, this time with its parts.
    let load = is_driver_missing.then(|| sys::load().err()).flatten();
    let attempts = load.as_ref().map_or(&[][..], |load| load.attempts());
    Unopened {
        is_driver_missing,
        kind: format!("{:?}", error.kind()),
        text: error.to_string(),
        function: error.function(),
        code: error.code().map(|code| code.0),
        tried: attempts
            .iter()
            .map(|attempt| (attempt.path.display().to_string(), attempt.reason.to_string()))
            .collect(),
        advice: if is_driver_missing {
            advice::no_driver(attempts, environment(LIBRARY_VARIABLE).is_some(), kernel_module())
        } else {
            advice::driver_refused(error.code())
        },
    }
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
