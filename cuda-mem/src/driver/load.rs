//! Opens and initialises the driver, and queries its version.

mod log;
pub(crate) mod start;

use std::fmt;
use std::path::Path;

use cuda_driver_sys::{CudaVersion, DriverLibrary, DriverTable, MissingSymbol};

use crate::base::error::{Error, Result};
use crate::base::lock::LockedOnce;
use crate::base::report;
use crate::driver::raw;

/// An initialised CUDA driver. A cheap handle; the driver stays loaded until the process ends.
///
/// ```
/// use cuda_mem::Driver;
///
/// # cuda_sim::use_if_no_driver();
/// let driver = Driver::load()?;
/// println!("CUDA {}, {} devices", driver.version(), driver.device_count()?);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Driver(&'static Loaded);

struct Loaded {
    table: &'static DriverTable,
    path: Option<&'static Path>,
    version: CudaVersion,
    start: &'static start::Start,
}

impl Driver {
    /// Opens the driver of this machine and initialises it (`cuInit`, about 200 ms the first time in a process). Later
    /// calls return the same driver at once.
    ///
    /// `CUDA_DRIVER_SYS_LIBRARY` may name another library to open. The driver reads `CUDA_VISIBLE_DEVICES` here, and
    /// never again; [`visibility`](Self::visibility) reports the value that it had.
    ///
    /// # Errors
    ///
    /// [`DriverMissing`](crate::ErrorKind::DriverMissing) lists everything that was tried.
    /// [`InvalidDevice`](crate::ErrorKind::InvalidDevice) if the driver finds no GPU; the text quotes
    /// `CUDA_VISIBLE_DEVICES`.
    #[doc(alias = "cuInit")]
    pub fn load() -> Result<Self> {
        static DRIVER: LockedOnce<Driver> = LockedOnce::new();
        if let Some(driver) = DRIVER.get()? {
            return Ok(*driver);
        }
        // From here on others may wait for this thread, which a fork does not have.
        let _watched = report::watch_forks_for_now();
        DRIVER
            .get_or_try_init(|| Self::from_library(cuda_driver_sys::load()?))
            .copied()
    }

    /// Opens the driver library at `path`, and no other, and initialises it.
    ///
    /// Each call opens it again; keep the handle.
    ///
    /// # Safety
    ///
    /// The file's initialisers run, and it must be a CUDA driver or behave like one.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Self> {
        // SAFETY: the caller vouches for the file.
        let library = unsafe { cuda_driver_sys::load_from(path) }?;
        Self::from_library(library)
    }

    fn from_library(library: &'static DriverLibrary) -> Result<Self> {
        Self::start(library.table(), Some(library.path()))
    }

    /// Uses functions from any source, for example a test's own.
    ///
    /// # Safety
    ///
    /// The functions must behave like those of the CUDA driver.
    ///
    /// # Errors
    ///
    /// Any error of the initialisation.
    pub unsafe fn from_table(table: &'static DriverTable) -> Result<Self> {
        Self::start(table, None)
    }

    fn start(table: &'static DriverTable, path: Option<&'static Path>) -> Result<Self> {
        // First, so that no fork falls between.
        report::watch_forks();
        // SAFETY: the table is a CUDA driver's, by the contract of every function that leads here.
        let start = unsafe { start::initialise(table) }?;
        // SAFETY: as above.
        let version = unsafe { raw::init::version(table) }?;
        Ok(Self(Box::leak(Box::new(Loaded {
            table,
            path,
            version: CudaVersion::from_raw(version.unsigned_abs()),
            start,
        }))))
    }

    /// The newest CUDA version that this driver supports.
    #[doc(alias = "cuDriverGetVersion")]
    #[must_use]
    pub fn version(&self) -> CudaVersion {
        self.0.version
    }

    /// The name or path with which the library was opened; `None` for a table supplied by the caller.
    #[must_use]
    pub fn library_path(&self) -> Option<&Path> {
        self.0.path
    }

    /// Whether the driver exports this function, given its real symbol (`cuMemAlloc_v2`).
    #[must_use]
    pub fn has(&self, symbol: &str) -> bool {
        self.0.table.has(symbol)
    }

    /// `Ok` if the driver exports this function.
    ///
    /// # Errors
    ///
    /// [`SymbolMissing`](crate::ErrorKind::SymbolMissing), with the CUDA version that introduced
    /// it.
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// let driver = cuda_mem::Driver::load()?;
    /// driver.require("cuMemPoolCreate")?;
    /// assert!(driver.require("cuTeapot").is_err());
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn require(&self, symbol: &'static str) -> Result<()> {
        if self.has(symbol) {
            Ok(())
        } else {
            Err(MissingSymbol::new(symbol).into())
        }
    }

    /// `Ok` if the driver is at least this version; otherwise an error that says what needs it.
    pub(crate) fn require_version(&self, what: &'static str, since: CudaVersion) -> Result<()> {
        if self.version() >= since {
            Ok(())
        } else {
            Err(Error::too_old(what, since, self.version()))
        }
    }

    /// `Ok` if `other` is the same driver; otherwise an error that says that `what` belong to two drivers.
    pub(crate) fn require_same(&self, other: Self, what: fmt::Arguments<'_>) -> Result<()> {
        if *self == other {
            return Ok(());
        }
        Err(Error::invalid(format!("{what} belong to two drivers")))
    }

    /// The number of devices visible to this process.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuDeviceGetCount")]
    pub fn device_count(&self) -> Result<usize> {
        // SAFETY: the driver is initialised.
        let count = unsafe { raw::device::count(self.table()) }?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The state found just before it was initialised.
    pub(crate) fn start_facts(&self) -> &'static start::Start {
        self.0.start
    }

    /// The functions of the driver, for calls that this crate does not wrap.
    #[must_use]
    #[inline]
    pub fn table(&self) -> &'static DriverTable {
        self.0.table
    }
}

/// Two handles are equal if they are the same driver, opened by the same call.
impl PartialEq for Driver {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Driver {}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("version", &self.version().to_string())
            .field("path", &self.0.path)
            .finish()
    }
}

// Function pointers, a path and a number: nothing that is tied to a thread. The driver's functions
// may be called from any thread.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Driver>();
};
