//! Location of physical memory.

use std::ffi::c_int;

use cuda_driver_sys::{CUmemAllocationProp, CUmemLocationType, CUresult, location_parts};

use super::{FABRIC, INVALID_VALUE};
use crate::export::Answer;
use crate::state::State;
use crate::system::SHARED_HANDLE;

/// The location of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Device(usize),
    Host,
    /// On the host's only NUMA node.
    Node,
}

impl Place {
    pub(super) fn device(self) -> Option<usize> {
        match self {
            Self::Device(device) => Some(device),
            Self::Host | Self::Node => None,
        }
    }
}

/// The host under either name. Measured: its nodes are not distinguished when access is set.
pub(super) fn is_host(kind: CUmemLocationType) -> bool {
    use CUmemLocationType as T;
    [
        T::CU_MEM_LOCATION_TYPE_HOST,
        T::CU_MEM_LOCATION_TYPE_HOST_NUMA,
    ]
    .contains(&kind)
}

impl State {
    /// The requested location. Measured: host memory is shareable only as that of its node.
    pub(super) fn memory_place(&self, prop: &CUmemAllocationProp) -> Answer<Place> {
        let (kind, id): (_, c_int) = location_parts(prop.location);
        let (version, types) = (self.configuration.version, prop.requestedHandleTypes.0);
        match kind {
            CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => Ok(Place::Device(self.ordinal(id)?)),
            CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST
                if version >= 13000 && types & (SHARED_HANDLE | FABRIC) == 0 =>
            {
                Ok(Place::Host)
            }
            CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA if version >= 12020 && id == 0 => {
                // A guess.
                let none = CUresult::CUDA_ERROR_NOT_SUPPORTED;
                self.configuration
                    .has_nodes()
                    .then_some(Place::Node)
                    .ok_or(none)
            }
            _ => Err(INVALID_VALUE),
        }
    }
}
