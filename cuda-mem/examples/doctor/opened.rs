//! The driver to examine, or why there is none.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::path::PathBuf;

use cuda_mem::sys::{self, DriverLibrary, DriverTable, LIBRARY_VARIABLE, LoadError};
use cuda_mem::{Device, Driver, Error, ErrorKind};
use cuda_mem_console::OneDeviceOption;

use crate::advice;

/// A driver with devices.
pub(crate) struct Opened {
    pub(crate) driver: Driver,
    pub(crate) devices: Vec<Device>,
    pub(crate) library: Library,
}

/// A library that is a driver, whether or not it starts.
pub(crate) struct Library {
    /// The name used to open it.
    pub(crate) path: PathBuf,
    /// The file behind that name.
    pub(crate) file: Option<PathBuf>,
    pub(crate) simulated: bool,
}

impl Library {
    fn of(library: &DriverLibrary) -> Self {
        Self {
            path: library.path().to_owned(),
            file: file_of(library.table()),
            simulated: cuda_sim::is_simulator(Some(library.path())),
        }
    }
}

/// Why there is nothing to examine.
pub(crate) struct Unopened {
    pub(crate) kind: ErrorKind,
    pub(crate) text: String,
    pub(crate) function: Option<&'static str>,
    pub(crate) code: Option<u32>,
    /// Every library that was tried, and why it was rejected.
    pub(crate) tried: Vec<(String, String)>,
    /// The library that opened but did not start.
    pub(crate) library: Option<Library>,
    pub(crate) advice: Vec<String>,
}

impl Unopened {
    /// No library could be opened.
    fn missing(failure: LoadError, advice: Vec<String>) -> Box<Self> {
        let tried = failure.attempts().iter();
        let tried = tried.map(|one| (one.path.display().to_string(), one.reason.to_string()));
        let tried = tried.collect();
        Box::new(Self {
            tried,
            ..Self::new(&failure.into(), None, advice)
        })
    }

    /// A library was opened, but does not start or shows no device.
    fn failed(error: &Error, library: Library) -> Box<Self> {
        let advice = advice::not_started(error, library.simulated);
        Box::new(Self::new(error, Some(library), advice))
    }

    fn new(error: &Error, library: Option<Library>, advice: Vec<String>) -> Self {
        Self {
            kind: error.kind(),
            text: error.to_string(),
            function: error.function(),
            code: error.code().map(|code| code.0),
            tried: Vec::new(),
            library,
            advice,
        }
    }

    /// How far it got.
    pub(crate) fn words(&self) -> &'static str {
        match self.kind {
            ErrorKind::DriverMissing => "no driver",
            ErrorKind::InvalidDevice => "no device",
            _ => "driver does not start",
        }
    }
}

/// Opens the driver of this machine and no other, or the simulated one if requested, with one of its devices or all.
pub(crate) fn open(simulate: bool, one: OneDeviceOption) -> Result<Opened, Box<Unopened>> {
    let (library, driver) = if simulate { simulated() } else { real() }?;
    let devices = driver.and_then(|driver| {
        let devices = driver.devices()?;
        if devices.is_empty() {
            // Drivers fail to start in this case; this is for one that does not.
            let text = "the driver sees no device";
            return Err(Error::new(ErrorKind::InvalidDevice, text));
        }
        Ok((driver, devices))
    });
    match devices {
        Ok((driver, mut devices)) => {
            let last = devices.len() - 1;
            devices.retain(|device| one.has(device.ordinal()));
            if devices.is_empty() {
                let error = Error::new(
                    ErrorKind::InvalidDevice,
                    format!("--device {one}: there is no such device"),
                );
                let advice = vec![format!(
                    "Give --device a number from 0 to {last}, or leave it out."
                )];
                return Err(Box::new(Unopened::new(&error, Some(library), advice)));
            }
            Ok(Opened {
                driver,
                devices,
                library,
            })
        }
        Err(error) => Err(Unopened::failed(&error, library)),
    }
}

/// A library, and its driver if it starts.
type Found = (Library, cuda_mem::Result<Driver>);

fn real() -> Result<Found, Box<Unopened>> {
    let library = sys::load().map_err(|failure| {
        let is_named = environment(LIBRARY_VARIABLE).is_some_and(|value| !value.is_empty());
        let advice = advice::no_driver(failure.attempts(), is_named, kernel_module());
        Unopened::missing(failure, advice)
    })?;
    // From the same library.
    Ok((Library::of(library), Driver::load()))
}

fn simulated() -> Result<Found, Box<Unopened>> {
    let Some(path) = cuda_sim::library_path() else {
        let text = match environment(cuda_sim::LIBRARY_VARIABLE).filter(|name| !name.is_empty()) {
            Some(name) => format!(
                "{} names the file {name:?}, which is not there",
                cuda_sim::LIBRARY_VARIABLE
            ),
            None => format!(
                "the simulated driver {DLL_PREFIX}cuda_sim{DLL_SUFFIX} was not found beside this program"
            ),
        };
        let error = Error::new(ErrorKind::DriverMissing, text);
        let unopened = Unopened::new(&error, None, advice::no_simulator(&[]));
        return Err(Box::new(unopened));
    };
    // SAFETY: this is the simulated driver of this workspace, which behaves as a CUDA driver does.
    let library = unsafe { sys::load_from(&path) }.map_err(|failure| {
        let advice = advice::no_simulator(failure.attempts());
        Unopened::missing(failure, advice)
    })?;
    // SAFETY: as above.
    let driver = unsafe { Driver::load_from(&path) };
    Ok((Library::of(library), driver))
}

/// The value of a variable, with anything that is not Unicode replaced.
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

/// What the driver's kernel module reports about itself, if loaded.
pub(crate) fn kernel_module() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let line = text.lines().next()?.split_whitespace();
    Some(line.collect::<Vec<_>>().join(" ")).filter(|line| !line.is_empty())
}

/// The file of the driver, which is opened by a bare name. The file name often contains the version. Found by the
/// address of the driver's first function.
#[cfg(not(windows))]
fn file_of(table: &DriverTable) -> Option<PathBuf> {
    let address = table.cuInit? as usize;
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

/// As on Linux: the library is the one that has this address.
#[cfg(windows)]
fn file_of(table: &DriverTable) -> Option<PathBuf> {
    use std::ffi::OsString;
    use std::os::windows::ffi::OsStringExt as _;

    use windows_sys::Win32::System::LibraryLoader::{
        GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
        GetModuleFileNameW, GetModuleHandleExW,
    };

    /// No path has more characters there.
    const LONGEST: u32 = 32_768;

    let address = table.cuInit? as *const u16;
    let flags =
        GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
    let mut module = std::ptr::null_mut();
    // SAFETY: with FROM_ADDRESS the second argument is an address, and is not read through. The third can be written.
    if unsafe { GetModuleHandleExW(flags, address, &raw mut module) } == 0 {
        return None;
    }
    let mut name = vec![0; LONGEST as usize];
    // SAFETY: the library of a `DriverTable` is never closed, so the handle stays valid. `name` has as
    // many characters as is said.
    let length = unsafe { GetModuleFileNameW(module, name.as_mut_ptr(), LONGEST) };
    let name = name
        .get(..length as usize)
        .filter(|name| !name.is_empty())?;
    Some(PathBuf::from(OsString::from_wide(name)))
}
