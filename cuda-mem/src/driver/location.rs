//! Where memory is, in the driver's terms.

use std::fmt;

use cuda_driver_sys::{CUmemAllocationType, CUmemLocation, CUmemLocationType};

use crate::base::error::Result;
use crate::driver::Driver;
use crate::driver::device::Device;

/// A place where memory can be, or should preferably be.
#[doc(alias = "CUmemLocation")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Location {
    /// The memory of a device.
    Device(Device),
    /// The host. CUDA 12.2 or newer; for pools 13.0.
    Host,
    /// A NUMA node of the host, by its number. CUDA 12.2 or newer.
    HostNuma(u32),
    /// No place in particular; only for managed memory. CUDA 13.0 or newer.
    Anywhere,
    /// A device that is not visible to this process; an imported pool may be on one. CUDA 13.2 or newer.
    Invisible,
    /// A place that is newer than this crate, given by the driver's two numbers.
    Other {
        /// The kind of place.
        kind: u32,
        /// The number within its kind.
        id: i32,
    },
}

impl From<Device> for Location {
    fn from(device: Device) -> Self {
        Self::Device(device)
    }
}

impl From<&Device> for Location {
    fn from(device: &Device) -> Self {
        Self::Device(*device)
    }
}

impl Location {
    pub(crate) fn to_raw(self) -> CUmemLocation {
        use CUmemLocationType as T;
        let (kind, id) = match self {
            Self::Device(device) => (T::CU_MEM_LOCATION_TYPE_DEVICE, device.as_raw()),
            Self::Host => (T::CU_MEM_LOCATION_TYPE_HOST, 0),
            // A number that no machine has is passed on: the driver answers INVALID_VALUE.
            Self::HostNuma(node) => (
                T::CU_MEM_LOCATION_TYPE_HOST_NUMA,
                i32::try_from(node).unwrap_or(i32::MAX),
            ),
            Self::Anywhere => (T::CU_MEM_LOCATION_TYPE_NONE, 0),
            Self::Invisible => (T::CU_MEM_LOCATION_TYPE_INVISIBLE, -2),
            Self::Other { kind, id } => (CUmemLocationType(kind), id),
        };
        cuda_driver_sys::location(kind, id)
    }

    /// Never [`Other`](Self::Other) for a place that has a name.
    pub(crate) fn known(self, driver: Driver) -> Self {
        match self {
            Self::Other { kind, id } => Self::from_raw(driver, CUmemLocationType(kind), id),
            known => known,
        }
    }

    /// Whether this is the host, on any node or no particular one.
    pub(crate) fn is_host(self) -> bool {
        matches!(self, Self::Host | Self::HostNuma(_))
    }

    /// The device, if it is one.
    pub(crate) fn device(self) -> Option<Device> {
        match self {
            Self::Device(device) => Some(device),
            _ => None,
        }
    }

    /// `Ok` unless this is a device of a driver other than that of `what`.
    pub(crate) fn require_driver(self, driver: Driver, what: &str) -> Result<()> {
        let Self::Device(device) = self else {
            return Ok(());
        };
        driver.require_same(device.driver(), format_args!("{what} and {device}"))
    }

    /// The place that the driver's two numbers name.
    pub(crate) fn from_raw(driver: Driver, kind: CUmemLocationType, id: i32) -> Self {
        use CUmemLocationType as T;
        let other = Self::Other { kind: kind.0, id };
        match kind {
            T::CU_MEM_LOCATION_TYPE_DEVICE => usize::try_from(id)
                .ok()
                .and_then(|ordinal| driver.device(ordinal).ok())
                .map_or(other, Self::Device),
            T::CU_MEM_LOCATION_TYPE_HOST => Self::Host,
            T::CU_MEM_LOCATION_TYPE_HOST_NUMA => u32::try_from(id).map_or(other, Self::HostNuma),
            T::CU_MEM_LOCATION_TYPE_NONE => Self::Anywhere,
            T::CU_MEM_LOCATION_TYPE_INVISIBLE => Self::Invisible,
            _ => other,
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(device) => device.fmt(f),
            Self::Host => f.write_str("host"),
            Self::HostNuma(node) => write!(f, "NUMA node {node} of the host"),
            Self::Anywhere => f.write_str("anywhere"),
            Self::Invisible => f.write_str("a device that is not visible"),
            Self::Other { kind, id } => write!(f, "location {id} of kind {kind}"),
        }
    }
}

/// How memory is tied to its place.
#[doc(alias = "CUmemAllocationType")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AllocationType {
    /// The memory stays where it is.
    #[default]
    Pinned,
    /// The memory moves between host and devices. CUDA 13.0 or newer.
    Managed,
    /// A type that is newer than this crate, given by the driver's number.
    Other(u32),
}

impl fmt::Display for AllocationType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pinned => f.pad("pinned"),
            Self::Managed => f.pad("managed"),
            Self::Other(number) => write!(f, "type {number} of"),
        }
    }
}

impl AllocationType {
    pub(crate) fn to_raw(self) -> CUmemAllocationType {
        match self {
            Self::Pinned => CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            Self::Managed => CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED,
            Self::Other(number) => CUmemAllocationType(number),
        }
    }

    /// Never [`Other`](Self::Other) for a type that has a name.
    pub(crate) fn known(self) -> Self {
        Self::from_raw(self.to_raw())
    }

    pub(crate) fn from_raw(raw: CUmemAllocationType) -> Self {
        match raw {
            CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED => Self::Pinned,
            CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED => Self::Managed,
            CUmemAllocationType(number) => Self::Other(number),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocation_types_go_there_and_back() {
        for known in [
            AllocationType::Pinned,
            AllocationType::Managed,
            AllocationType::Other(77),
        ] {
            assert_eq!(AllocationType::from_raw(known.to_raw()), known);
        }
    }

    #[test]
    fn a_place_is_two_numbers() {
        let parts = |location: Location| {
            let (kind, id) = cuda_driver_sys::location_parts(location.to_raw());
            (kind.0, id)
        };
        assert_eq!(parts(Location::Host), (2, 0));
        assert_eq!(parts(Location::HostNuma(3)), (3, 3));
        assert_eq!(parts(Location::HostNuma(u32::MAX)), (3, i32::MAX));
        assert_eq!(parts(Location::Anywhere), (0, 0));
        assert_eq!(parts(Location::Other { kind: 6, id: -1 }), (6, -1));
    }
}
