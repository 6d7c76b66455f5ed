//! Machines for tests: each is a copy of the library with settings of its own, so that several can be in one process.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use cuda_driver_sys::{DriverLibrary, LoadError};
use cuda_sim_support::find::{copy_library, plain_path};
use cuda_sim_support::settings;

use crate::configuration::Configuration;
use crate::control::{Control, ControlError};
use crate::path::{FILE, library_path};
use crate::system::{is_running, try_lock};

/// A machine to simulate: devices, their memory, and what they lack. Without changes it has one H200 and CUDA 13.0.
///
/// [`start`](Self::start) gives every caller a machine of its own, with devices, contexts, counts and faults of its own.
/// Tests that run side by side in one process do not see each other's.
///
/// ```
/// use cuda_sim::Machine;
///
/// let simulator = Machine::new().devices(2).memory(8 << 30).start()?;
/// let driver = simulator.library().table();
/// let (init, count) = (driver.cuInit.unwrap(), driver.cuDeviceGetCount.unwrap());
/// let mut devices = 0;
/// // SAFETY: the simulator's functions have the signatures of the driver, and the place is valid for a write.
/// let codes = unsafe { [init(0), count(&raw mut devices)] };
/// assert!(codes.iter().all(|code| code.0 == 0));
/// assert_eq!(devices, 2);
/// assert_eq!(simulator.control().calls("cuInit"), 1);
/// simulator.check()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "a machine does nothing until it is started"]
pub struct Machine {
    settings: Vec<(String, String)>,
    mig: Vec<String>,
    no_pools: Vec<String>,
}

impl Machine {
    /// A machine with one H200 and CUDA 13.0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of devices, up to 64.
    pub fn devices(self, count: usize) -> Self {
        self.set("CUDA_SIM_DEVICES", count)
    }

    /// Bytes of memory of each device, from 1 MiB to 4 TiB. Takes real memory only where it is written.
    pub fn memory(self, bytes: u64) -> Self {
        self.set("CUDA_SIM_MEMORY", bytes)
    }

    /// The CUDA version of the driver, from 11.0 on. Functions of newer versions are absent.
    pub fn cuda_version(self, major: u32, minor: u32) -> Self {
        let version = major.saturating_mul(1000);
        self.set(
            "CUDA_SIM_DRIVER_VERSION",
            version.saturating_add(minor.saturating_mul(10)),
        )
    }

    /// Divides a device into this number of MIG instances, at most 7. A process sees one instance.
    pub fn mig(mut self, device: usize, instances: usize) -> Self {
        self.mig.push(format!("{device}:{instances}"));
        let list = self.mig.join(",");
        self.set("CUDA_SIM_MIG", list)
    }

    /// No device has memory pools.
    pub fn no_pools(self) -> Self {
        self.set("CUDA_SIM_POOLS", 0)
    }

    /// Device `device` has no memory pools.
    pub fn no_pools_on(mut self, device: usize) -> Self {
        self.no_pools.push(device.to_string());
        let list = self.no_pools.join(",");
        self.set("CUDA_SIM_NO_POOLS", list)
    }

    /// No device reaches another one's memory.
    pub fn no_peers(self) -> Self {
        self.set("CUDA_SIM_PEERS", 0)
    }

    /// What the process finds in `CUDA_VISIBLE_DEVICES`; the environment's own value is not used.
    pub fn visible(self, devices: impl fmt::Display) -> Self {
        self.set("CUDA_VISIBLE_DEVICES", devices)
    }

    /// Any other setting, by the name of its variable: `CUDA_SIM_…`, and for the libraries beside it `NVML_SIM_…`,
    /// `NCCL_SIM_…` and `CUDA_SIM_GDR_…`.
    pub fn set(mut self, variable: &str, value: impl fmt::Display) -> Self {
        self.settings.retain(|(name, _)| name != variable);
        self.settings.push((variable.to_owned(), value.to_string()));
        self
    }

