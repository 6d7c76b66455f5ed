//! The initialisation of a driver: the environment at that moment, and whether other code initialised it first.

use std::ffi::OsString;
use std::fmt;
use std::sync::MutexGuard;

use crate::base::error::{ErrorKind, Result};
use crate::base::lock::Lock;
use crate::driver::raw;

/// The variable that selects the devices a process sees.
pub(crate) const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
/// The variable that selects the order in which CUDA numbers them.
pub(crate) const DEVICE_ORDER: &str = "CUDA_DEVICE_ORDER";

/// What was found just before the driver was initialised.
#[derive(Debug)]
pub(crate) struct Start {
    /// `CUDA_VISIBLE_DEVICES`.
    pub(crate) devices: Option<OsString>,
    /// `CUDA_DEVICE_ORDER`.
    pub(crate) order: Option<OsString>,
    /// Whether other code had initialised it before, so that it read the variables earlier; `None` if the driver would
    /// not say.
    pub(crate) was_initialised: Option<bool>,
}

impl Start {
    /// What to do when a device is missing. The driver shows this process `found` devices; with none, it does not
    /// start.
    #[cold]
    pub(crate) fn hint(&self, found: usize) -> String {
        let mut hint = self.to_string();
        hint += &match (&self.devices, found) {
            (None, 0) => ", so the driver finds no GPU at all: see whether nvidia-smi lists one, and whether the \
                          container or virtual machine was given it"
                .to_owned(),
            (None, found) => {
                format!(", so the driver finds no others: ask for an ordinal below {found}")
            }
            (Some(_), 0) => " and leaves no device: name devices that are there, or unset it, before the program \
                             starts"
                .to_owned(),
            (Some(_), found) => format!(
                " and leaves {found} device{}: ask for an ordinal below {found}, or name more devices before the \
                 program starts",
                if found == 1 { "" } else { "s" }
            ),
        };
        if self.was_initialised == Some(true) {
            hint += ". Something else in this process had initialised it earlier, perhaps with another value";
        }
        hint
    }
}

/// The value of the variable, in quotes.
impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.devices {
            None => write!(f, "{VISIBLE_DEVICES} was not set")?,
            Some(value) => write!(f, "{VISIBLE_DEVICES} was \"{}\"", value.display())?,
        }
        f.write_str(" when the driver was initialised")
    }
}

/// The drivers that this crate has initialised.
#[derive(Debug)]
pub(crate) struct Starts {
    /// Whether any initialisation was attempted, even without success: it has read the variables.
    pub(crate) were_tried: bool,
    /// By the address of the initialisation function: opening the same library again gives the same entry.
    known: Vec<(usize, &'static Start)>,
}

static STARTS: Lock<Starts> = Lock::new(Starts {
    were_tried: false,
    known: Vec::new(),
});

/// No driver is initialised through this crate while the guard lives.
pub(crate) fn lock() -> Result<MutexGuard<'static, Starts>> {
    STARTS.lock()
}

/// Initialises the driver and records what it could read.
///
/// # Safety
/// The table's functions must be a CUDA driver's.
pub(super) unsafe fn initialise(table: &raw::Table) -> Result<&'static Start> {
    let mut starts = lock()?;
    let address = raw::init::address(table);
    let known = starts.known.iter().find(|known| known.0 == address);
    if let Some((_, start)) = known {
        // SAFETY: the table is a CUDA driver's.
        unsafe { raw::init::init(table) }?;
        return Ok(start);
    }
    // SAFETY: as above. Before cuInit this call answers NOT_INITIALIZED and does nothing.
    let was_initialised = match unsafe { raw::device::count(table) } {
        Ok(_) => Some(true),
        Err(error) if error.kind() == ErrorKind::NotInitialized => Some(false),
        Err(_) => None,
    };
    let start = Start {
        devices: std::env::var_os(VISIBLE_DEVICES),
        order: std::env::var_os(DEVICE_ORDER),
        was_initialised,
    };
    starts.were_tried = true;
    // SAFETY: as above.
    unsafe { raw::init::init(table) }.map_err(|error| error.no_device(|| start.hint(0)))?;
    let start: &'static Start = Box::leak(Box::new(start));
    starts.known.push((address, start));
    Ok(start)
}
