//! Advice: how managed memory will be used.

use std::fmt;

use cuda_driver_sys::CUmem_advise;

use crate::base::error::{Error, Result};
use crate::driver::location::Location;

/// How managed memory will be used. The driver may act on it; results are the same with and without. CUDA 8.0 or newer;
/// NUMA nodes of the host need 12.2.
#[doc(alias = "CUmem_advise")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Advice {
    /// It is read far more often than written: each reader gets its own copy, and a write invalidates all other copies.
    ReadMostly,
    /// It should stay here: it does not migrate on access by processors that can reach it where it is. Nothing moves at
    /// once. A device, the host, or a NUMA node of the host. When the advice is withdrawn, the location is ignored.
    PreferredLocation(Location),
    /// It will be used from here, a device or the host, and stays mapped there, so that accesses cause no page faults.
    /// The memory itself may be elsewhere. Several locations may have this.
    AccessedBy(Location),
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReadMostly => f.pad("read mostly"),
            Self::PreferredLocation(place) => write!(f, "preferred location {place}"),
            Self::AccessedBy(place) => write!(f, "accessed by {place}"),
        }
    }
}

impl Advice {
    /// The driver's constant for setting the advice, or for withdrawing it.
    pub(super) fn to_raw(self, is_set: bool) -> CUmem_advise {
        use CUmem_advise as A;
        match (self, is_set) {
            (Self::ReadMostly, true) => A::CU_MEM_ADVISE_SET_READ_MOSTLY,
            (Self::ReadMostly, false) => A::CU_MEM_ADVISE_UNSET_READ_MOSTLY,
            (Self::PreferredLocation(_), true) => A::CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
            (Self::PreferredLocation(_), false) => A::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION,
            (Self::AccessedBy(_), true) => A::CU_MEM_ADVISE_SET_ACCESSED_BY,
            (Self::AccessedBy(_), false) => A::CU_MEM_ADVISE_UNSET_ACCESSED_BY,
        }
    }

    /// The location that the advice is about. The driver ignores it for the rest, but older drivers need a valid
    /// number.
    pub(super) fn place(self, is_set: bool) -> Result<Location> {
        match self {
            Self::AccessedBy(place @ Location::HostNuma(_)) => Err(Error::invalid(format!(
                "a device or the host uses memory, not the {place}; name `Location::Host`"
            ))),
            Self::PreferredLocation(place) if is_set => Ok(place),
            Self::AccessedBy(place) => Ok(place),
            Self::ReadMostly | Self::PreferredLocation(_) => Ok(Location::Host),
        }
    }
}