    /// Starts it. Takes some milliseconds: a copy of the library is opened, which stays loaded until the process exits.
    /// Pools reserve twice the memory of their device as address space, so a process that starts hundreds of machines gives
    /// them little [`memory`](Self::memory).
    ///
    /// # Errors
    ///
    /// If a setting makes no sense; if the library was not built, or cannot be copied to the folder for temporary files and
    /// opened there.
    pub fn start(mut self) -> Result<Simulator, StartError> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Handles of one machine mean nothing to another one.
        self = self.set("CUDA_SIM_HANDLES", number << 20);
        let wrong = self.complaints();
        if !wrong.is_empty() {
            return Err(StartError::Settings(wrong));
        }
        let library = library_path().ok_or(StartError::NotBuilt)?;
        let folder = Folder::new(number).map_err(StartError::Copy)?;
        settings::write(&folder.path, &self.settings).map_err(StartError::Copy)?;
        let path = copy_library(&library, &folder.path, FILE).map_err(StartError::Copy)?;
        let control = Control::open(&path).map_err(StartError::Open)?;
        // SAFETY: the file is the simulator, which identified itself just now.
        let library = unsafe { cuda_driver_sys::load_from(&path) }.map_err(StartError::Load)?;
        Ok(Simulator {
            path,
            control,
            library,
            _folder: folder,
        })
    }
}

impl Machine {
    /// What is wrong with the settings of the driver, one line each.
    fn complaints(&self) -> Vec<String> {
        let asked = RefCell::new(BTreeSet::new());
        let (configuration, mut complaints) = Configuration::read(|name| {
            asked.borrow_mut().insert(name.to_owned());
            let found = self.settings.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.clone())
        });
        for (name, _) in &self.settings {
            let is_driver = name.starts_with("CUDA_SIM_") && !name.starts_with("CUDA_SIM_GDR_");
            let others = ["CUDA_SIM_GDR_", "NCCL_SIM_", "NVML_SIM_", "CUDA_"];
            let is_known = if is_driver {
                asked.borrow().contains(name)
            } else {
                others.iter().any(|start| name.starts_with(start))
            };
            if !is_known {
                complaints.push(format!("{name} is no setting"));
            }
        }
        let named = configuration.mig.iter().map(|(device, _)| device);
        for device in named.chain(&configuration.no_pools) {
            if *device >= configuration.devices {
                complaints.push(format!(
                    "there is no device {device}: the machine has {}",
                    configuration.devices
                ));
            }
        }
        complaints
    }
}

/// How the names of machines' folders begin; the process follows.
const PREFIX: &str = "cuda-sim-";

/// The file in such a folder that the process locks.
const LOCK: &str = "lock";

/// A folder for one machine. Removed when dropped. What was loaded from it stays loaded.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    /// The process that made it.
    process: u32,
    /// Locked while it is open: containers that share the folder around it have process numbers of their own.
    lock: Option<File>,
}

impl Folder {
    fn new(number: u64) -> io::Result<Self> {
        static SWEPT: Once = Once::new();
        let all = plain_path(&std::env::temp_dir())?;
        let process = std::process::id();
        SWEPT.call_once(|| sweep(&all));
        // Left behind by an earlier process of this number that was killed, or somebody else's.
        for attempt in 0..100 {
            let folder = all.join(format!("{PREFIX}{process}-{number}-{attempt}"));
            match std::fs::create_dir(&folder) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            }
            let mut made = Self {
                path: folder,
                process,
                lock: None,
            };
            let lock = File::create(made.path.join(LOCK))?;
            // Some file systems have no locks: the process number has to do.
            let _ = try_lock(&lock);
            made.lock = Some(lock);
            return Ok(made);
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }
}

