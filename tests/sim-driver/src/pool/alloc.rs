//! Allocation from pools, and frees in stream order.

use std::ffi::c_int;

use cuda_driver_sys::{CUdeviceptr, CUmemoryPool, CUresult, CUstream};

use super::PoolId;
use super::fit::{Plan, Reuse};
use crate::alloc::Kind;
use crate::clock::{Point, StreamId};
use crate::export::{Answer, Call, INVALID_VALUE, Out, exports};
use crate::queue::Task;
use crate::sanitizer;
use crate::state::{State, from_handle, state};

impl State {
    fn allocate_from(&mut self, pool: PoolId, size: usize, stream: StreamId) -> Answer<u64> {
        // Measured: size 0 yields null without an error.
        if size == 0 {
            return Ok(0);
        }
        let size = size as u64;
        if self.is_recording(stream)? {
            let device = self.pools.get(&pool).and_then(|pool| pool.device);
            return self.record_alloc(stream, size, device);
        }
        self.refuse_while_recording()?;
        self.begin(stream)?;
        self.end_finished_streams();
        let plan = match self.plan(pool, size, stream)? {
            Some(plan) => plan,
            None => self.plan_under_pressure(pool, size, stream)?,
        };
        let pool = self.pools.get_mut(&pool).ok_or(INVALID_VALUE)?;
        pool.users.insert(stream);
        let chunk = pool.space.chunk();
        for index in &plan.chunks {
            pool.mapping.commit(index * chunk, chunk)?;
        }
        // The waits come before the allocation in stream order.
        for freed in &plan.waits {
            let queue = &self.streams.get(&stream).ok_or(INVALID_VALUE)?.queue;
            queue.push(Task::Wait(freed.mark.clone()))?;
            self.clocks.join_point(stream, freed.point);
        }
        let allocated = self.clocks.tick(stream);
        pool.space.commit(&plan, size, allocated);
        if let Some(backing) = pool.mapping.backing() {
            backing.reuse(plan.start, size);
        }
        if let Some(device) = pool.device {
            self.devices[device].taken += plan.chunks.len() as u64 * chunk;
        }
        Ok(pool.base() + plan.start)
    }

    /// The placement of a block at this point.
    fn plan(&mut self, pool: PoolId, size: u64, stream: StreamId) -> Answer<Option<Plan>> {
        let memory = self.configuration.memory;
        let pool = self.pools.get_mut(&pool).ok_or(INVALID_VALUE)?;
        let [follow_events, opportunistic, _] = pool.reuse;
        let reuse = Reuse {
            follow_events,
            opportunistic,
        };
        let available = match pool.device {
            Some(device) => self.devices[device].available(),
            None => memory.saturating_sub(pool.space.reserved.current),
        };
        pool.space.settle(&self.clocks);
        let space = &mut pool.space;
        Ok(space.plan(size, stream, &self.clocks, reuse, available))
    }

    /// The driver's steps when there is no room, each as measured: it takes unused memory from the device's other
    /// pools, then lets the stream wait for another stream's free if allowed, and finally fails, having taken all
    /// memory left on the device.
    fn plan_under_pressure(&mut self, id: PoolId, size: u64, stream: StreamId) -> Answer<Plan> {
        let out_of_memory = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        let pool = self.pools.get(&id).ok_or(INVALID_VALUE)?;
        let device = pool.device;
        // A request larger than the address space changes nothing.
        if size > pool.space.address_space() {
            return Err(out_of_memory);
        }
        self.take_back_unused(device, Some(id));
        if let Some(plan) = self.plan(id, size, stream)? {
            return Ok(plan);
        }
        let available = device.map_or(0, |device| self.devices[device].available());
        let pool = self.pools.get_mut(&id).ok_or(INVALID_VALUE)?;
        if pool.reuse[2]
            && let Some(plan) = pool.space.plan_waiting(size, stream)
        {
            return Ok(plan);
        }
        // The pool's limit is checked before anything is taken, the device's is not.
        if pool.space.reserved.current.saturating_add(size) <= pool.space.limit() {
            let chunk = pool.space.chunk();
            let chunks = pool.space.grow_in_vain(available);
            for index in &chunks {
                pool.mapping.commit(index * chunk, chunk)?;
            }
            if let Some(device) = device {
                self.devices[device].taken += chunks.len() as u64 * chunk;
            }
        }
        Err(out_of_memory)
    }

    /// Releases the unused memory of a device's pools, whatever their thresholds, except that of `except`, the
    /// requester.
    pub(crate) fn take_back_unused(&mut self, device: Option<usize>, except: Option<PoolId>) {
        let pools = self.pools.iter();
        let pools: Vec<PoolId> = pools
            .filter(|(id, pool)| pool.device == device && Some(**id) != except)
            .map(|(id, _)| *id)
            .collect();
        for id in pools {
            self.give_back(id, |_, _| true);
        }
    }

