//! Backing by physical memory at addresses of our own choice, so that it grows without gaps.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use cuda_driver_sys::CUdevice_attribute;

use super::{Chunk, Reserved, chunks_in};
use crate::arena::GRANULE;
use crate::arena::page_map::PageMap;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::location::Location;
use crate::pool::Access;
use crate::stream::Stream;
use crate::vmm::{AddressRange, Mapping, PhysicalMemory, PhysicalMemoryBuilder};

#[derive(Debug)]
pub(in crate::arena) struct Vmm {
    device: Device,
    memory: PhysicalMemoryBuilder,
    access: Vec<(Location, Access)>,
    /// How many addresses are reserved at a time, in bytes: for all memory of the device. Memory that goes back
    /// from the middle leaves addresses unused, and then there will be a second reservation.
    reservation: u64,
    pub(super) max: u64,
    /// Held by the thread that grows, from when it finds that there is not enough.
    growing: Mutex<()>,
    state: Mutex<State>,
    pub(super) reserved: Reserved,
    calls: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// There is a second one only when the first is used up.
    reservations: Vec<Reservation>,
    /// What is mapped, by address.
    chunks: BTreeMap<u64, Mapping>,
}

#[derive(Debug)]
struct Reservation {
    range: AddressRange,
    /// Nothing is mapped from this address on.
    frontier: u64,
}

impl Reservation {
    fn end(&self) -> u64 {
        self.range.address() + self.range.size_bytes()
    }

    /// Bytes from the frontier on.
    fn room(&self) -> u64 {
        self.end() - self.frontier
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
        if !device.has_attribute(attribute)? || !device.driver().has("cuMemMap") {
            return Ok(None);
        }
        let memory = PhysicalMemory::builder(&device);
        if !GRANULE.is_multiple_of(memory.granularity()?.minimum) {
            return Ok(None);
        }
        let who = std::iter::once(&device).chain(peers);
        let access = who.map(|device| (Location::Device(*device), Access::ReadWrite));
        Ok(Some(Self {
            device,
            access: access.collect(),
            memory,
            reservation: device.total_memory()?.next_multiple_of(GRANULE),
            max,
            growing: Mutex::default(),
            state: Mutex::default(),
            reserved: Reserved::default(),
            calls: AtomicU64::new(2),
        }))
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
        let mut reservations = state.reservations.iter();
        let roomy = reservations.find(|reservation| reservation.room() >= bytes)?;
        Some(roomy.frontier)
    }

    pub(super) fn chunks_in(&self, from: u64, to: u64) -> Vec<Chunk> {
        chunks_in(&self.state().chunks, from, to, Mapping::size_bytes)
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
        let Reservation { range, frontier } = &mut state.reservations[index];
        self.count(3);
        let memory = self.memory.create_part(bytes)?;
        let mapping = range.map(*frontier - range.address(), &memory)?;
        // What fails here takes the mapping apart again.
        mapping.set_accesses(&self.access)?;
        let address = *frontier;
        *frontier += bytes;
        state.chunks.insert(address, mapping);
        Ok(Chunk { address, bytes })
    }

    /// A reservation with this much room.
    fn reservation_for(&self, state: &mut State, bytes: u64) -> Result<usize> {
        let mut reservations = state.reservations.iter();
        if let Some(index) = reservations.position(|reservation| reservation.room() >= bytes) {
            return Ok(index);
        }
        let size = self.reservation.max(bytes);
        self.count(1);
        let range = AddressRange::reserve_part(self.device.driver(), size, GRANULE)?;
        let reservation = Reservation {
            frontier: range.address(),
            range,
        };
        if !PageMap::can_hold(reservation.end()) {
            let end = reservation.end();
            return Err(Error::invalid(format!(
                "an arena cannot keep account of addresses up to {end:#x}"
            )));
        }
        state.reservations.push(reservation);
        Ok(state.reservations.len() - 1)
    }

    /// # Safety
    ///
    /// As [`Backing::release`](super::Backing::release): then nothing uses the mapping, as its end asks (R145).
    pub(super) unsafe fn release(&self, chunk: Chunk) -> Result<()> {
        let mut state = self.state();
        let State {
            reservations,
            chunks,
        } = &mut *state;
        let Some(mapping) = chunks.remove(&chunk.address) else {
            return Ok(());
        };
        self.count(2);
        if let Err(failed) = mapping.unmap() {
            if let Some(mapping) = failed.object {
                chunks.insert(chunk.address, mapping);
            }
            return Err(failed.error);
        }
        self.reserved.subtract(chunk.bytes);
        for reservation in reservations {
            let (first, end) = (reservation.range.address(), reservation.end());
            if (first..end).contains(&chunk.address) {
                let last = chunks.range(first..reservation.frontier).next_back();
                reservation.frontier =
                    last.map_or(first, |(address, last)| address + last.size_bytes());
            }
        }
        Ok(())
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // What was not released may still be in use. It stays, and its addresses with it.
        std::mem::take(&mut state.chunks)
            .into_values()
            .for_each(std::mem::forget);
    }
}
