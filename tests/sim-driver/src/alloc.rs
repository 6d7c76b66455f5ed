//! Memory outside the pools: `cuMemAlloc` on a device, pinned host memory and managed memory. The functions for pinned
//! memory are in `host.rs`, those for managed memory in `managed.rs`.

use std::ffi::c_uint;

use cuda_driver_sys::{CUdeviceptr, CUresult};

use crate::buffer_id::BufferId;
use crate::clock::Point;
use crate::context::ContextId;
use crate::direct;
use crate::export::{Answer, INVALID_VALUE, Out, exports};
use crate::memory::Mapping;
use crate::queue::Mark;
use crate::slab;
use crate::state::{State, state};

/// Measured: `cuMemAlloc` takes memory from the device in steps of this.
const DEVICE_STEP: u64 = slab::SLAB;

/// No address space has room for this size.
pub(crate) const TOO_LARGE: u64 = 1 << 46;

/// Kinds of memory outside the pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// On one device.
    Device,
    /// On the host, and never moved.
    Pinned,
    /// Accessible to the host and every device; migrates on access.
    Managed,
}

impl Kind {
    /// Bytes that a slab of such memory takes from the device.
    fn slab(self) -> u64 {
        match self {
            Self::Device => slab::SLAB,
            Self::Pinned | Self::Managed => 0,
        }
    }
}

/// Memory outside the pools.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) id: BufferId,
    pub(crate) size: u64,
    pub(crate) context: ContextId,
    pub(crate) device: usize,
    pub(crate) kind: Kind,
    /// Flags passed to `cuMemHostAlloc`; 0 for other memory.
    pub(crate) flags: c_uint,
    /// Whether the program asked for synchronous copies.
    pub(crate) is_sync: bool,
    /// Whether it is a variable of a module, which the program cannot free.
    pub(crate) is_variable: bool,
    /// When it was freed, in stream order; the memory stays until the host synchronises.
    pub(crate) freed: Option<Point>,
    /// Its own memory; `None` in a slab.
    mapping: Option<Mapping>,
}

impl Allocation {
    /// Device memory that it occupies by itself. Managed memory may exceed the device's, and occupies it only where
    /// resident: see `resident.rs`.
    fn taken(&self) -> u64 {
        if self.kind == Kind::Device && self.mapping.is_some() {
            self.size.next_multiple_of(DEVICE_STEP)
        } else {
            0
        }
    }

    /// Whether it is host memory.
    pub(crate) fn is_host(&self) -> bool {
        self.kind == Kind::Pinned
    }
}

impl State {
    /// The allocation that contains `address`, and its start.
    pub(crate) fn allocation(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (&start, allocation) = self.allocations.range(..=address).next_back()?;
        (address < start + allocation.size).then_some((start, allocation))
    }

    pub(crate) fn allocate(&mut self, size: usize, kind: Kind) -> Answer<u64> {
        let context = self.current()?;
        let device = self.context(context)?.device;
        let size = size as u64;
        let in_slab = size <= slab::LARGEST;
        let shared = if in_slab {
            self.slabs.take(context, kind, size)
        } else {
            None
        };
        let (start, mapping) = match shared {
            Some(start) => (start, None),
            None => {
                self.make_room(device, size, kind)?;
                if in_slab {
                    self.slabs.grow(context, kind)?;
                    self.devices[device].taken += kind.slab();
                    let start = self.slabs.take(context, kind, size);
                    (start.ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?, None)
                } else {
                    let whole = match kind {
                        Kind::Device => size.next_multiple_of(DEVICE_STEP),
                        Kind::Pinned | Kind::Managed => size,
                    };
                    let (mapping, start) = Mapping::allocate_aligned(whole, DEVICE_STEP)?;
                    (start, Some(mapping))
                }
            }
        };
        let allocation = Allocation {
            id: BufferId::next(),
            size,
            context,
            device,
            kind,
            flags: 0,
            // Measured.
            is_sync: kind == Kind::Managed,
            is_variable: false,
            freed: None,
            mapping,
        };
        self.devices[device].taken += allocation.taken();
        self.allocations.insert(start, allocation);
        Ok(start)
    }

