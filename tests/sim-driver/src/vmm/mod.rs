//! Virtual memory management: addresses and memory apart, put together by the program.

mod annotate;
mod direct;
mod physical;
mod place;
mod range;
mod share;
mod space;
mod touch;

use std::collections::BTreeMap;

use cuda_driver_sys::{CUmemAllocationProp, CUresult};

use crate::clock::Point;
use crate::export::{Answer, Export, INVALID_VALUE};
use crate::knobs::Knobs;
use crate::pieces::Pieces;
use crate::state::State;

pub(crate) use annotate::Annotations;
use place::Place;
pub(crate) use space::hold;
use space::pause;
use space::{Addresses, Bytes, Memory};
pub(crate) use touch::report_unmapped;

/// Of a device's memory, the least that can be mapped and what is recommended are the same.
fn granularity() -> u64 {
    Knobs::get().granularity
}

/// Kinds of handle by which memory can be shared.
const DESCRIPTOR: u32 = 1;
const FABRIC: u32 = 8;

/// What a device may do, as `CUmemAccess_flags`.
const READ: u64 = 1;
const READ_AND_WRITE: u64 = 3;

/// What the files of this folder export.
pub(crate) static EXPORTS: [&[&Export]; 3] = [physical::EXPORTS, range::EXPORTS, share::EXPORTS];

/// The number behind a `CUmemGenericAllocationHandle`.
type PhysicalId = u64;

/// Everything about mapped memory.
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

/// Memory without an address.
#[derive(Debug)]
struct Physical {
    size: u64,
    place: Place,
    prop: Properties,
    bytes: Bytes,
    /// What of it lies elsewhere, because others map it.
    pieces: Pieces,
    /// It is counted where it was made.
    is_imported: bool,
    /// Handles that the program has not released, and mappings.
    handles: u64,
    views: u64,
}

/// As they were given; what they point at is not looked at.
#[derive(Clone, Copy, Debug)]
struct Properties(CUmemAllocationProp);

// SAFETY: the pointer among them is only ever handed back to the program.
unsafe impl Send for Properties {}

/// Memory at an address.
#[derive(Debug)]
struct View {
    len: u64,
    physical: PhysicalId,
    place: Place,
    /// What each device may do, and what the host; nobody anything at first.
    access: BTreeMap<usize, u64>,
    host_access: u64,
    /// The host came after a device: then fills do not go on into the next mapping (measured).
    ends_fills: bool,
    /// The last access of each stream.
    accesses: Vec<Point>,
}

impl View {
    fn access_of(&self, device: usize) -> u64 {
        self.access.get(&device).copied().unwrap_or(0)
    }

    /// The most that any device may do.
    fn access_of_devices(&self) -> u64 {
        self.access.values().copied().max().unwrap_or(0)
    }
}

/// The mapping that holds an address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapped {
    /// Start and size of the mapping, and of the reservation that it is in.
    pub(crate) range: (u64, u64),
    pub(crate) reservation: (u64, u64),
    /// `None` if it is of the host.
    pub(crate) device: Option<usize>,
    pub(crate) handle_types: u64,
    /// What the device that asks may do.
    pub(crate) access: u64,
}

impl State {
    /// NOT_SUPPORTED where there is no virtual memory management.
    fn check_vmm(&self) -> Answer {
        if self.knobs.has_vmm() {
            Ok(())
        } else {
            Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
        }
    }

    /// What is mapped at an address. Measured: of one that is only reserved, nothing is known.
    pub(crate) fn mapped_at(&self, address: u64, device: Option<usize>) -> Option<Mapped> {
        let (start, view) = self.view(address)?;
        let (_, reservation) = self.vmm.reservations.range(..=address).next_back()?;
        let physical = self.vmm.physicals.get(&view.physical)?;
        Some(Mapped {
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

    /// The mappings that lie side by side from `start` to `end`, if they begin and end there.
    fn whole_views(&self, start: u64, end: u64) -> Option<Vec<u64>> {
        let mut starts = Vec::new();
        let mut at = start;
        while at < end {
            starts.push(at);
            at += self.vmm.views.get(&at)?.len;
        }
        (at == end && !starts.is_empty()).then_some(starts)
    }

    /// The mappings from `start` to `end`, whatever is between them, if none is cut.
    fn uncut_views(&self, start: u64, end: u64) -> Option<Vec<u64>> {
        let is_cut = |at: u64| self.view(at).is_some_and(|(first, _)| first < at);
        let starts = self.vmm.views.range(start..end).map(|(at, _)| *at);
        (!is_cut(start) && !is_cut(end)).then(|| starts.collect())
    }

    /// Physical memory that exists and its bytes, reservations, and mappings.
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
