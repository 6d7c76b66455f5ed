//! Memory pools: what one is, how it begins and how it ends.

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

/// What the files of this folder export.
pub(crate) static EXPORTS: [&[&Export]; 5] = [
    access::EXPORTS,
    alloc::EXPORTS,
    attributes::EXPORTS,
    create::EXPORTS,
    place::EXPORTS,
];

/// A pool without a limit of its own reserves the device's memory this many times, so that holes
/// never keep it from growing.
const ADDRESS_SPACE_FACTOR: u64 = 2;

/// A pool with a larger maximum is refused.
const LARGEST_LIMIT: u64 = 1 << 46;

/// A memory pool.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) properties: Properties,
    /// The device that the memory is of; `None` on the host.
    pub(crate) device: Option<usize>,
    pub(crate) is_default: bool,
    /// The program has destroyed it; it goes when its last block is freed.
    pub(crate) is_destroyed: bool,
    pub(crate) space: Space,
    pub(crate) mapping: Mapping,
    pub(crate) reuse: [bool; 3],
    pub(crate) threshold: u64,
    /// The streams that allocated or freed here: their synchronisation lets the pool shrink.
    pub(crate) users: FxHashSet<StreamId>,
    /// Access of devices, other than what every pool of this kind has.
    access: BTreeMap<usize, u32>,
    /// What the pool says of the host's.
    host_access: u32,
}

impl Pool {
    /// Where its range begins.
    pub(crate) fn base(&self) -> u64 {
        self.mapping.base()
    }

    /// Whether an address lies in its range.
    pub(crate) fn holds(&self, address: u64) -> bool {
        self.mapping.contains(address)
    }

    /// Whether its memory is the host's.
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
        let memory = device.map_or(self.knobs.memory, |device| self.devices[device].memory);
        let chunk = self.knobs.chunk;
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
            space: Space::new(self.knobs.granule, chunk, capacity, limit),
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

    /// The pool behind a handle.
    pub(crate) fn pool(&mut self, handle: CUmemoryPool) -> Answer<&mut Pool> {
        self.pools
            .get_mut(&from_handle(handle))
            .filter(|pool| !pool.is_destroyed)
            .ok_or(INVALID_VALUE)
    }

    /// The pool whose range holds an address.
    pub(crate) fn pool_at(&self, address: u64) -> Option<(PoolId, &Pool)> {
        let (_, id) = self.ranges.range(..=address).next_back()?;
        let pool = self.pools.get(id)?;
        pool.mapping.contains(address).then_some((*id, pool))
    }

    /// NOT_SUPPORTED if this device has no pools.
    pub(crate) fn check_pools(&self, device: usize) -> Answer {
        supported(self.knobs.has_pools(self.devices[device].index))
    }

    /// The same of pools for memory that is no device's: one of the devices has to have pools.
    pub(crate) fn check_any_pools(&self) -> Answer {
        let mut devices = self.devices.iter();
        supported(devices.any(|device| self.knobs.has_pools(device.index)))
    }

    /// NOT_SUPPORTED if this device says itself that it has no pools. One whose pools are broken
    /// names its default pool, and fails when memory is wanted of it.
    fn check_claim(&self, device: usize) -> Answer {
        supported(self.knobs.claims_pools(self.devices[device].index))
    }

    /// The default pool of a device, which comes to be when it is first needed.
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

    /// The pool that `cuMemAllocAsync` takes from.
    pub(crate) fn current_pool(&mut self, device: c_int) -> Answer<PoolId> {
        let ordinal = self.ordinal(device)?;
        self.check_claim(ordinal)?;
        match self.devices[ordinal].current_pool {
            Some(id) => Ok(id),
            None => self.default_pool(device),
        }
    }

    /// Removes a destroyed pool that has nothing left.
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
            self.bury(pool.mapping);
        }
    }

    /// Gives memory of a pool back to its device as far as `may_fall_to(now, then)` allows.
    fn give_back(&mut self, id: PoolId, may_fall_to: impl Fn(u64, u64) -> bool) {
        let Some(pool) = self.pools.get_mut(&id) else {
            return;
        };
        pool.space.settle(&self.clocks);
        let chunk = pool.space.chunk();
        let gone = pool.space.give_back(may_fall_to);
        for index in &gone {
            pool.mapping.discard(index * chunk, chunk);
        }
        if let Some(device) = pool.device {
            self.devices[device].taken -= gone.len() as u64 * chunk;
        }
    }

    /// What a synchronise does to the pools above their threshold that a synchronised stream has
    /// used.
    pub(crate) fn shrink_pools(&mut self, pasts: &[Past]) {
        let streams: FxHashSet<StreamId> = pasts.iter().flat_map(Past::streams).collect();
        self.shrink_pools_if(|pool| !pool.users.is_disjoint(&streams));
    }

    /// Gives memory of pools above their threshold back.
    pub(crate) fn shrink_pools_if(&mut self, is_wanted: impl Fn(&Pool) -> bool) {
        let above = self
            .pools
            .iter()
            .filter(|(_, pool)| pool.space.reserved.current > pool.threshold && is_wanted(pool));
        let above: Vec<PoolId> = above.map(|(id, _)| *id).collect();
        above.into_iter().for_each(|id| self.shrink_pool(id));
    }

    /// Gives memory of one pool back as far as its threshold wants.
    pub(crate) fn shrink_pool(&mut self, id: PoolId) {
        if let Some(pool) = self.pools.get(&id) {
            let threshold = pool.threshold;
            self.give_back(id, |now, _| now > threshold);
        }
    }
}