    /// Adds a variable of a module, whose memory is the module's: of a context, or managed.
    pub(crate) fn add_variable(
        &mut self,
        start: u64,
        size: u64,
        context: Option<ContextId>,
        device: usize,
    ) {
        let kind = context.map_or(Kind::Managed, |_| Kind::Device);
        let allocation = Allocation {
            id: BufferId::next(),
            size,
            context: context.unwrap_or_default(),
            device,
            kind,
            flags: 0,
            is_sync: kind == Kind::Managed,
            is_variable: true,
            freed: None,
            mapping: None,
        };
        self.allocations.insert(start, allocation);
    }

    /// OUT_OF_MEMORY unless there is room, if necessary after the pools have released unused memory.
    pub(crate) fn make_room(&mut self, device: usize, size: u64, kind: Kind) -> Answer {
        let fits = |state: &Self| {
            let steps = state.devices[device].available() / DEVICE_STEP;
            kind != Kind::Device || size.div_ceil(DEVICE_STEP) <= steps
        };
        if !fits(self) {
            self.take_back_unused(Some(device), None);
        }
        if size >= TOO_LARGE || !fits(self) {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        Ok(())
    }

    /// The mapping that contains an address outside the pools, allocated or not.
    #[cfg(target_os = "linux")]
    pub(crate) fn mapping_at(&mut self, address: u64) -> Option<&mut Mapping> {
        let allocations = self.allocations.range_mut(..=address).rev();
        let own = allocations.filter_map(|(_, allocation)| allocation.mapping.as_mut());
        let own = own.take(1).find(|mapping| mapping.contains(address));
        own.or_else(|| self.slabs.mapping_at(address))
    }

    /// The memory that the driver took from the device for a block that overlaps a range: start and end.
    #[cfg(target_os = "linux")]
    pub(crate) fn taken_around(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let (&block, allocation) = self.allocations.range(..end).next_back()?;
        let is_hit = block + allocation.size > start;
        let is_gone = allocation.freed.is_some() || allocation.is_variable;
        if !is_hit || allocation.kind != Kind::Device || is_gone {
            return None;
        }
        let first = block - block % DEVICE_STEP;
        let len = allocation.taken().max(DEVICE_STEP);
        Some((first, first + len))
    }

    /// Removes an allocation. Its memory stays until no queue can access it.
    pub(crate) fn free_allocation(&mut self, start: u64) {
        let Some(allocation) = self.allocations.remove(&start) else {
            return;
        };
        let device = allocation.device;
        direct::tell_freed(start, allocation.size);
        self.devices[device].taken -= allocation.taken();
        if let Some(mapping) = allocation.mapping {
            self.resident.end(start, allocation.size);
            self.hearsay.end(start, allocation.size);
            self.bury(mapping);
        } else if allocation.is_variable {
            // Its memory is the module's. A guess: it is not counted, as the rest of the code.
            self.resident.end(start, allocation.size);
            self.hearsay.end(start, allocation.size);
        } else if let Some((base, mapping)) = self.slabs.put(start, allocation.size) {
            self.devices[device].taken -= allocation.kind.slab();
            self.resident.end(base, slab::SLAB);
            self.hearsay.end(base, slab::SLAB);
            self.bury(mapping);
        }
    }

    /// Removes memory that was freed in stream order and synchronised since.
    pub(crate) fn free_what_was_left(&mut self) {
        let all = self.allocations.iter();
        let done: Vec<u64> = all
            .filter(|(_, allocation)| {
                let freed = allocation.freed;
                freed.is_some_and(|point| self.clocks.is_synchronised(point))
            })
            .map(|(start, _)| *start)
            .collect();
        for start in done {
            self.free_allocation(start);
        }
    }

    /// No current context is needed here, but a destroyed one is refused.
    fn check_current_if_any(&self) -> Answer {
        match self.current() {
            Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED) => {
                Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)
            }
            _ => Ok(()),
        }
    }

    /// Memory is freed with its context.
    pub(crate) fn free_allocations_of(&mut self, context: ContextId) {
        let all = self.allocations.iter();
        let its: Vec<u64> = all
            .filter(|(_, allocation)| allocation.context == context)
            .map(|(start, _)| *start)
            .collect();
        for start in its {
            self.free_allocation(start);
        }
    }
}

