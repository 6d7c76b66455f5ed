//! When a device has no memory left for one resource, other resources of this process release their unused memory.

use std::sync::Weak;

use crate::base::error::{Error, Result};
use crate::base::lock::Lock;
use crate::driver::device::Device;
use crate::stream::Stream;

/// A holder of device memory that it may not need.
pub(crate) trait Reclaim: Send + Sync {
    /// Releases memory of this device that is free and whose work is done, unless another thread is using this
    /// holder. Returns whether it released anything. Does not wait while the thread has locks of another resource.
    fn reclaim(&self, device: Device) -> bool;
}

static LIST: Lock<Vec<Weak<dyn Reclaim>>> = Lock::new(Vec::new());

/// Registers a holder until it is dropped. Does nothing in a fork.
pub(crate) fn add(holder: Weak<dyn Reclaim>) {
    if let Some(mut list) = LIST.lock_unless_forked() {
        list.retain(|other| other.strong_count() > 0);
        list.push(holder);
    }
}

/// Requests physical memory of a device, and retries once if the device had none and other holders released some.
pub(crate) fn or_reclaim<T>(device: Device, mut ask: impl FnMut() -> Result<T>) -> Result<T> {
    match ask() {
        Err(error) if error.is_out_of_memory() && reclaim(device) => ask(),
        answer => answer,
    }
}

/// The step in which a pool grows (R34), whatever it was asked for.
const POOL_STEP: u64 = 32 << 20;

/// Whether to retry a failed request: the device had too little memory, and other holders released some. A pool may
/// also have reached a limit of its own.
#[cold]
pub(crate) fn helps(error: &Error, device: Option<Device>, stream: &Stream, bytes: usize) -> bool {
    let Some(device) = device.filter(|_| error.is_out_of_memory()) else {
        return false;
    };
    let is_short = || {
        let info = stream.context().memory_info();
        info.is_ok_and(|info| info.free < (bytes as u64).saturating_add(POOL_STEP))
    };
    (device != stream.device() || is_short()) && reclaim(device)
}

/// Whether any holder released memory.
#[cold]
fn reclaim(device: Device) -> bool {
    let Some(holders) = LIST.lock_unless_forked().map(|list| list.clone()) else {
        return false;
    };
    // The last handle of a resource may be dropped here, which must not happen under the lock. All holders are
    // asked.
    let holders = holders.iter().filter_map(Weak::upgrade);
    holders.filter(|holder| holder.reclaim(device)).count() > 0
}
