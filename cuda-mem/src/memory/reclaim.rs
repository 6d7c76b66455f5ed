//! When a device has no memory left for one resource, others of this process give back what they hold and do not use.

use std::sync::Weak;

use crate::base::error::{Error, Result};
use crate::base::lock::Lock;
use crate::driver::device::Device;
use crate::stream::Stream;

/// Holds memory of a device that it may not need.
pub(crate) trait Reclaim: Send + Sync {
    /// Gives back what is free and done, if it has memory of this device and no thread is at it. Says whether anything
    /// went. Waits for nobody: who calls this may hold locks of another resource.
    fn reclaim(&self, device: Device) -> bool;
}

static LIST: Lock<Vec<Weak<dyn Reclaim>>> = Lock::new(Vec::new());

/// From now on it is asked, until it is dropped. Not in a fork.
pub(crate) fn add(holder: Weak<dyn Reclaim>) {
    if let Some(mut list) = LIST.lock_unless_forked() {
        list.retain(|other| other.strong_count() > 0);
        list.push(holder);
    }
}

/// Asks for physical memory of a device, and once more if the device had none and others gave some back.
pub(crate) fn or_reclaim<T>(device: Device, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    match ask() {
        Err(error) if error.is_out_of_memory() && reclaim(device) => ask(),
        answer => answer,
    }
}

/// Whether a request that failed is to be tried again: the device had too little, and others gave some back. A pool may
/// also have reached a limit of its own.
#[cold]
pub(crate) fn helps(error: &Error, device: Option<Device>, stream: &Stream, bytes: usize) -> bool {
    let Some(device) = device.filter(|_| error.is_out_of_memory()) else {
        return false;
    };
    let is_short = || {
        let info = stream.context().memory_info();
        info.is_ok_and(|info| info.free < bytes as u64)
    };
    (device != stream.device() || is_short()) && reclaim(device)
}

/// Whether anybody gave memory back.
#[cold]
fn reclaim(device: Device) -> bool {
    let Some(holders) = LIST.lock_unless_forked().map(|list| list.clone()) else {
        return false;
    };
    // The last handle of a resource may be dropped here, which is not for under the lock. All are asked.
    let holders = holders.iter().filter_map(Weak::upgrade);
    holders.filter(|holder| holder.reclaim(device)).count() > 0
}
