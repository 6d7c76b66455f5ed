//! Backing by physical memory at addresses of our choice, so that it grows without gaps.

mod aliases;
mod sleep;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

use cuda_driver_sys::CUdevice_attribute;

use super::{Chunk, Reserved, chunk_at, chunks_in};
use crate::arena::GRANULE;
use crate::arena::page_map::PageMap;
use crate::base::error::{Error, Result};
use crate::base::report::HookDeferringGuard;
use crate::driver::device::Device;
use crate::driver::location::Location;
use crate::ledger::MemoryRange;
use crate::mapped::vmm::{AddressRange, Mapping, PhysicalMemory, PhysicalMemoryBuilder};
use crate::memory::pool::Access;
use crate::stream::context::Context;
use aliases::Aliases;

#[derive(Debug)]
pub(in crate::arena) struct Vmm {
    device: Device,
    memory: PhysicalMemoryBuilder,
    access: Vec<(Location, Access)>,
    /// The size of one reservation of addresses, in bytes: all memory of the device.
    reservation: u64,
    /// Held by the thread that grows, from when it finds too little memory.
    growing: Mutex<()>,
    state: Mutex<State>,
    pub(super) reserved: Reserved,
    calls: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// A second one is made only when the first is used up and has no large enough gap.
    reservations: Vec<Reservation>,
    /// Mapped and sleeping memory, by address.
    chunks: BTreeMap<u64, Piece>,
    aliases: Aliases,
}

#[derive(Debug)]
struct Reservation {
    range: AddressRange,
    /// Nothing is mapped from this address on.
    frontier: u64,
}

/// Physical memory is created in pieces of this share of what the arena holds, within these limits, unless one growth
/// would have too many pieces. A smaller piece is more often entirely free, and can then move; moving a larger one
/// takes no longer. An arena with its own limit uses the smallest size.
const SHARE: u64 = 96;
const SMALLEST_PIECE: u64 = 32 << 20;
const LARGEST_PIECE: u64 = 128 << 20;
/// The most pieces per growth.
const MOST_PIECES: u64 = 64;

/// Addresses that the arena uses.
#[derive(Debug)]
enum Piece {
    Mapped(Mapping),
    Asleep(Asleep),
    /// What could neither be used nor unmapped. It is not counted, and keeps its addresses.
    Stuck(Mapping),
}

/// Addresses whose memory is given back temporarily.
#[derive(Debug)]
struct Asleep {
    bytes: u64,
    /// The contents, unless they are lost.
    contents: Option<Vec<u8>>,
    /// Memory that is mapped again, could not be filled with the contents, and could not be unmapped. It counts as asleep
    /// until the next wake or sleep.
    unfilled: Option<Mapping>,
}

impl Piece {
    fn size_bytes(&self) -> u64 {
        match self {
            Self::Mapped(mapping) | Self::Stuck(mapping) => mapping.size_bytes(),
            Self::Asleep(asleep) => asleep.bytes,
        }
    }

    fn mapped_bytes(&self) -> Option<u64> {
        match self {
            Self::Mapped(mapping) => Some(mapping.size_bytes()),
            Self::Asleep(_) | Self::Stuck(_) => None,
        }
    }
}

impl State {
    /// Removes a mapping from the bookkeeping.
    fn take_mapped(&mut self, address: u64) -> Option<Mapping> {
        match self.chunks.remove(&address)? {
            Piece::Mapped(mapping) => Some(mapping),
            other => {
                self.chunks.insert(address, other);
                None
            }
        }
    }

    fn mapped(&self, address: u64) -> Option<&Mapping> {
        match self.chunks.get(&address)? {
            Piece::Mapped(mapping) => Some(mapping),
            Piece::Asleep(_) | Piece::Stuck(_) => None,
        }
    }

    fn take_asleep(&mut self, address: u64) -> Option<Asleep> {
        match self.chunks.remove(&address)? {
            Piece::Asleep(asleep) => Some(asleep),
            other => {
                self.chunks.insert(address, other);
                None
            }
        }
    }

    /// Removes what is stuck here.
    fn take_stuck(&mut self, address: u64) -> Option<Mapping> {
        match self.chunks.remove(&address)? {
            Piece::Stuck(mapping) => Some(mapping),
            other => {
                self.chunks.insert(address, other);
                None
            }
        }
    }

    /// The sleeping addresses.
    fn asleep(&self) -> Vec<u64> {
        let pieces = self.chunks.iter();
        let asleep = pieces.filter(|(_, piece)| matches!(piece, Piece::Asleep(_)));
        asleep.map(|(address, _)| *address).collect()
    }

    /// Unmaps a mapping that was removed from the bookkeeping, and the aliases of its memory. On failure it goes back
    /// into the bookkeeping.
    fn unmap(&mut self, mapping: Mapping, vmm: &Vmm) -> Result<()> {
        let address = mapping.address();
        if let Err(error) = self.aliases.end_of(mapping.memory(), vmm) {
            self.chunks.insert(address, Piece::Mapped(mapping));
            return Err(error);
        }
        mapping.unmap().map_err(|failed| {
            if let Some(mapping) = failed.object {
                self.chunks.insert(address, Piece::Mapped(mapping));
            }
            failed.error
        })
    }

