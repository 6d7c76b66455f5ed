//! The advice and the last prefetch that the driver has on record for managed memory.

use cuda_driver_sys::{CU_DEVICE_CPU, CUmemLocation, CUmemLocationType, location_parts};

use crate::driver::Driver;
use crate::driver::location::Location;
use crate::driver::raw;

/// The advice and the last prefetch of a range of managed memory, as far as they hold for all of it. From
/// [`ManagedRange::info`](crate::mapped::ManagedRange::info).
///
/// It reports what was requested, not where the memory is. Before CUDA 12.2 NUMA nodes are not supported, and none is
/// reported.
#[doc(alias = "CUmem_range_attribute")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RangeInfo {
    /// All of it has [`Advice::ReadMostly`](crate::mapped::Advice::ReadMostly).
    pub read_mostly: bool,
    /// The [preferred location](crate::mapped::Advice::PreferredLocation), if all of it has the same one.
    pub preferred_location: Option<Location>,
    /// The locations with [`Advice::AccessedBy`](crate::mapped::Advice::AccessedBy) for all of it: the host first, then
    /// devices by ordinal.
    pub accessed_by: Vec<Location>,
    /// Where all of it was last prefetched to, whether it has arrived or not; `None` if a part of it was sent
    /// elsewhere, or never prefetched.
    pub last_prefetch: Option<Location>,
}

impl RangeInfo {
    pub(super) fn from_raw(driver: Driver, found: &raw::managed::Range) -> Self {
        let mut numbers = found.accessed_by.clone();
        numbers.sort_unstable();
        numbers.dedup();
        let user = |number: i32| match number {
            CU_DEVICE_CPU => Some(Location::Host),
            // No location.
            ..0 => None,
            device => {
                let kind = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
                Some(Location::from_raw(driver, kind, device))
            }
        };
        Self {
            read_mostly: found.read_mostly,
            preferred_location: place(driver, found.preferred),
            accessed_by: numbers.into_iter().filter_map(user).collect(),
            last_prefetch: place(driver, found.prefetched),
        }
    }

    /// What holds for both this range and another one.
    pub(super) fn common(mut self, other: &Self) -> Self {
        let same = |here: Option<Location>, there| here.filter(|place| there == Some(*place));
        self.read_mostly &= other.read_mostly;
        self.preferred_location = same(self.preferred_location, other.preferred_location);
        self.last_prefetch = same(self.last_prefetch, other.last_prefetch);
        self.accessed_by
            .retain(|user| other.accessed_by.contains(user));
        self
    }
}

/// A location, unless the driver reports none.
fn place(driver: Driver, raw: CUmemLocation) -> Option<Location> {
    let (kind, id) = location_parts(raw);
    let is_one = kind != CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID;
    is_one.then(|| Location::from_raw(driver, kind, id))
}
