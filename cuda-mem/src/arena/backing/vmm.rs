//! Physical memory behind addresses of our own choice, so that it grows without gaps.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use cuda_driver_sys::{
    CUdevice_attribute, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationProp,
    CUmemAllocationType,
};

use super::{Chunk, Reserved, chunks_in};
use crate::arena::GRANULE;
use crate::arena::page_map::PageMap;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::location::Location;
use crate::raw::{self, Table};
use crate::recording;
use crate::report;
use crate::stream::Stream;
use crate::traffic::{self, Traffic};

#[derive(Debug)]
pub(in crate::arena) struct Vmm {
    device: Device,
    prop: CUmemAllocationProp,
    access: Vec<CUmemAccessDesc>,
    /// How many addresses are reserved at a time, in bytes: for all memory of the device. Memory that goes back
    /// from the middle leaves addresses unused, and then there will be a second zone.
    reservation: u64,
    pub(super) max: u64,
    /// Held by the thread that grows, from when it finds that there is not enough.
    growing: Mutex<()>,
    state: Mutex<State>,
    pub(super) reserved: Reserved,
    calls: AtomicU64,
}

// SAFETY: the pointer in `prop` is null; it is for Windows handles.
unsafe impl Send for Vmm {}
// SAFETY: as for `Send`; nothing is changed without the lock.
unsafe impl Sync for Vmm {}

#[derive(Debug, Default)]
struct State {
    /// All reservations. There is a second one only when the first is used up.
    reservations: Vec<Reservation>,
    /// What is mapped: address → bytes.
    chunks: BTreeMap<u64, u64>,
}

#[derive(Debug)]
struct Reservation {
    address: u64,
    bytes: u64,
    /// Nothing is mapped from here on.
    frontier: u64,
}

impl Reservation {
    /// Bytes from the frontier on.
    fn room(&self) -> u64 {
        self.address + self.bytes - self.frontier
    }
}

