//! Memory pools: their definition, creation and destruction.

mod access;
mod alloc;
mod attributes;
mod create;
mod fit;
mod place;
mod runs;
mod space;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::c_int;

use cuda_driver_sys::{CUmemoryPool, CUresult};
use rustc_hash::FxHashSet;

use crate::clock::{Past, StreamId};
use crate::export::{Answer, Export, INVALID_VALUE};
use crate::ipc::Backing;
use crate::memory::Mapping;
use crate::state::{HandleKind, State, from_handle};

pub(crate) use create::Properties;
pub(crate) use place::Place;
pub(crate) use runs::Runs;
pub(crate) use space::{Block, Space};

/// The number behind a `CUmemoryPool`.
pub(crate) type PoolId = u64;

/// The exports of this folder.
pub(crate) static EXPORTS: [&[&Export]; 5] = [
    access::EXPORTS,
    alloc::EXPORTS,
    attributes::EXPORTS,
    create::EXPORTS,
    place::EXPORTS,
];

/// Address space that an unlimited pool reserves, as a multiple of the device's memory, so that fragmentation never
/// prevents growth.
const ADDRESS_SPACE_FACTOR: u64 = 2;

/// Pools with a larger maximum are refused.
const LARGEST_LIMIT: u64 = 1 << 46;

/// A memory pool.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) properties: Properties,
    /// The device of the memory; `None` on the host.
    pub(crate) device: Option<usize>,
    pub(crate) is_default: bool,
    /// Destroyed by the program; removed when its last block is freed.
    pub(crate) is_destroyed: bool,
    pub(crate) space: Space,
    pub(crate) mapping: Mapping,
    pub(crate) reuse: [bool; 3],
    pub(crate) threshold: u64,
    /// The streams that allocated or freed here. Synchronising with one lets the pool shrink.
    pub(crate) users: FxHashSet<StreamId>,
    /// Device access that differs from the default for this kind of pool.
    access: BTreeMap<usize, u32>,
    /// The host access that the pool reports.
    host_access: u32,
}

impl Pool {
    /// Start of its range.
    pub(crate) fn base(&self) -> u64 {
        self.mapping.base()
    }

    /// Whether its range contains an address.
    pub(crate) fn holds(&self, address: u64) -> bool {
        self.mapping.contains(address)
    }

    /// Whether its memory is on the host.
    pub(crate) fn is_host(&self) -> bool {
        self.properties.is_host()
    }
}

fn supported(is_there: bool) -> Answer {
    if is_there {
        Ok(())
    } else {
        Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
    }
}

