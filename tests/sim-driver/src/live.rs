//! Counts what a program has not released.

use crate::state::State;
use crate::stream::{Kind, Life};

/// Counts of live objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Live {
    /// Retains of primary contexts, over all devices.
    pub primary_retains: u64,
    /// Contexts created with `cuCtxCreate`.
    pub contexts: u64,
    /// Streams created with `cuStreamCreate`.
    pub streams: u64,
    /// Events.
    pub events: u64,
    /// Pools that were created or imported and not destroyed; default pools do not count.
    pub pools: u64,
    /// Blocks of device memory, from pools and from `cuMemAlloc`, and of managed memory.
    pub allocations: u64,
    /// Their requested bytes.
    pub bytes: u64,
    /// Blocks of pinned host memory.
    pub host_allocations: u64,
    /// Registered ranges of the program's memory.
    pub registrations: u64,
    /// Graphs of the program.
    pub graphs: u64,
    /// Executable graphs.
    pub graph_execs: u64,
    /// Blocks that launched graphs allocated and that were not freed.
    pub graph_allocations: u64,
    /// Active captures.
    pub captures: u64,
    /// Physical memory from `cuMemCreate` that a handle or a mapping keeps alive.
    pub physical_allocations: u64,
    /// Their bytes.
    pub physical_bytes: u64,
    /// Address ranges from `cuMemAddressReserve`.
    pub reservations: u64,
    /// Mappings of physical memory.
    pub mappings: u64,
    /// Blocks annotated as allocated and not as freed.
    pub annotated: u64,
    /// Modules that the program loaded; those that libraries create do not count.
    pub modules: u64,
    /// Libraries.
    pub libraries: u64,
    /// Images loaded into contexts, over all devices: modules, and libraries once per context that uses them.
    /// [`Control::images`](crate::Control::images) counts those of one device.
    pub images: u64,
    /// Linkers not destroyed.
    pub links: u64,
}

impl State {
    pub(crate) fn live(&self) -> Live {
        let count = |number: usize| number as u64;
        let streams = self.streams.values();
        let pool_blocks = self.pools.values().map(|pool| pool.space.live_blocks());
        let pool_bytes = self.pools.values().map(|pool| pool.space.live_bytes());
        let (host, device): (Vec<_>, Vec<_>) = self
            .allocations
            .values()
            .filter(|allocation| allocation.freed.is_none() && !allocation.is_variable)
            .partition(|allocation| allocation.is_host());
        let device_bytes = device.iter().map(|allocation| allocation.size);
        let imported = || self.sharing.imported.values();
        let pointers = || imported().flat_map(|pool| pool.pointers.values());
        let imported_bytes: u64 = pointers().map(|block| block.size).sum();
        let explicit_pools = self.pools.values();
        let explicit_pools = explicit_pools.filter(|pool| !pool.is_default && !pool.is_destroyed);
        let explicit_contexts = self.contexts.values();
        let explicit_contexts = explicit_contexts.filter(|context| !context.is_primary);
        let [graphs, graph_execs, graph_allocations, captures] = self.live_graphs();
        let [physical_allocations, physical_bytes, reservations, mappings] = self.live_vmm();
        let [modules, libraries, images, links] = self.modules.live();
        Live {
            primary_retains: self.devices.iter().map(|device| device.retains).sum(),
            contexts: count(explicit_contexts.count()),
            streams: count(
                streams
                    .filter(|stream| stream.kind == Kind::Explicit && stream.life == Life::Usable)
                    .count(),
            ),
            events: count(self.events.len()),
            pools: count(explicit_pools.count() + imported().count()),
            allocations: count(device.len() + pool_blocks.sum::<usize>() + pointers().count()),
            bytes: device_bytes.sum::<u64>() + pool_bytes.sum::<u64>() + imported_bytes,
            host_allocations: count(host.len()),
            registrations: count(self.registrations.len()),
            graphs,
            graph_execs,
            graph_allocations,
            captures,
            physical_allocations,
            physical_bytes,
            reservations,
            mappings,
            annotated: self.vmm.annotations.live(),
            modules,
            libraries,
            images,
            links,
        }
    }
}
