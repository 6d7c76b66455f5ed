//! One request for each kind of memory, whatever the machine prefers.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::Stream;
use cuda_mem::placement::{
    AccessPattern, Lifetime, PlacedBuffer, Placement, PlacementKind, PlacementRequest, Topology,
};

use crate::environment::Environment;

/// What a test wants to know of a place, and the way to it.
pub(super) struct Way {
    pub(super) placement: Placement,
    pub(super) stream: Stream,
}

impl Way {
    pub(super) fn new(
        env: &Environment,
        machine: &Topology,
        request: &PlacementRequest,
    ) -> Result<Self> {
        let placement = request.place(machine)?;
        let home = placement.home_device().context("no home")?;
        ensure!(home.driver() == env.driver);
        Ok(Self {
            stream: home.primary_context()?.stream()?,
            placement,
        })
    }

    pub(super) fn allocate(&self, len: usize) -> Result<PlacedBuffer<u8>> {
        let (placement, stream) = (&self.placement, &self.stream);
        let placed = match len as u64 == placement.bytes {
            true => placement.allocate(stream),
            false => placement.allocate_len(stream, len),
        };
        placed.with_context(|| self.placement.to_string())
    }
}

type Change = fn(&mut Topology);

/// A request that leads to each kind on a machine that has been changed so, for memory of so many bytes. Kinds that
/// the machine has not are left out, by its own word.
pub(super) fn all(
    machine: &Topology,
    bytes: u64,
) -> Vec<(PlacementRequest, Topology, PlacementKind)> {
    use AccessPattern as A;
    use PlacementKind as K;
    let own = &machine.devices[0];
    let node = own.host_numa_node;
    let request = |access| PlacementRequest::bytes(bytes).access(access).zeroed();
    // Memory of a node comes in large pieces only.
    let large = |access| {
        PlacementRequest::bytes(bytes.max(2 << 20))
            .access(access)
            .zeroed()
    };
    let no_change: Change = |_| {};
    let no_pools: Change = |machine| machine.devices[0].capabilities.memory_pools = false;
    let no_node: Change = |machine| machine.devices[0].host_numa_node = None;
    let pinned = |write_combining| K::PinnedHost { write_combining };
    let of_node = |pool| node.map(|node| K::HostNuma { node, pool });
    let mapped = own
        .capabilities
        .host_numa_virtual_memory
        .then(|| of_node(false))
        .flatten();
    let pooled = own
        .capabilities
        .host_numa_memory_pools
        .then(|| of_node(true))
        .flatten();
    let managed = own.capabilities.managed_memory && own.capabilities.concurrent_managed_access;
    [
        (
            own.capabilities.memory_pools.then_some(K::Pool),
            request(A::GpuOnly),
            no_change,
        ),
        (Some(K::Device), request(A::GpuMostly), no_pools),
        (
            own.capabilities.virtual_memory.then_some(K::Vmm),
            request(A::GpuMostly).growable(),
            no_change,
        ),
        (
            Some(pinned(false)),
            request(A::GpuWritesCpuReads),
            no_change,
        ),
        (Some(pinned(false)), request(A::Shared), no_change),
        (
            Some(pinned(true)),
            request(A::CpuWritesGpuReads).write_combining(),
            no_change,
        ),
        (
            pooled,
            large(A::CpuWritesGpuReads).lifetime(Lifetime::Short),
            no_change,
        ),
        (mapped, request(A::CpuWritesGpuReads).growable(), no_change),
        (
            own.capabilities.host_virtual_memory.then_some(K::HostVmm),
            request(A::Shared).growable(),
            no_node,
        ),
        (
            own.capabilities.host_memory_pools.then_some(K::HostPool),
            request(A::Streaming).lifetime(Lifetime::Short),
            no_change,
        ),
        (
            managed.then_some(K::Managed),
            request(A::SharedInTurns),
            no_change,
        ),
    ]
    .into_iter()
    .filter_map(|(kind, request, change)| {
        let mut machine = machine.clone();
        change(&mut machine);
        Some((request, machine, kind?))
    })
    .collect()
}
