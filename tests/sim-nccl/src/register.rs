//! Registrations of memory, by communicators one by one and as windows of all.
//!
//! They have a lock of their own, because the driver calls [`on_free`] with its lock held.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_driver_sys::nccl::ncclResult_t;

use crate::driver::{cu, driver};
use crate::export::{Answer, Comm, fail, invalid_argument};
use crate::launch::Loaded;
use crate::state::new_number;
use crate::words;

/// Whose call made a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RegistrationKind {
    Own,
    Window,
}

impl RegistrationKind {
    fn name(self) -> &'static str {
        match self {
            Self::Own => "registration",
            Self::Window => "window",
        }
    }
}

#[derive(Debug)]
struct Registration {
    comm: Comm,
    kind: RegistrationKind,
    address: u64,
    bytes: u64,
    /// Its memory is gone, and that was told.
    is_freed: bool,
}

static REGISTRATIONS: Mutex<BTreeMap<u64, Registration>> = Mutex::new(BTreeMap::new());

fn registrations() -> MutexGuard<'static, BTreeMap<u64, Registration>> {
    REGISTRATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Called before memory is freed or unmapped, with the driver locked.
pub(crate) extern "C" fn on_free(start: u64, len: u64) {
    let end = start.saturating_add(len);
    for registration in registrations().values_mut() {
        let Registration { address, bytes, .. } = *registration;
        if !registration.is_freed && start < address + bytes && address < end {
            registration.is_freed = true;
            let what = registration.kind.name();
            words::fault(format!(
                "memory at {start:#x} is freed while {bytes} bytes at {address:#x} are registered: a {what} of \
                 communicator {:#x}",
                registration.comm.0
            ));
        }
    }
}

/// Refuses memory that NCCL cannot register: it must be mapped, and of one physical allocation.
pub(crate) fn check(loaded: &Loaded, address: u64, bytes: usize) -> Answer {
    if address == 0 || bytes == 0 {
        return invalid_argument("there is no memory to register");
    }
    let Some(end) = address.checked_add(bytes as u64) else {
        return invalid_argument("the range wraps around");
    };
    let driver = driver()?;
    driver.in_context(loaded.context, || {
        let (mut base, mut len) = (0, 0);
        if cu!(
            driver,
            cuMemGetAddressRange_v2(&raw mut base, &raw mut len, address)
        )
        .is_err()
        {
            return invalid_argument(format!("there is no memory at {address:#x}"));
        }
        let mut handle = 0;
        let pointer = std::ptr::without_provenance_mut(address as usize);
        let retained = cu!(
            driver,
            cuMemRetainAllocationHandle(&raw mut handle, pointer)
        );
        if retained.is_err() {
            return fail(
                ncclResult_t::ncclUnhandledCudaError,
                format!(
                    "memory at {address:#x} has no handle: it is of a pool or of cuMemAlloc, not mapped"
                ),
            );
        }
        cu!(driver, cuMemRelease(handle))?;
        if end > base + len as u64 {
            return invalid_argument(format!(
                "{bytes} bytes at {address:#x} are not in one physical allocation"
            ));
        }
        Ok(())
    })
}

/// Adds a registration, which was checked.
pub(crate) fn add(comm: Comm, kind: RegistrationKind, address: u64, bytes: usize) -> u64 {
    let number = new_number();
    let registration = Registration {
        comm,
        kind,
        address,
        bytes: bytes as u64,
        is_freed: false,
    };
    registrations().insert(number, registration);
    number
}

/// Ends a registration of this communicator.
pub(crate) fn remove(comm: Comm, kind: RegistrationKind, number: u64) -> Answer {
    let mut all = registrations();
    let is_own = |it: &Registration| it.comm == comm && it.kind == kind;
    if !all.get(&number).is_some_and(is_own) {
        let words = format!(
            "communicator {:#x} has no {} {number:#x}",
            comm.0,
            kind.name()
        );
        words::fault(words.clone());
        return invalid_argument(words);
    }
    all.remove(&number);
    Ok(())
}

/// Number of registrations of a kind.
pub(crate) fn count(kind: RegistrationKind) -> u64 {
    let all = registrations();
    all.values().filter(|it| it.kind == kind).count() as u64
}

/// Forgets those of a communicator, which are leaks.
pub(crate) fn note_leaks(comm: Comm) {
    for registration in take(comm) {
        let Registration { address, bytes, .. } = registration;
        let what = registration.kind.name();
        words::fault(format!(
            "communicator {:#x} was destroyed with a {what}: {bytes} bytes at {address:#x}",
            comm.0
        ));
    }
}

/// Forgets those of a communicator that was aborted.
pub(crate) fn forget(comm: Comm) {
    take(comm);
}

fn take(comm: Comm) -> Vec<Registration> {
    let mut all = registrations();
    let (own, others) = std::mem::take(&mut *all)
        .into_iter()
        .partition(|(_, it)| it.comm == comm);
    *all = others;
    let own: BTreeMap<u64, Registration> = own;
    own.into_values().collect()
}