/// Frees memory outside the pools once the device is idle. Measured: `cuMemFree` waits even for streams that never
/// accessed the memory.
pub(crate) fn free_waiting(address: u64, is_host: bool) -> Answer {
    let device = {
        let state = state()?;
        state.check_current_if_any()?;
        let allocation = state.allocations.get(&address);
        let allocation = allocation
            .filter(|found| found.is_host() == is_host && found.freed.is_none())
            .filter(|found| !found.is_variable)
            .ok_or(INVALID_VALUE)?;
        // Managed memory may be in use on every device.
        (allocation.kind != Kind::Managed).then_some(allocation.device)
    };
    wait_for_streams_of(device)?;
    state()?.free_allocation(address);
    Ok(())
}

/// Waits until a device, or every device, is idle, and records that the host observed it.
pub(crate) fn wait_for_streams_of(device: Option<usize>) -> Answer {
    let (marks, pasts) = {
        let state = state()?;
        let streams = state.streams.iter();
        let streams: Vec<_> = streams
            .filter(|(_, stream)| device.is_none_or(|device| stream.device == device))
            .collect();
        let marks: Vec<Mark> = streams
            .iter()
            .map(|(_, stream)| stream.queue.mark())
            .collect();
        let pasts: Vec<_> = streams
            .iter()
            .map(|(id, _)| state.clocks.past(**id))
            .collect();
        (marks, pasts)
    };
    marks.iter().for_each(Mark::wait);
    state()?.note_observed(&pasts);
    Ok(())
}

exports! {
    plain fn cuMemAlloc_v2(_, out: Out<CUdeviceptr>, size: usize) {
        out.required()?;
        let mut state = state()?;
        state.current()?;
        // A failed call writes null.
        out.write(0)?;
        state.refuse_while_recording()?;
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        out.write(state.allocate(size, Kind::Device)?)
    }

    release fn cuMemFree_v2(_, address: CUdeviceptr) {
        if address == 0 {
            return Ok(());
        }
        let in_pool = {
            let mut state = state()?;
            state.check_current_if_any()?;
            state.refuse_while_recording()?;
            state.free_graph_block(address, None)? || state.free_pool_memory_now(address)?
        };
        if in_pool {
            return Ok(());
        }
        free_waiting(address, false)
    }

    plain fn cuMemGetInfo_v2(_, free: Out<usize>, total: Out<usize>) {
        let mut state = state()?;
        let ordinal = state.context(state.current()?)?.device;
        let device = &state.devices[ordinal];
        let (memory, available) = (device.memory, device.available());
        // Managed memory makes room for everything else, which shows only here.
        state.resident.shrink(ordinal, available);
        free.write_if_wanted((available - state.resident.bytes(ordinal)) as usize);
        total.write_if_wanted(memory as usize);
        Ok(())
    }

    plain fn cuMemGetAddressRange_v2(
        _, base: Out<CUdeviceptr>, size: Out<usize>, address: CUdeviceptr
    ) {
        let mut state = state()?;
        state.current()?;
        let found = state.range_of(address);
        // Measured with a reserved address: if nothing is allocated there, the result is null.
        let (start, len) = found.unwrap_or_default();
        base.write_if_wanted(start);
        size.write_if_wanted(len as usize);
        found.map(|_| ()).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)
    }
}
