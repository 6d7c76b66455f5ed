//! Memory outside the pools: `cuMemAlloc` on a device, and pinned memory of the host.

use std::ffi::{c_uint, c_void};

use cuda_driver_sys::{CUdeviceptr, CUresult};

use crate::context::ContextId;
use crate::export::{Answer, INVALID_VALUE, Out, exports};
use crate::memory::Mapping;
use crate::queue::Mark;
use crate::state::{State, state};

/// `cuMemAlloc` takes memory from the device in steps of this. A guess from the page size.
const DEVICE_STEP: u64 = 2 << 20;

/// Flags that `cuMemHostAlloc` knows.
const HOST_FLAGS: c_uint = 7;

/// Memory that is not of a pool.
#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) size: u64,
    pub(crate) context: ContextId,
    pub(crate) device: usize,
    pub(crate) is_host: bool,
    mapping: Mapping,
}

impl Allocation {
    /// Bytes that it takes from the device.
    fn taken(&self) -> u64 {
        if self.is_host {
            0
        } else {
            self.size.next_multiple_of(DEVICE_STEP)
        }
    }
}

impl State {
    /// The allocation that holds `address`, and where it starts.
    pub(crate) fn allocation(&self, address: u64) -> Option<(u64, &Allocation)> {
        let (&start, allocation) = self.allocations.range(..=address).next_back()?;
        (address < start + allocation.size).then_some((start, allocation))
    }

    fn allocate(&mut self, size: usize, is_host: bool) -> Answer<u64> {
        let context = self.current()?;
        let device = self.context(context)?.device;
        let size = size as u64;
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        let fits = |state: &Self| {
            is_host || size.div_ceil(DEVICE_STEP) <= state.devices[device].available() / DEVICE_STEP
        };
        if !fits(self) {
            self.take_back_unused(Some(device));
        }
        if size > 1 << 46 || !fits(self) {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let mapping = Mapping::allocate(size)?;
        let start = mapping.base();
        let allocation = Allocation {
            size,
            context,
            device,
            is_host,
            mapping,
        };
        self.devices[device].taken += allocation.taken();
        self.allocations.insert(start, allocation);
        Ok(start)
    }

    /// Removes an allocation; its memory stays until no queue can touch it.
    pub(crate) fn free_allocation(&mut self, start: u64) {
        if let Some(allocation) = self.allocations.remove(&start) {
            self.devices[allocation.device].taken -= allocation.taken();
            self.bury(allocation.mapping);
        }
    }

    /// A context takes its memory with it.
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

/// Frees memory outside the pools once the device has nothing to do: measured, `cuMemFree` waits
/// even for streams that never touched the memory.
fn free_waiting(address: u64, is_host: bool) -> Answer {
    let (marks, pasts) = {
        let state = state()?;
        let allocation = state.allocations.get(&address);
        let allocation = allocation.filter(|allocation| allocation.is_host == is_host);
        let device = allocation.ok_or(INVALID_VALUE)?.device;
        let streams = state.streams.iter();
        let streams: Vec<_> = streams
            .filter(|(_, stream)| stream.device == device)
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
    let mut state = state()?;
    state.note_observed(&pasts);
    state.free_allocation(address);
    Ok(())
}

fn allocate_host(out: Out<*mut c_void>, size: usize) -> Answer {
    out.required()?;
    let address = state()?.allocate(size, true)?;
    out.write(std::ptr::with_exposed_provenance_mut(address as usize))
}

exports! {
    plain fn cuMemAlloc_v2(_, out: Out<CUdeviceptr>, size: usize) {
        out.required()?;
        let address = state()?.allocate(size, false)?;
        out.write(address)
    }

    release fn cuMemFree_v2(_, address: CUdeviceptr) {
        if address == 0 {
            return Ok(());
        }
        let in_pool = {
            let mut state = state()?;
            state.current()?;
            state.free_pool_memory_now(address)?
        };
        if in_pool {
            return Ok(());
        }
        free_waiting(address, false)
    }

    plain fn cuMemGetInfo_v2(_, free: Out<usize>, total: Out<usize>) {
        free.required()?;
        total.required()?;
        let state = state()?;
        let device = &state.devices[state.context(state.current()?)?.device];
        free.write(device.available() as usize)?;
        total.write(device.memory as usize)
    }

    plain fn cuMemGetAddressRange_v2(
        _, base: Out<CUdeviceptr>, size: Out<usize>, address: CUdeviceptr
    ) {
        let mut state = state()?;
        let (start, len) = state.range_of(address).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        base.write_if_wanted(start);
        size.write_if_wanted(len as usize);
        Ok(())
    }

    plain fn cuMemHostAlloc(_, out: Out<*mut c_void>, size: usize, flags: c_uint) {
        if flags & !HOST_FLAGS != 0 {
            return Err(INVALID_VALUE);
        }
        allocate_host(out, size)
    }

    plain fn cuMemAllocHost_v2(_, out: Out<*mut c_void>, size: usize) {
        allocate_host(out, size)
    }

    release fn cuMemFreeHost(_, address: *mut c_void) {
        if address.is_null() {
            return Ok(());
        }
        free_waiting(address.expose_provenance() as u64, true)
    }
}
