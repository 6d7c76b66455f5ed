//! The moment at which a driver is initialised: what the environment said then, and whether somebody
//! else was first.

use std::ffi::OsString;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, ErrorKind, Result};
use crate::{raw, report};

/// Which devices a process sees.
pub(crate) const VISIBLE_DEVICES: &str = "CUDA_VISIBLE_DEVICES";
/// In which order CUDA numbers them.
pub(crate) const DEVICE_ORDER: &str = "CUDA_DEVICE_ORDER";

/// What was found just before the driver was initialised.
#[derive(Debug)]
pub(crate) struct Start {
    /// `CUDA_VISIBLE_DEVICES`.
    pub(crate) devices: Option<OsString>,
    /// `CUDA_DEVICE_ORDER`.
    pub(crate) order: Option<OsString>,
    /// Whether somebody else had initialised it before, so that it has read the variables earlier; `None`
    /// if it would not say.
    pub(crate) was_initialised: Option<bool>,
}

/// The drivers that this crate has initialised.
#[derive(Debug)]
pub(crate) struct Starts {
    /// Whether any was asked to, also in vain: it has read the variables.
    pub(crate) were_tried: bool,
    /// By the address of the function that initialises: who opens the same library again gets the same.
    known: Vec<(usize, &'static Start)>,
}

static STARTS: Mutex<Starts> = Mutex::new(Starts {
    were_tried: false,
    known: Vec::new(),
});

/// Nobody initialises a driver through this crate while the guard lives.
pub(crate) fn lock() -> Result<MutexGuard<'static, Starts>> {
    // The thread that holds the lock may not have come along.
    if report::is_forked() {
        return Err(Error::forked());
    }
    Ok(STARTS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Initialises the driver and remembers what it could read.
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
    unsafe { raw::init::init(table) }?;
    let start: &'static Start = Box::leak(Box::new(start));
    starts.known.push((address, start));
    Ok(start)
}