    /// An address for this much memory, at the end of what is mapped, or in a gap.
    fn place_for(&self, bytes: u64) -> Option<u64> {
        let reservations = self.reservations.iter();
        let mut roomy = reservations.filter(|reservation| reservation.room() >= bytes);
        if let Some(reservation) = roomy.next() {
            return Some(reservation.frontier);
        }
        let mut reservations = self.reservations.iter();
        reservations.find_map(|reservation| self.gap_in(reservation, bytes))
    }

    /// A gap of at least `bytes`, where memory was given back or moved away.
    fn gap_in(&self, reservation: &Reservation, bytes: u64) -> Option<u64> {
        let mut start = reservation.range.address();
        for (address, piece) in self.chunks.range(start..reservation.frontier) {
            if address - start >= bytes {
                return Some(start);
            }
            start = address + piece.size_bytes();
        }
        None
    }

    /// The reservation that contains an address.
    fn reservation_at(&mut self, address: u64) -> Option<&mut Reservation> {
        let mut reservations = self.reservations.iter_mut();
        reservations
            .find(|reservation| (reservation.range.address()..reservation.end()).contains(&address))
    }

    /// Whether the range is reserved and unused.
    fn is_free(&self, address: u64, bytes: u64) -> bool {
        let mut reservations = self.reservations.iter();
        let is_inside = reservations.any(|reservation| {
            reservation.range.address() <= address && address + bytes <= reservation.end()
        });
        let before = self.chunks.range(..address + bytes).next_back();
        is_inside && before.is_none_or(|(start, piece)| start + piece.size_bytes() <= address)
    }

    /// Maps memory at an address of a reservation.
    fn map(&mut self, address: u64, memory: &PhysicalMemory, vmm: &Vmm) -> Result<()> {
        self.aliases.end_within(address, memory.size_bytes(), vmm)?;
        let Some(Reservation { range, frontier }) = self.reservation_at(address) else {
            return Err(Error::invalid(format!("{address:#x} is not reserved")));
        };
        let mapping = range.map(address - range.address(), memory)?;
        let usable = mapping.set_access(vmm.access.iter().copied());
        let piece = match &usable {
            Ok(()) => Some(Piece::Mapped(mapping)),
            // Not dropped: what it reports may call the arena, whose lock is held.
            Err(_) => mapping
                .unmap()
                .err()
                .and_then(|failed| failed.object)
                .map(Piece::Stuck),
        };
        if let Some(piece) = piece {
            *frontier = (*frontier).max(address + piece.size_bytes());
            self.chunks.insert(address, piece);
        }
        usable
    }

    /// Lowers the frontier if it can be, after the chunk at this address was unmapped.
    fn lower_frontier(&mut self, address: u64) {
        let Some(reservation) = self.reservation_at(address) else {
            return;
        };
        let range = reservation.range.address()..reservation.frontier;
        let start = range.start;
        let last = self.chunks.range(range).next_back();
        let frontier = last.map_or(start, |(address, last)| address + last.size_bytes());
        if let Some(reservation) = self.reservation_at(address) {
            reservation.frontier = frontier;
        }
    }
}

impl Reservation {
    fn end(&self) -> u64 {
        self.range.address() + self.range.size_bytes()
    }

    /// Bytes after the frontier.
    fn room(&self) -> u64 {
        self.end() - self.frontier
    }
}

