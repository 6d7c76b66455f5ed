//! What must hold of every placement, and everything that can be asked.

use crate::driver::capabilities::Capability;
use crate::driver::device::HandleTypes;
use crate::placement::*;
use AccessPattern as A;
use Capability as C;
use PlacementKind as K;

pub(super) const PATTERNS: [A; 7] = [
    A::GpuOnly,
    A::GpuMostly,
    A::CpuWritesGpuReads,
    A::GpuWritesCpuReads,
    A::Shared,
    A::SharedInTurns,
    A::Streaming,
];
pub(super) const LIFETIMES: [Lifetime; 2] = [Lifetime::Short, Lifetime::Long];
pub(super) const EXPORTS: [Export; 6] = [
    Export::None,
    Export::PosixFd,
    Export::Win32,
    Export::Fabric,
    Export::DmaBuf,
    Export::Collective,
];

/// Invariant 1, written apart from the policy: whether the machine has what the placement takes.
fn is_supported(placement: &Placement, machine: &Topology) -> bool {
    let home = &machine.devices[placement.home];
    let all = |bits: &[Capability]| {
        let mut users = placement.devices().map(|user| &machine.devices[user]);
        users.all(|user| bits.iter().all(|bit| user.has(*bit)))
    };
    let peers = || placement.devices().filter(|user| *user != placement.home);
    let has_peers = peers().next().is_some();
    let reached = peers().all(|peer| machine.reaches(peer, placement.home))
        && (!has_peers || all(&[C::UnifiedAddressing]));
    let handle = match placement.export {
        Export::PosixFd => HandleTypes::POSIX_FILE_DESCRIPTOR,
        Export::Win32 => HandleTypes::WIN32,
        Export::Fabric => HandleTypes::FABRIC,
        _ => HandleTypes::empty(),
    };
    match (placement.kind, placement.export) {
        (K::Pool, Export::None | Export::PosixFd | Export::Win32 | Export::Fabric) => {
            reached
                && home.capabilities.memory_pools
                && home.capabilities.pool_handle_types.contains(handle)
        }
        // Nobody is given access to another device's plain memory.
        (K::Device, Export::None) => !has_peers,
        (K::Device, Export::DmaBuf) => !has_peers && home.capabilities.dma_buf,
        (K::Vmm, export) => {
            let exported = match export {
                Export::None | Export::Collective => true,
                Export::PosixFd => home.capabilities.posix_fd,
                Export::Win32 => home.capabilities.win32_handle,
                Export::Fabric => home.capabilities.fabric,
                Export::DmaBuf => {
                    home.capabilities.dma_buf && home.capabilities.gpu_direct_virtual_memory
                }
            };
            reached && home.capabilities.virtual_memory && exported
        }
        (K::VmmStriped, Export::None) => {
            let each = placement.devices().all(|from| {
                let mut others = placement.devices();
                others.all(|to| machine.reaches(from, to))
            });
            each && has_peers && all(&[C::VirtualMemory, C::UnifiedAddressing])
        }
        (K::PinnedHost { .. }, Export::None) => all(&[C::CanMapHostMemory]),
        (K::HostNuma { node, pool: true }, Export::None) => {
            home.host_numa_node == Some(node) && all(&[C::HostNumaMemoryPools])
        }
        (K::HostNuma { node, pool: false }, Export::None | Export::PosixFd) => {
            let exported = placement.export == Export::None || home.capabilities.posix_fd;
            home.host_numa_node == Some(node) && all(&[C::HostNumaVirtualMemory]) && exported
        }
        (K::HostVmm, Export::None) => all(&[C::HostVirtualMemory]),
        (K::HostPool, Export::None) => all(&[C::HostMemoryPools]),
        (K::Managed, Export::None) => {
            // The host may touch it only if no device of the machine forbids that, whether it uses it or not.
            let mut devices = machine.devices.iter();
            let concurrent = devices.all(|device| device.capabilities.concurrent_managed_access);
            all(&[C::ManagedMemory]) && concurrent && machine.others_concurrent_managed_access
        }
        _ => false,
    }
}

/// What must hold of every placement: all invariants but the second, which is about two machines, and the sixth,
/// which is about [words](super::words).
pub(super) fn check(
    request: &PlacementRequest,
    machine: &Topology,
    placement: &Placement,
) -> Result<(), String> {
    let fail = |what: &str| Err(format!("{what}: {request:?} gave {placement:?}"));
    if !is_supported(placement, machine) {
        return fail("1, a kind that the machine has not");
    }
    let parts = placement.stripes.len().max(1) as u64;
    let unit = placement.page_size * parts;
    if placement.size < request.bytes || !placement.size.is_multiple_of(unit) {
        return fail("3, the size is not in whole pages");
    }
    let class = placement.page_class.bytes();
    if placement.page_class != PageClass::of(placement.page_size)
        || !placement.size.is_multiple_of(class)
    {
        return fail("3, the class is not that of the page");
    }
    let again = PlacementRequest {
        bytes: placement.size,
        ..request.clone()
    };
    let again = again.place(machine);
    if again.map(|again| (again.kind, again.size)) != Ok((placement.kind, placement.size)) {
        return fail("4, its own size is placed elsewhere");
    }
    if request.place(machine).as_ref() != Ok(placement) {
        return fail("5, another answer to the same question");
    }
    let users = std::iter::once(&request.home).chain(&request.peers);
    if !users
        .copied()
        .all(|user| placement.grants.contains(&Accessor::Device(user)))
    {
        return fail("7, a device without access");
    }
    // What was asked for is there. Of mapped memory, what is spread over devices does not grow.
    let may_grow = matches!(
        placement.kind,
        K::Vmm | K::HostVmm | K::HostNuma { pool: false, .. }
    );
    let page_kept = request
        .page_size
        .is_none_or(|page| placement.page_size == page && placement.page_size_is_fixed);
    let host_wanted = match request.access {
        A::GpuOnly | A::GpuMostly => false,
        A::Shared | A::SharedInTurns => true,
        _ => request.export == Export::None,
    };
    let combining = K::PinnedHost {
        write_combining: true,
    };
    if request.growable && !may_grow
        || placement.growable != request.growable
        || request.write_combining != (placement.kind == combining)
        || !page_kept
        || placement.export != request.export
        || placement.zeroed != request.zeroed
        || placement.is_host_accessible() != host_wanted
    {
        return fail("a wish was dropped");
    }
    Ok(())
}
