//! Virtual memory management: physical memory, address ranges, and mappings between them.
//!
//! This module relies on the following behaviour of the driver (measured, `docs/src/driver-rules.md`): memory and
//! reservations come in multiples of the granularity (R138, R139); memory is mapped whole (R140); a mapping gives no
//! access (R141); it is unmapped whole, and the addresses are released when nothing is mapped there (R142); memory
//! stays until neither a handle nor a mapping is left (R143); none of it waits for a stream (R145) or needs a context
//! (R148).
//!
//! So a mapping holds both its range and its memory, a range holds nothing, and the order of release is always: unmap,
//! release the addresses, release the memory.

mod accesses;
mod builder;
mod collective;
mod growable;
mod mapped;
mod mapping;
mod moving;
mod physical;
mod range;

pub use builder::MappedMemoryBuilder;
pub use growable::GrowableBuffer;
pub use mapped::MappedMemory;
pub use mapping::Mapping;
pub use physical::{Granularity, PhysicalMemory, PhysicalMemoryBuilder};
pub use range::AddressRange;

use crate::base::error::{Error, Result};

/// `bytes`, rounded up to whole granules.
fn whole(bytes: u64, granule: u64) -> Result<u64> {
    let whole = bytes.checked_next_multiple_of(granule);
    whole
        .filter(|whole| *whole > 0 && usize::try_from(*whole).is_ok())
        .ok_or_else(|| match bytes {
            0 => Error::invalid("no bytes were asked for, and memory has at least one".to_owned()),
            _ => Error::invalid(format!(
                "{bytes} bytes are more than can be counted in steps of {granule}"
            )),
        })
}