impl State {
    fn add_pool(&mut self, properties: Properties, is_default: bool) -> Answer<PoolId> {
        let device = properties.device();
        let memory = device.map_or(self.configuration.memory, |device| {
            self.devices[device].memory
        });
        let chunk = self.configuration.chunk;
        let max = properties.max_size;
        let limit = if max == 0 { u64::MAX } else { max };
        if max > LARGEST_LIMIT {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let mut capacity = memory * ADDRESS_SPACE_FACTOR;
        if max != 0 {
            let wanted = max.next_multiple_of(chunk) * ADDRESS_SPACE_FACTOR;
            capacity = capacity.min(wanted.max(1 << 30));
        }
        let capacity = capacity.next_multiple_of(chunk);
        let mapping = if properties.handle_types == 0 {
            Mapping::reserve(capacity)?
        } else {
            let index = device.map(|device| self.devices[device].index);
            Mapping::shared(Backing::create(capacity, &properties, index)?)?
        };
        let host_access = if properties.is_host() {
            access::READWRITE
        } else {
            access::NONE
        };
        let pool = Pool {
            properties,
            device,
            is_default,
            is_destroyed: false,
            space: Space::new(self.configuration.granule, chunk, capacity, limit),
            mapping,
            reuse: [true; 3],
            threshold: 0,
            users: FxHashSet::default(),
            access: BTreeMap::new(),
            host_access,
        };
        let id = self.new_handle(HandleKind::Pool);
        self.ranges.insert(pool.base(), id);
        self.pools.insert(id, pool);
        Ok(id)
    }

    /// The pool of a handle.
    pub(crate) fn pool(&mut self, handle: CUmemoryPool) -> Answer<&mut Pool> {
        self.pools
            .get_mut(&from_handle(handle))
            .filter(|pool| !pool.is_destroyed)
            .ok_or(INVALID_VALUE)
    }

    /// The pool whose range contains an address.
    pub(crate) fn pool_at(&self, address: u64) -> Option<(PoolId, &Pool)> {
        let (_, id) = self.ranges.range(..=address).next_back()?;
        let pool = self.pools.get(id)?;
        pool.mapping.contains(address).then_some((*id, pool))
    }

    /// NOT_SUPPORTED if this device has no pools.
    pub(crate) fn check_pools(&self, device: usize) -> Answer {
        supported(self.configuration.has_pools(self.devices[device].index))
    }

    /// The same for pools of memory on no device: one of the devices must have pools.
    pub(crate) fn check_any_pools(&self) -> Answer {
        let mut devices = self.devices.iter();
        supported(devices.any(|device| self.configuration.has_pools(device.index)))
    }

    /// NOT_SUPPORTED if this device reports that it has no pools. One with broken pools returns its default pool, and
    /// fails to allocate from it.
    fn check_claim(&self, device: usize) -> Answer {
        supported(self.configuration.claims_pools(self.devices[device].index))
    }

    /// The default pool of a device, created on first use.
    pub(crate) fn default_pool(&mut self, device: c_int) -> Answer<PoolId> {
        let device = self.ordinal(device)?;
        self.check_claim(device)?;
        if let Some(id) = self.devices[device].default_pool {
            return Ok(id);
        }
        let id = self.add_pool(Properties::of_device(device), true)?;
        self.devices[device].default_pool = Some(id);
        Ok(id)
    }

    /// The pool of `cuMemAllocAsync`.
    pub(crate) fn current_pool(&mut self, device: c_int) -> Answer<PoolId> {
        let ordinal = self.ordinal(device)?;
        self.check_claim(ordinal)?;
        match self.devices[ordinal].current_pool {
            Some(id) => Ok(id),
            None => self.default_pool(device),
        }
    }

    /// Removes a destroyed pool without live blocks.
    fn end_if_empty(&mut self, id: PoolId) {
        let pool = self.pools.get(&id);
        if !pool.is_some_and(|pool| pool.is_destroyed && pool.space.live_blocks() == 0) {
            return;
        }
        if let Some(pool) = self.pools.remove(&id) {
            self.ranges.remove(&pool.base());
            if let Some(device) = pool.device {
                self.devices[device].taken -= pool.space.reserved.current;
            }
            self.hearsay.end(pool.base(), pool.mapping.len());
            self.released.end(pool.base(), pool.mapping.len());
            self.bury(pool.mapping);
        }
    }

    /// Releases pool memory to its device, as far as `may_fall_to(now, then)` allows.
    fn give_back(&mut self, id: PoolId, may_fall_to: impl Fn(u64, u64) -> bool) {
        let Some(pool) = self.pools.get_mut(&id) else {
            return;
        };
        pool.space.settle(&self.clocks);
        let chunk = pool.space.chunk();
        let gone = pool.space.give_back(may_fall_to);
        for index in &gone {
            pool.mapping.discard(index * chunk, chunk);
            self.released.release(pool.base() + index * chunk, chunk);
        }
        if let Some(device) = pool.device {
            self.devices[device].taken -= gone.len() as u64 * chunk;
        }
    }

    /// The effect of synchronising: shrinks the pools above their threshold that a synchronised stream has used.
    pub(crate) fn shrink_pools(&mut self, pasts: &[Past]) {
        let streams: FxHashSet<StreamId> = pasts.iter().flat_map(Past::streams).collect();
        self.shrink_pools_if(|pool| !pool.users.is_disjoint(&streams));
    }

    /// Shrinks pools above their threshold.
    pub(crate) fn shrink_pools_if(&mut self, is_wanted: impl Fn(&Pool) -> bool) {
        let above = self
            .pools
            .iter()
            .filter(|(_, pool)| pool.space.reserved.current > pool.threshold && is_wanted(pool));
        let above: Vec<PoolId> = above.map(|(id, _)| *id).collect();
        above.into_iter().for_each(|id| self.shrink_pool(id));
    }

    /// Shrinks one pool to its threshold.
    pub(crate) fn shrink_pool(&mut self, id: PoolId) {
        if let Some(pool) = self.pools.get(&id) {
            let threshold = pool.threshold;
            self.give_back(id, |now, _| now > threshold);
        }
    }
}
