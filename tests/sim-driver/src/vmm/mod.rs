//! Virtual memory management: separate addresses and memory, combined by the program.

mod annotate;
#[cfg(target_os = "linux")]
mod files;
mod physical;
mod place;
mod range;
mod share;
mod space;
mod touch;

use std::collections::BTreeMap;

use cuda_driver_sys::{CUmemAllocationProp, CUresult};

use crate::buffer_id::BufferId;
use crate::clock::Point;
use crate::configuration::Configuration;
use crate::export::{Answer, Export, INVALID_VALUE};
use crate::pieces::Pieces;
use crate::state::State;
use crate::system::Memory;

pub(crate) use annotate::Annotations;
use place::Place;
pub(crate) use space::hold;
#[cfg(target_os = "linux")]
use space::pause;
use space::{Addresses, Bytes};
pub(crate) use touch::report_unmapped;

/// For device memory, the minimum and the recommended granularity are equal.
fn granularity() -> u64 {
    Configuration::get().granularity
}

/// A kind of shareable handle.
const FABRIC: u32 = 8;

/// Access rights of a device, as `CUmemAccess_flags`.
const READ: u64 = 1;
const READ_AND_WRITE: u64 = 3;

/// The exports of this folder.
pub(crate) static EXPORTS: [&[&Export]; 3] = [physical::EXPORTS, range::EXPORTS, share::EXPORTS];

/// The number behind a `CUmemGenericAllocationHandle`.
type PhysicalId = u64;

/// The state of virtual memory management.
#[derive(Debug, Default)]
pub(crate) struct Vmm {
    /// By address.
    reservations: BTreeMap<u64, Addresses>,
    /// By address; each lies in one reservation.
    views: BTreeMap<u64, View>,
    physicals: BTreeMap<PhysicalId, Physical>,
    memory: Option<Memory>,
    pub(crate) annotations: Annotations,
}

/// Physical memory.
#[derive(Debug)]
struct Physical {
    size: u64,
    place: Place,
    prop: Properties,
    bytes: Bytes,
    /// Parts of it in separate files, because others map them.
    pieces: Pieces,
    /// Counted in the process that created it.
    is_imported: bool,
    /// Unreleased handles, and mappings.
    handles: u64,
    views: u64,
}

/// As passed by the program; pointers in them are not followed.
#[derive(Clone, Copy, Debug)]
struct Properties(CUmemAllocationProp);

// SAFETY: the pointer among them is only ever returned to the program.
unsafe impl Send for Properties {}

/// A mapping of physical memory.
#[derive(Debug)]
struct View {
    id: BufferId,
    len: u64,
    physical: PhysicalId,
    place: Place,
    /// Access rights of each device and of the host; none at first.
    access: BTreeMap<usize, u64>,
    host_access: u64,
    /// The host got access after a device. Measured: fills then do not continue into the next mapping.
    ends_fills: bool,
    /// The last access of each stream.
    accesses: Vec<Point>,
}

impl View {
    fn access_of(&self, device: usize) -> u64 {
        self.access.get(&device).copied().unwrap_or(0)
    }

    /// The greatest access of any device.
    fn access_of_devices(&self) -> u64 {
        self.access.values().copied().max().unwrap_or(0)
    }
}

/// The mapping that contains an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapped {
    pub(crate) id: BufferId,
    /// Start and size of the mapping, and of its reservation.
    pub(crate) range: (u64, u64),
    pub(crate) reservation: (u64, u64),
    /// `None` on the host.
    pub(crate) device: Option<usize>,
    pub(crate) handle_types: u64,
    /// The access of the querying device.
    pub(crate) access: u64,
}

impl State {
    /// NOT_SUPPORTED without virtual memory management.
    fn check_vmm(&self) -> Answer {
        if self.configuration.has_vmm() {
            Ok(())
        } else {
            Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
        }
    }

    /// The mapping at an address. Measured: a merely reserved address is unknown.
    pub(crate) fn mapped_at(&self, address: u64, device: Option<usize>) -> Option<Mapped> {
        let (start, view) = self.view(address)?;
        let (_, reservation) = self.vmm.reservations.range(..=address).next_back()?;
        let physical = self.vmm.physicals.get(&view.physical)?;
        Some(Mapped {
            id: view.id,
            range: (start, view.len),
            reservation: (reservation.base(), reservation.len()),
            device: view.place.device(),
            handle_types: physical.prop.0.requestedHandleTypes.0.into(),
            access: device.map_or(0, |device| view.access_of(device)),
        })
    }

    fn view(&self, address: u64) -> Option<(u64, &View)> {
        let (&start, view) = self.vmm.views.range(..=address).next_back()?;
        (address < start + view.len).then_some((start, view))
    }

    /// Whether a range is entirely mapped device memory, and whether all of it was created for GPUDirect.
    pub(crate) fn mapped_directness(&self, start: u64, end: u64) -> Option<bool> {
        let mut at = start;
        let mut is_direct = true;
        while at < end {
            let (view_start, view) = self.view(at)?;
            let physical = self.vmm.physicals.get(&view.physical)?;
            view.place.device()?;
            is_direct &= physical.prop.0.allocFlags.gpuDirectRDMACapable != 0;
            at = view_start + view.len;
        }
        Some(is_direct)
    }

    /// The adjacent mappings that exactly cover `start` to `end`.
    fn whole_views(&self, start: u64, end: u64) -> Option<Vec<u64>> {
        let mut starts = Vec::new();
        let mut at = start;
        while at < end {
            starts.push(at);
            at += self.vmm.views.get(&at)?.len;
        }
        (at == end && !starts.is_empty()).then_some(starts)
    }

    /// The mappings from `start` to `end`, gaps allowed, unless a boundary cuts one.
    fn uncut_views(&self, start: u64, end: u64) -> Option<Vec<u64>> {
        let is_cut = |at: u64| self.view(at).is_some_and(|(first, _)| first < at);
        let starts = self.vmm.views.range(start..end).map(|(at, _)| *at);
        (!is_cut(start) && !is_cut(end)).then(|| starts.collect())
    }

    /// Number and bytes of live physical memory, reservations, and mappings.
    pub(crate) fn live_vmm(&self) -> [u64; 4] {
        let bytes = self.vmm.physicals.values().map(|physical| physical.size);
        [
            self.vmm.physicals.len() as u64,
            bytes.sum(),
            self.vmm.reservations.len() as u64,
            self.vmm.views.len() as u64,
        ]
    }
}
