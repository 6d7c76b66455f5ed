//! Virtual memory: physical memory, addresses, and buffers over both.

mod appends;
mod buffers;
mod captures;
mod forks;
mod mappings;
mod moves;
#[cfg(unix)]
mod processes;
mod samples;

use anyhow::Result;
use cuda_mem::driver::Location;

use crate::environment::Environment;

/// The sizes of the kernel driver's own tests, and those around pages.
pub(crate) const SIZES: [usize; 16] = [
    1,
    4,
    16,
    1024,
    (4 << 10) - 1,
    4 << 10,
    (4 << 10) + 1,
    (64 << 10) - 1,
    64 << 10,
    (64 << 10) + 1,
    1 << 20,
    (2 << 20) - 1,
    2 << 20,
    (2 << 20) + 1,
    (7 << 20) + 17,
    5 * (2 << 20) - 1,
];

/// Where memory can be on this machine: the device, and the host as far as the driver is new enough.
fn places(env: &Environment) -> Result<Vec<Location>> {
    let mut places = vec![Location::Device(env.device()?)];
    if env.has_node()? {
        places.push(Location::HostNuma(0));
    }
    if env.need(13, 0).is_ok() {
        places.push(Location::Host);
    }
    Ok(places)
}

/// A pattern that differs from place to place.
pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}