impl Vmm {
    /// `None` where the device has no such thing, or not in granules of our size.
    pub(in crate::arena) fn new(
        device: Device,
        peers: &[Device],
        max: u64,
    ) -> Result<Option<Self>> {
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
        let table = device.driver().table();
        if !device.has_attribute(attribute)? || !device.driver().has("cuMemMap") {
            return Ok(None);
        }
        let location = Location::Device(device).to_raw();
        let prop = CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            location,
            ..CUmemAllocationProp::default()
        };
        // SAFETY: a device came from this driver, so it is initialised.
        let granularity = unsafe { raw::vmm::granularity(table, &prop) }?;
        if granularity == 0 || !GRANULE.is_multiple_of(granularity as u64) {
            return Ok(None);
        }
        let who = std::iter::once(&device).chain(peers);
        let access = who.map(|device| CUmemAccessDesc {
            location: Location::Device(*device).to_raw(),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        });
        Ok(Some(Self {
            device,
            prop,
            access: access.collect(),
            reservation: device.total_memory()?.next_multiple_of(GRANULE),
            max,
            growing: Mutex::default(),
            state: Mutex::default(),
            reserved: Reserved::default(),
            calls: AtomicU64::new(1),
        }))
    }

    fn table(&self) -> &'static Table {
        self.device.driver().table()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, calls: u64) {
        self.calls.fetch_add(calls, Ordering::Relaxed);
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(super) fn growing(&self) -> MutexGuard<'_, ()> {
        self.growing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn try_growing(&self) -> Option<MutexGuard<'_, ()>> {
        match self.growing.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(super) fn frontier(&self, bytes: u64) -> Option<u64> {
        let state = self.state();
        let reservation = state
            .reservations
            .iter()
            .find(|reservation| reservation.room() >= bytes)?;
        Some(reservation.frontier)
    }

    pub(super) fn chunks_in(&self, from: u64, to: u64) -> Vec<Chunk> {
        chunks_in(&self.state().chunks, from, to)
    }

    pub(super) fn grow(&self, frontier: Option<u64>, bytes: u64, stream: &Stream) -> Result<Chunk> {
        let claim = self.reserved.claim(bytes, self.max)?;
        let grown = self.grow_reserved(frontier, bytes, stream)?;
        claim.keep();
        Ok(grown)
    }

    /// The bytes count as reserved.
    fn grow_reserved(&self, frontier: Option<u64>, bytes: u64, stream: &Stream) -> Result<Chunk> {
        let _current = stream.context().bind()?;
        let mut state = self.state();
        let wished = state.reservations.iter().position(|reservation| {
            Some(reservation.frontier) == frontier && reservation.room() >= bytes
        });
        let index = match wished {
            Some(index) => index,
            None => self.reservation_for(&mut state, bytes)?,
        };
        let address = state.reservations[index].frontier;
        let chunk = Chunk { address, bytes };
        self.kept_out_of_captures(|| self.map(chunk))?;
        state.reservations[index].frontier += bytes;
        state.chunks.insert(address, bytes);
        Ok(chunk)
    }

    /// A zone with so much room.
    fn reservation_for(&self, state: &mut State, bytes: u64) -> Result<usize> {
        if let Some(index) = state
            .reservations
            .iter()
            .position(|reservation| reservation.room() >= bytes)
        {
            return Ok(index);
        }
        let size = self.reservation.max(bytes);
        let length = usize::try_from(size).map_err(|_| too_many(size))?;
        self.count(1);
        // SAFETY: the driver is initialised; the zone is whole granules.
        let address = unsafe { raw::vmm::reserve(self.table(), length, GRANULE as usize) }?;
        let reservation = Reservation {
            address,
            bytes: size,
            frontier: address,
        };
        if !PageMap::can_hold(address + size) {
            self.unreserve(&reservation);
            return Err(too_many(address));
        }
        state.reservations.push(reservation);
        Ok(state.reservations.len() - 1)
    }

    /// What happens to memory while this crate captures a stream is no business of the capture's.
    fn kept_out_of_captures(&self, call: impl FnOnce() -> Result<()>) -> Result<()> {
        recording::kept_out(self.table(), call)
    }

    /// Puts new physical memory there, or leaves everything as it was.
    fn map(&self, chunk: Chunk) -> Result<()> {
        let (table, bytes) = (self.table(), chunk.bytes as usize);
        self.count(4);
        // SAFETY: the driver is initialised; chunks are whole granules.
        let handle = unsafe { raw::vmm::create(table, bytes, &self.prop) }?;
        // SAFETY: nothing is mapped behind the frontier, and the handle is of this size.
        let mapped = unsafe { raw::vmm::map(table, chunk.address, bytes, handle) };
        // SAFETY: made just now. What is mapped stays without it (V6).
        report::release("memory", || unsafe { raw::vmm::release(table, handle) });
        mapped?;
        // SAFETY: this is one whole mapping.
        let allowed = unsafe { raw::vmm::allow(table, chunk.address, bytes, &self.access) };
        if allowed.is_err() {
            self.count(1);
            // SAFETY: mapped just now, and nobody knows of it.
            report::release("mapping", || unsafe {
                raw::vmm::unmap(table, chunk.address, bytes)
            });
        } else {
            let here = Location::Device(self.device);
            traffic::note(self.device.driver(), here, Traffic::of_map(chunk.bytes));
        }
        allowed
    }

    /// # Safety
    ///
    /// As [`Backing::release`](super::Backing::release).
    pub(super) unsafe fn release(&self, chunk: Chunk) -> Result<()> {
        let mut state = self.state();
        self.count(1);
        // SAFETY: chunks are mappings, and the caller vouches that nothing uses it (V8).
        self.kept_out_of_captures(|| unsafe {
            raw::vmm::unmap(self.table(), chunk.address, chunk.bytes as usize)
        })?;
        state.chunks.remove(&chunk.address);
        self.reserved.subtract(chunk.bytes);
        let State {
            reservations,
            chunks,
            ..
        } = &mut *state;
        for reservation in reservations {
            if (reservation.address..reservation.address + reservation.bytes)
                .contains(&chunk.address)
            {
                let last = chunks
                    .range(reservation.address..reservation.frontier)
                    .next_back();
                reservation.frontier =
                    last.map_or(reservation.address, |(address, bytes)| address + bytes);
            }
        }
        Ok(())
    }

    fn unreserve(&self, reservation: &Reservation) {
        self.count(1);
        // SAFETY: a reservation of ours, with nothing mapped in it.
        report::release("addresses", || unsafe {
            raw::vmm::unreserve(
                self.table(),
                reservation.address,
                reservation.bytes as usize,
            )
        });
    }
}

#[cold]
fn too_many(bytes: u64) -> Error {
    Error::invalid(format!(
        "{bytes} is beyond the addresses that an arena can keep account of"
    ))
}

impl Drop for Vmm {
    fn drop(&mut self) {
        let state = std::mem::take(self.state.get_mut().unwrap_or_else(PoisonError::into_inner));
        // What was not released may still be in use. It stays, and its addresses with it.
        for reservation in &state.reservations {
            let end = reservation.address + reservation.bytes;
            if chunks_in(&state.chunks, reservation.address, end).is_empty() {
                self.unreserve(reservation);
            }
        }
    }
}