/// Removes what processes left that were killed. A folder of one that runs may hold a library that is not opened yet.
fn sweep(all: &Path) {
    for entry in std::fs::read_dir(all).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let owner = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split('-').next());
        let owner = owner.and_then(|number| number.parse::<u32>().ok());
        if owner.is_some_and(|owner| !is_running(owner)) && !is_locked(&entry.path()) {
            // Another process may do so at the same time, or the folder may be somebody else's.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether a process has this folder, wherever it runs.
fn is_locked(folder: &Path) -> bool {
    let lock = File::open(folder.join(LOCK));
    lock.is_ok_and(|lock| !try_lock(&lock))
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A forked child unwinds as well, and the folder is its parent's.
        if self.process != std::process::id() {
            return;
        }
        // Windows keeps folders with open files.
        self.lock = None;
        // A destructor cannot report errors.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// A started [`Machine`].
///
/// Dropping it removes the files that were copied for it. The driver works until the process exits, but libraries that go
/// with it, such as the simulated NVML, can no longer be opened.
#[derive(Debug)]
pub struct Simulator {
    path: PathBuf,
    control: Control,
    library: &'static DriverLibrary,
    _folder: Folder,
}

impl Simulator {
    /// The machine's driver library.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The machine's driver, opened.
    #[must_use]
    pub fn library(&self) -> &'static DriverLibrary {
        self.library
    }

    /// Counts, faults and reports of this machine.
    #[must_use]
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Fails if the order sanitizer has found anything since the start or the last [`reset`](Control::reset). Call it at
    /// the end of a test, once all streams are done.
    ///
    /// # Errors
    ///
    /// The reports.
    pub fn check(&self) -> Result<(), Violations> {
        match self.control.report_count() {
            0 => Ok(()),
            count => Err(Violations {
                count,
                reports: self.control.reports(),
            }),
        }
    }
}

/// What the order sanitizer found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violations {
    count: u64,
    reports: Vec<String>,
}

impl Violations {
    /// The reports, one per line. The first thousand are kept.
    #[must_use]
    pub fn reports(&self) -> &[String] {
        &self.reports
    }
}

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the order sanitizer has {} reports", self.count)?;
        self.reports
            .iter()
            .try_for_each(|report| write!(f, "\n  {report}"))
    }
}

impl Error for Violations {}

/// Why a machine did not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// The simulator's library is not where cargo builds it; `CUDA_SIM_LIBRARY` may name it.
    NotBuilt,
    /// Settings that make no sense, one line each.
    Settings(Vec<String>),
    /// It cannot be copied.
    Copy(io::Error),
    /// The copy does not open.
    Open(ControlError),
    /// The copy is no driver.
    Load(LoadError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotBuilt => write!(
                f,
                "{FILE} is not beside the program; build the package cuda-sim, or name the file in CUDA_SIM_LIBRARY"
            ),
            Self::Settings(wrong) => write!(f, "no such machine: {}", wrong.join("; ")),
            Self::Copy(error) => {
                let folder = std::env::temp_dir();
                write!(
                    f,
                    "the simulator cannot be copied to {}: {error}",
                    folder.display()
                )
            }
            Self::Open(error) => write!(
                f,
                "{error}; if the folder for temporary files allows no programs, name another one in TMPDIR"
            ),
            Self::Load(error) => error.fmt(f),
        }
    }
}

impl Error for StartError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::NotBuilt | Self::Settings(_) => None,
            Self::Copy(error) => Some(error),
            Self::Open(error) => Some(error),
            Self::Load(error) => Some(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn what_running_processes_made_is_not_swept() {
        let all = std::env::temp_dir().join(format!("sweep-{}", std::process::id()));
        let program = std::env::current_exe().expect("known");
        let mut child = Command::new(program);
        let child = child.arg("--list").stdout(Stdio::null()).spawn();
        let mut child = child.expect("runs");
        child.wait().expect("ends");
        let own = format!("{PREFIX}{}-1-0", std::process::id());
        let ended = format!("{PREFIX}{}-1-0", child.id());
        // As of a process in another container.
        let locked = format!("{PREFIX}{}-2-0", child.id());
        let other = format!("{PREFIX}notes");
        let names = [&own, &ended, &locked, &other];
        for name in names {
            std::fs::create_dir_all(all.join(name)).expect("made");
        }
        let lock = File::create(all.join(&locked).join(LOCK)).expect("made");
        assert!(try_lock(&lock));
        sweep(&all);
        let left = names.map(|name| all.join(name).exists());
        drop(lock);
        std::fs::remove_dir_all(&all).expect("removed");
        let [own, ended, locked, other] = left;
        assert!(own && !ended && other, "{left:?}");
        // Windows has process numbers for all, and no such locks here. Whether a folder with an open file goes, it decides.
        assert!(locked || cfg!(windows));
    }
}
