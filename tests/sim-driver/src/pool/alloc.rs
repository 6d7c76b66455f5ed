//! Allocating from pools and freeing in stream order.

use std::ffi::c_int;

use cuda_driver_sys::{CUdeviceptr, CUmemoryPool, CUresult, CUstream};

use super::PoolId;
use super::fit::{Plan, Reuse};
use crate::clock::StreamId;
use crate::export::{Answer, Call, INVALID_VALUE, Out, exports};
use crate::queue::Task;
use crate::sanitizer;
use crate::state::{State, from_handle, state};

impl State {
    fn allocate_from(&mut self, pool: PoolId, size: usize, stream: StreamId) -> Answer<u64> {
        // Measured: nothing asked for is nothing given, and no error.
        if size == 0 {
            return Ok(0);
        }
        let size = size as u64;
        self.begin(stream)?;
        let mut plan = self.plan(pool, size, stream)?;
        if plan.is_none() && self.could_ever_fit(pool, size) {
            let device = self.pools.get(&pool).and_then(|pool| pool.device);
            self.take_back_unused(device);
            plan = self.plan(pool, size, stream)?;
        }
        let plan = plan.ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let pool = self.pools.get_mut(&pool).ok_or(INVALID_VALUE)?;
        let chunk = pool.space.chunk();
        for index in &plan.chunks {
            pool.mapping.commit(index * chunk, chunk)?;
        }
        // Waits come before the allocation in the stream's order.
        for freed in &plan.waits {
            let queue = &self.streams.get(&stream).ok_or(INVALID_VALUE)?.queue;
            queue.push(Task::Wait(freed.mark.clone()))?;
            self.clocks.join_point(stream, freed.point);
        }
        let allocated = self.clocks.tick(stream);
        pool.space.commit(&plan, size, allocated);
        if let Some(device) = pool.device {
            self.devices[device].taken += plan.chunks.len() as u64 * chunk;
        }
        Ok(pool.base() + plan.start)
    }

    /// Where a block would go now.
    fn plan(&mut self, pool: PoolId, size: u64, stream: StreamId) -> Answer<Option<Plan>> {
        let memory = self.knobs.memory;
        let pool = self.pools.get_mut(&pool).ok_or(INVALID_VALUE)?;
        let [follow_events, opportunistic, internal_dependencies] = pool.reuse;
        let reuse = Reuse {
            follow_events,
            opportunistic,
            internal_dependencies,
        };
        let available = match pool.device {
            Some(device) => self.devices[device].available(),
            None => memory.saturating_sub(pool.space.reserved.current),
        };
        pool.space.settle(&self.clocks);
        let space = &pool.space;
        Ok(space.plan(size, stream, &self.clocks, reuse, available))
    }

    /// Whether an empty pool on an empty device would have room: only then does the driver try
    /// to make some.
    fn could_ever_fit(&self, pool: PoolId, size: u64) -> bool {
        self.pools.get(&pool).is_some_and(|pool| {
            let memory = pool.device.map(|device| self.devices[device].memory);
            size <= memory.unwrap_or(self.knobs.memory) && size <= pool.space.limit()
        })
    }

    /// Gives back what every pool of a device keeps unused, whatever the thresholds: what the
    /// driver does before it answers that memory is out.
    pub(crate) fn take_back_unused(&mut self, device: Option<usize>) {
        let pools = self.pools.iter();
        let pools: Vec<PoolId> = pools
            .filter(|(_, pool)| pool.device == device)
            .map(|(id, _)| *id)
            .collect();
        for id in pools {
            self.give_back(id, |_, _| true);
        }
    }

    fn free_async(&mut self, address: u64, stream: CUstream, call: Call) -> Answer {
        let id = self.resolve(stream, call)?;
        if address == 0 {
            return Ok(());
        }
        let point = self.begin(id)?;
        let mark = self.stream(id)?.queue.mark();
        let Some((pool_id, base)) = self.pool_at(address).map(|(id, pool)| (id, pool.base()))
        else {
            return self.free_device_memory(address, id);
        };
        let freed = self.pools.get_mut(&pool_id);
        let freed = freed.and_then(|pool| pool.space.free(address - base, Some((point, mark))));
        match freed {
            Some(block) => {
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

    /// A free in stream order of memory from `cuMemAlloc`: it goes when the queues get there.
    fn free_device_memory(&mut self, address: u64, stream: StreamId) -> Answer {
        match self.allocations.get(&address) {
            Some(allocation) if !allocation.is_host => {
                self.free_allocation(address);
                Ok(())
            }
            _ => {
                self.report_wrong_free(address, Some(stream));
                Err(INVALID_VALUE)
            }
        }
    }

    /// `cuMemFree` on pool memory: at once, without waiting. False if it is no pool's.
    pub(crate) fn free_pool_memory_now(&mut self, address: u64) -> Answer<bool> {
        let Some((pool_id, base)) = self.pool_at(address).map(|(id, pool)| (id, pool.base()))
        else {
            return Ok(false);
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

/// Writes the address, and null where there is none.
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
        let device = c_int::try_from(state.stream(id)?.device).unwrap_or(-1);
        let pool = state.current_pool(device)?;
        write(out, state.allocate_from(pool, size, id))
    }

    plain fn cuMemAllocFromPoolAsync(
        call, out: Out<CUdeviceptr>, size: usize, pool: CUmemoryPool, stream: CUstream
    ) twin cuMemAllocFromPoolAsync_ptsz {
        out.required()?;
        let mut state = state()?;
        state.pool(pool)?;
        let id = state.resolve(stream, call)?;
        write(out, state.allocate_from(from_handle(pool), size, id))
    }

    release fn cuMemFreeAsync(call, address: CUdeviceptr, stream: CUstream) twin cuMemFreeAsync_ptsz {
        state()?.free_async(address, stream, call)
    }
}