impl Vmm {
    /// `None` if the device has no virtual memory management, or a granularity that does not divide ours.
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
            growing: Mutex::default(),
            state: Mutex::default(),
            reserved: Reserved::new(max),
            calls: AtomicU64::new(2),
        }))
    }

    fn state(&self) -> HookDeferringGuard<'_, State> {
        HookDeferringGuard::new(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn count(&self, calls: u64) {
        self.calls.fetch_add(calls, Ordering::Relaxed);
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(super) fn growing(&self) -> HookDeferringGuard<'_, ()> {
        HookDeferringGuard::new(self.growing.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn try_growing(&self) -> Option<HookDeferringGuard<'_, ()>> {
        match self.growing.try_lock() {
            Ok(guard) => Some(HookDeferringGuard::new(guard)),
            Err(TryLockError::Poisoned(poisoned)) => {
                Some(HookDeferringGuard::new(poisoned.into_inner()))
            }
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(super) fn frontier(&self, bytes: u64) -> Option<u64> {
        self.state().place_for(bytes)
    }

    pub(super) fn chunks_in(&self, from: u64, to: u64) -> Vec<Chunk> {
        chunks_in(&self.state().chunks, from, to, Piece::mapped_bytes)
    }

    pub(super) fn chunk_at(&self, address: u64) -> Option<Chunk> {
        chunk_at(&self.state().chunks, address, Piece::mapped_bytes)
    }

    pub(super) fn ranges(&self) -> Vec<MemoryRange> {
        let state = self.state();
        let pieces = state.chunks.iter();
        let counted = pieces.filter(|(_, piece)| !matches!(piece, Piece::Stuck(_)));
        let ranges = counted.map(|(address, piece)| MemoryRange {
            address: *address,
            bytes: piece.size_bytes(),
            is_asleep: matches!(piece, Piece::Asleep(_)),
        });
        ranges.collect()
    }

    pub(super) fn grow(
        &self,
        frontier: Option<u64>,
        bytes: u64,
        context: &Context,
    ) -> Result<Chunk> {
        let claim = self.reserved.claim(bytes)?;
        let grown = self.grow_reserved(frontier, bytes, context)?;
        claim.keep();
        Ok(grown)
    }

    /// Bytes per piece, for a growth that is counted as reserved already.
    fn piece(&self, growth: u64) -> u64 {
        let is_limited = self.reserved.max() < self.reservation;
        let largest = if is_limited {
            SMALLEST_PIECE
        } else {
            LARGEST_PIECE
        };
        let share = (self.reserved.current() / SHARE).clamp(SMALLEST_PIECE, largest);
        share.max(growth / MOST_PIECES).next_multiple_of(GRANULE)
    }

    /// The bytes are counted as reserved already.
    fn grow_reserved(&self, frontier: Option<u64>, bytes: u64, context: &Context) -> Result<Chunk> {
        let _current = context.bind()?;
        let mut state = self.state();
        let address = match frontier.filter(|address| state.is_free(*address, bytes)) {
            Some(address) => address,
            None => self.reserve_for(&mut state, bytes)?,
        };
        let piece = self.piece(bytes);
        let mut mapped = 0;
        while mapped < bytes {
            let part = piece.min(bytes - mapped);
            self.count(3);
            let memory = self.memory.create_part(part);
            let done = memory.and_then(|memory| state.map(address + mapped, &memory, self));
            if let Err(error) = done {
                self.unmap_new(&mut state, address, mapped);
                return Err(error);
            }
            mapped += part;
        }
        Ok(Chunk { address, bytes })
    }

    /// Unmaps the pieces of a growth that failed later. No other code has seen them. What cannot be unmapped stays in the
    /// bookkeeping, so that its addresses are not used again.
    fn unmap_new(&self, state: &mut State, address: u64, bytes: u64) {
        let pieces: Vec<u64> = state
            .chunks
            .range(address..address + bytes)
            .map(|(address, _)| *address)
            .collect();
        for piece in pieces {
            if let Some(mapping) = state.take_mapped(piece) {
                // The error of the growth is returned.
                let _ = state.unmap(mapping, self);
            }
            if let Some(mapping) = state.take_mapped(piece) {
                state.chunks.insert(piece, Piece::Stuck(mapping));
            }
        }
        state.lower_frontier(address);
    }

    /// Addresses for this much memory, newly reserved if necessary.
    fn reserve_for(&self, state: &mut State, bytes: u64) -> Result<u64> {
        if let Some(address) = state.place_for(bytes) {
            return Ok(address);
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
        let address = reservation.frontier;
        state.reservations.push(reservation);
        Ok(address)
    }

    /// Maps the physical memory of a chunk at another address, where it may be mapped already. On failure it stays
    /// where it is.
    ///
    /// # Safety
    ///
    /// As [`Backing::release`](super::Backing::release).
    pub(super) unsafe fn relocate(
        &self,
        chunk: Chunk,
        to: u64,
        context: &Context,
    ) -> Option<Chunk> {
        let _current = context.bind().ok()?;
        let mut state = self.state();
        if !state.is_free(to, chunk.bytes) {
            return None;
        }
        if !state.switch(chunk, to) {
            let memory = state.mapped(chunk.address)?.memory().clone();
            self.count(2);
            state.map(to, &memory, self).ok()?;
            let before = state.take_mapped(chunk.address)?;
            state.aliases.keep(before, self);
        }
        Some(Chunk {
            address: to,
            bytes: chunk.bytes,
        })
    }

    /// The addresses that memory can move back to without a driver call, in order, and where that memory is now.
    pub(super) fn aliases(&self) -> Vec<(u64, Chunk)> {
        self.state().aliases()
    }

    /// Addresses for this much memory, at the end of what is mapped or in a gap.
    pub(super) fn reserve(&self, bytes: u64) -> Result<u64> {
        self.reserve_for(&mut self.state(), bytes)
    }

    /// # Safety
    ///
    /// As [`Backing::release`](super::Backing::release): then nothing uses the mapping, as unmapping requires (R145).
    pub(super) unsafe fn release(&self, chunk: Chunk) -> Result<()> {
        let mut state = self.state();
        let Some(mapping) = state.take_mapped(chunk.address) else {
            return Ok(());
        };
        self.count(2);
        state.unmap(mapping, self)?;
        self.reserved.subtract(chunk.bytes);
        state.lower_frontier(chunk.address);
        Ok(())
    }
}

impl Drop for Vmm {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        // Memory that was not released may still be in use, so it stays, and so do its addresses. Nobody uses memory
        // that sleeps or is stuck. What is stuck is unmapped now; if that fails again, the failure is reported.
        std::mem::take(&mut state.chunks)
            .into_values()
            .filter(|piece| matches!(piece, Piece::Mapped(_)))
            .for_each(std::mem::forget);
    }
}