    /// The device of a stream; NOT_SUPPORTED if it has no pools, which allocating and freeing in stream order need.
    fn check_pools_of(&self, stream: StreamId) -> Answer<usize> {
        let device = self.stream(stream)?.device;
        self.check_pools(device)?;
        Ok(device)
    }

    fn free_async(&mut self, address: u64, stream: CUstream, call: Call) -> Answer {
        let id = self.resolve(stream, call)?;
        self.check_pools_of(id)?;
        if address == 0 {
            return Ok(());
        }
        if self.is_recording(id)? {
            return self.record_free(id, address);
        }
        self.refuse_while_recording()?;
        let point = self.begin(id)?;
        if self.free_graph_block(address, Some(point))? {
            return Ok(());
        }
        let mark = self.stream(id)?.queue.mark();
        let Some((pool_id, base)) = self.pool_at(address).map(|(id, pool)| (id, pool.base()))
        else {
            let imported = self.free_imported(address, Some(id));
            return imported.unwrap_or_else(|| self.free_outside_pools(address, point));
        };
        let pool = self.pools.get_mut(&pool_id).ok_or(INVALID_VALUE)?;
        match pool.space.free(address - base, Some((point, mark))) {
            Some(block) => {
                pool.users.insert(id);
                sanitizer::free(&mut self.reports, &self.clocks, address, &block, id);
                self.end_if_empty(pool_id);
                Ok(())
            }
            None => {
                self.report_wrong_free(address, Some(id));
                Err(INVALID_VALUE)
            }
        }
    }

    /// Frees memory outside the pools in stream order. Measured: `cuMemAlloc` memory stays until the host synchronises,
    /// and managed memory cannot be freed this way.
    fn free_outside_pools(&mut self, address: u64, at: Point) -> Answer {
        match self.allocations.get_mut(&address) {
            Some(allocation) if allocation.is_variable => Err(INVALID_VALUE),
            Some(allocation) if allocation.kind == Kind::Managed => {
                Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
            }
            Some(allocation) if !allocation.is_host() && allocation.freed.is_none() => {
                allocation.freed = Some(at);
                Ok(())
            }
            _ => {
                self.report_wrong_free(address, Some(at.stream));
                Err(INVALID_VALUE)
            }
        }
    }

    /// `cuMemFree` of pool memory: immediate, without a wait. False if the address is not in a pool.
    pub(crate) fn free_pool_memory_now(&mut self, address: u64) -> Answer<bool> {
        let Some((pool_id, base)) = self.pool_at(address).map(|(id, pool)| (id, pool.base()))
        else {
            let imported = self.free_imported(address, None);
            return imported.map_or(Ok(false), |freed| freed.map(|()| true));
        };
        let freed = self.pools.get_mut(&pool_id);
        match freed.and_then(|pool| pool.space.free(address - base, None)) {
            Some(block) => {
                sanitizer::free_now(&mut self.reports, &self.clocks, address, &block);
                self.end_if_empty(pool_id);
                Ok(true)
            }
            None => {
                self.report_wrong_free(address, None);
                Err(INVALID_VALUE)
            }
        }
    }
}

/// Writes the address, or null on failure.
fn write(out: Out<CUdeviceptr>, address: Answer<u64>) -> Answer {
    match address {
        Ok(address) => out.write(address),
        Err(code) => {
            if code == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
                out.write(0)?;
            }
            Err(code)
        }
    }
}

exports! {
    plain fn cuMemAllocAsync(
        call, out: Out<CUdeviceptr>, size: usize, stream: CUstream
    ) twin cuMemAllocAsync_ptsz {
        out.required()?;
        let mut state = state()?;
        let id = state.resolve(stream, call)?;
        let device = state.check_pools_of(id)?;
        let pool = state.current_pool(c_int::try_from(device).unwrap_or(-1))?;
        write(out, state.allocate_from(pool, size, id))
    }

    plain fn cuMemAllocFromPoolAsync(
        call, out: Out<CUdeviceptr>, size: usize, pool: CUmemoryPool, stream: CUstream
    ) twin cuMemAllocFromPoolAsync_ptsz {
        out.required()?;
        let mut state = state()?;
        state.pool(pool)?;
        let id = state.resolve(stream, call)?;
        state.check_pools_of(id)?;
        write(out, state.allocate_from(from_handle(pool), size, id))
    }

    release fn cuMemFreeAsync(call, address: CUdeviceptr, stream: CUstream) twin cuMemFreeAsync_ptsz {
        state()?.free_async(address, stream, call)
    }
}
