//! Every line of the decision table by name, the errors, and all of it against the invariants.

mod any;
mod invariants;
mod refusals;
mod sweep;
mod words;

use super::*;
use crate::driver::capabilities::Capability;
use crate::driver::device::HandleTypes;
use AccessPattern as A;
use PlacementKind as K;

pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

const PINNED: K = K::PinnedHost {
    write_combining: false,
};
const COMBINING: K = K::PinnedHost {
    write_combining: true,
};
const MAPPED_NODE: K = K::HostNuma {
    node: 1,
    pool: false,
};

/// A device that can do everything, with 80 GiB.
pub(super) fn device() -> TopologyDevice {
    let mut device = TopologyDevice::default();
    for &capability in Capability::ALL {
        device.set(capability, true);
    }
    device.capabilities.pool_handle_types =
        HandleTypes::POSIX_FILE_DESCRIPTOR | HandleTypes::WIN32 | HandleTypes::FABRIC;
    device.granularity = 2 * MIB;
    device.recommended_granularity = 2 * MIB;
    device.host_granularity = 2 * MIB;
    device.recommended_host_granularity = 2 * MIB;
    device.total = 80 * GIB;
    device.host_numa_node = Some(1);
    device
}

/// So many of them, each reaching each.
fn machine(devices: usize) -> Topology {
    let mut machine = Topology::new((0..devices).map(|_| device()));
    for (place, device) in machine.devices.iter_mut().enumerate() {
        device.reaches = (0..devices).filter(|other| *other != place).collect();
    }
    machine
}

/// The same for one device after a change.
fn one(change: impl FnOnce(&mut TopologyDevice)) -> Topology {
    let mut machine = machine(1);
    change(&mut machine.devices[0]);
    machine
}

fn without(capability: Capability) -> Topology {
    one(|device| device.set(capability, false))
}

fn bytes(bytes: u64) -> PlacementRequest {
    PlacementRequest::bytes(bytes)
}

#[track_caller]
fn expect(request: &PlacementRequest, machine: &Topology, step: &str, kind: K) -> Placement {
    let placement = request.place(machine).expect("a place");
    assert_eq!((placement.step.name(), placement.kind), (step, kind));
    placement
}

#[test]
fn step_1b_a_dma_buf_is_mapped_memory_where_that_may_leave_the_device() {
    let request = bytes(MIB).export(Export::DmaBuf);
    let placement = expect(&request, &machine(1), "1b", K::Vmm);
    assert!(placement.gpu_direct);
    for missing in [
        Capability::GpuDirectVirtualMemory,
        Capability::VirtualMemory,
    ] {
        let placement = expect(&request, &without(missing), "1b", K::Device);
        // Whole large pages, which the other driver sees nothing else in.
        assert_eq!((placement.gpu_direct, placement.size), (false, 2 * MIB));
    }
}

#[test]
fn step_1c_what_is_exported_for_a_short_time_comes_from_a_pool() {
    for export in [Export::PosixFd, Export::Win32, Export::Fabric] {
        let request = bytes(MIB).lifetime(Lifetime::Short).export(export);
        let placement = expect(&request, &machine(1), "1c", K::Pool);
        assert_eq!(placement.export, export);
    }
}

#[test]
fn step_1d_what_is_exported_otherwise_is_mapped() {
    for export in [Export::PosixFd, Export::Win32, Export::Fabric] {
        let long = bytes(MIB).export(export);
        let placement = expect(&long, &machine(1), "1d", K::Vmm);
        assert_eq!((placement.size, placement.page_size), (2 * MIB, 2 * MIB));
        let short = long.lifetime(Lifetime::Short);
        let no_handles = one(|device| device.capabilities.pool_handle_types = HandleTypes::empty());
        expect(&short, &no_handles, "1d", K::Vmm);
        expect(&short, &without(Capability::MemoryPools), "1d", K::Vmm);
        expect(&short.clone().growable(), &machine(1), "1d", K::Vmm);
        expect(&short.page_size(2 * MIB), &machine(1), "1d", K::Vmm);
    }
}

#[test]
fn step_1e_what_is_shared_with_the_host_and_exported_is_of_a_node() {
    for access in [A::Shared, A::SharedInTurns] {
        let request = bytes(MIB).access(access).export(Export::PosixFd);
        let placement = expect(&request, &machine(1), "1e", MAPPED_NODE);
        assert!(placement.is_host_accessible());
        assert_eq!(placement.size, 2 * MIB);
    }
}

#[test]
fn step_2a_what_goes_to_and_fro_is_managed_if_all_may_touch_it_at_once() {
    let request = bytes(MIB).access(A::SharedInTurns).peers([1]);
    let placement = expect(&request, &machine(2), "2a", K::Managed);
    assert!(placement.is_host_accessible());
    for device in [0, 1] {
        for missing in [
            Capability::ConcurrentManagedAccess,
            Capability::ManagedMemory,
        ] {
            let mut machine = machine(2);
            machine.devices[device].set(missing, false);
            expect(&request, &machine, "2a", PINNED);
        }
    }
    // Also a device that does not use the memory forbids the host to touch it, whether it is known or not.
    let mut mixed = machine(3);
    mixed.devices[2].capabilities.managed_memory = false;
    expect(&request, &mixed, "2a", K::Managed);
    mixed.devices[2].capabilities.concurrent_managed_access = false;
    expect(&request, &mixed, "2a", PINNED);
    let mut others = machine(2);
    others.others_concurrent_managed_access = false;
    expect(&request, &others, "2a", PINNED);
}

#[test]
fn step_2b_what_is_shared_at_any_time_stays_where_it_is() {
    for size in [1, MIB, GIB] {
        let request = bytes(size).access(A::Shared).peers([1]);
        let placement = expect(&request, &machine(2), "2b", PINNED);
        assert!(placement.is_host_accessible());
    }
}

#[test]
fn step_3a_much_that_the_host_writes_is_on_the_nearest_node() {
    let request = bytes(2 * MIB).access(A::CpuWritesGpuReads);
    expect(&request, &machine(1), "3a", MAPPED_NODE);
    let pool = K::HostNuma {
        node: 1,
        pool: true,
    };
    let short = request.clone().lifetime(Lifetime::Short);
    expect(&short, &machine(1), "3a", pool);
    let mapped_only = without(Capability::HostNumaMemoryPools);
    expect(&short, &mapped_only, "3a", MAPPED_NODE);
    let pools_only = without(Capability::HostNumaVirtualMemory);
    expect(&request, &pools_only, "3a", pool);
}

#[test]
fn step_3b_write_combining_memory_is_only_for_those_who_ask() {
    let no_node = one(|device| device.host_numa_node = None);
    for size in [1, 64 * KIB, 2 * MIB] {
        let request = bytes(size).access(A::CpuWritesGpuReads);
        expect(&request, &no_node, "3b", PINNED);
        let combining = request.write_combining();
        expect(&combining, &no_node, "3b", COMBINING);
        expect(&combining, &machine(1), "3b", COMBINING);
        let combining = combining.lifetime(Lifetime::Short);
        expect(&combining, &no_node, "3b", COMBINING);
    }
}

#[test]
fn step_3c_what_the_host_reads_is_cached() {
    for size in [1, 64 * KIB, 64 * MIB] {
        let request = bytes(size).access(A::GpuWritesCpuReads);
        let placement = expect(&request, &machine(1), "3c", PINNED);
        assert_eq!(placement.page_size, 4 * KIB);
    }
}

#[test]
fn steps_3b_and_3c_take_what_comes_and_goes_from_a_pool() {
    for (access, step) in [(A::CpuWritesGpuReads, "3b"), (A::GpuWritesCpuReads, "3c")] {
        let request = bytes(MIB)
            .access(access)
            .lifetime(Lifetime::Short)
            .peers([1]);
        let placement = expect(&request, &machine(2), step, K::HostPool);
        assert!(placement.is_host_accessible() && !placement.page_size_is_fixed);
        let own_pages = request.clone().page_size(4 * KIB);
        expect(&own_pages, &machine(2), step, PINNED);
        for device in [0, 1] {
            let mut machine = machine(2);
            machine.devices[device].capabilities.host_memory_pools = false;
            expect(&request, &machine, step, PINNED);
        }
    }
}

#[test]
fn step_3d_what_runs_through_stays_on_the_host() {
    let request = |size| bytes(size).access(A::Streaming);
    expect(&request(2 * MIB), &machine(1), "3d", MAPPED_NODE);
    expect(&request(MIB), &machine(1), "3d", PINNED);
    let short = request(2 * MIB).lifetime(Lifetime::Short);
    expect(&short, &machine(1), "3d", K::HostPool);
    expect(&short, &without(Capability::HostMemoryPools), "3d", PINNED);
}

#[test]
fn step_3e_host_memory_that_grows_or_has_pages_of_its_own_is_mapped() {
    for access in [
        A::Shared,
        A::CpuWritesGpuReads,
        A::GpuWritesCpuReads,
        A::Streaming,
    ] {
        let request = bytes(100).access(access);
        let grows = request.clone().growable();
        let placement = expect(&grows, &machine(1), "3e", MAPPED_NODE);
        assert_eq!(placement.size, 2 * MIB);
        let paged = request.clone().page_size(2 * MIB);
        expect(&paged, &machine(1), "3e", MAPPED_NODE);
        let no_node = one(|device| device.host_numa_node = None);
        expect(&grows, &no_node, "3e", K::HostVmm);
        // The host's own pages are what pinned memory has.
        let own = request.page_size(4 * KIB).place(&machine(1));
        assert_eq!(own.map(|placement| placement.kind), Ok(PINNED));
    }
}

#[test]
fn step_4a_device_memory_that_grows_is_mapped() {
    for access in [A::GpuOnly, A::GpuMostly] {
        for lifetime in [Lifetime::Short, Lifetime::Long] {
            let request = bytes(1).access(access).lifetime(lifetime).growable();
            expect(&request, &machine(1), "4a", K::Vmm);
        }
    }
}

#[test]
fn step_4b_what_one_device_cannot_hold_is_spread_over_peers() {
    let request = bytes(100 * GIB).peers([2, 1]);
    let placement = expect(&request, &machine(3), "4b", K::VmmStriped);
    assert_eq!(placement.stripes, [0, 1, 2]);
    let third = placement.size / 3;
    assert!(third.is_multiple_of(2 * MIB) && placement.size - 100 * GIB < 3 * 2 * MIB);
    // A home that is full at the moment.
    let mut busy = machine(2);
    busy.devices[0].free = Some(3 * GIB);
    let request = bytes(5 * GIB).peers([1]);
    let placement = expect(&request, &busy, "4b", K::VmmStriped);
    assert_eq!(placement.size, 5 * GIB);
    // What is spread does not grow, and what is not free may be later.
    expect(&request.clone().growable(), &busy, "4a", K::Vmm);
    // Where that cannot be done, the driver may still find room: a pool may hold what is not free.
    busy.devices[0].reaches.clear();
    expect(&request, &busy, "4d", K::Pool);
}

#[test]
fn step_4c_short_lived_memory_comes_from_a_pool() {
    for size in [1, 64 * KIB, 5 * MIB] {
        let request = bytes(size).lifetime(Lifetime::Short);
        expect(&request, &machine(1), "4c", K::Pool);
        let no_pools = without(Capability::MemoryPools);
        expect(&request, &no_pools, "4c", K::Device);
    }
}

#[test]
fn step_4d_long_lived_memory_comes_from_a_pool_too() {
    for size in [1, 64 * KIB, 2 * MIB - 64 * KIB, 2 * MIB + 1, 16 * MIB, GIB] {
        expect(&bytes(size), &machine(1), "4d", K::Pool);
        expect(&bytes(size).peers([1]), &machine(2), "4d", K::Pool);
        let no_pools = without(Capability::MemoryPools);
        expect(&bytes(size), &no_pools, "4d", K::Device);
    }
}

#[test]
fn step_5_page_classes_begin_at_64_kib_and_2_mib() {
    for (size, class, rounded) in [
        (1, PageClass::Small, 4 * KIB),
        (4 * KIB, PageClass::Small, 4 * KIB),
        (4 * KIB + 1, PageClass::Small, 8 * KIB),
        (64 * KIB - 1, PageClass::Small, 64 * KIB),
        (64 * KIB, PageClass::Big, 64 * KIB),
        (64 * KIB + 1, PageClass::Big, 128 * KIB),
        (2 * MIB - 1, PageClass::Big, 2 * MIB),
        (2 * MIB, PageClass::Huge, 2 * MIB),
        (7 * MIB + 17, PageClass::Huge, 8 * MIB),
    ] {
        let request = bytes(size).lifetime(Lifetime::Short);
        let placement = expect(&request, &machine(1), "4c", K::Pool);
        assert_eq!((placement.page_class, placement.size), (class, rounded));
        assert!(!placement.page_size_is_fixed);
    }
}

#[test]
fn step_5_a_size_of_pages_is_kept() {
    let machine = one(|device| device.recommended_granularity = 512 * MIB);
    for page in [2 * MIB, 512 * MIB] {
        let request = bytes(1).lifetime(Lifetime::Short).page_size(page);
        let placement = expect(&request, &machine, "5", K::Vmm);
        assert_eq!((placement.size, placement.page_size), (page, page));
        assert!(placement.page_size_is_fixed);
    }
}

#[test]
fn zeros_and_growth_are_kept_in_mind() {
    for access in [A::GpuOnly, A::Shared, A::GpuWritesCpuReads] {
        let plain = bytes(100)
            .access(access)
            .place(&machine(1))
            .expect("a place");
        assert!(!plain.zeroed && !plain.growable);
        let request = bytes(100).access(access).zeroed().growable();
        let placement = request.place(&machine(1)).expect("a place");
        assert!(placement.zeroed && placement.growable);
    }
}

#[test]
fn everybody_who_was_named_is_granted_access_once() {
    let request = bytes(100).home(2).peers([1, 0, 1, 2]);
    let placement = request.place(&machine(3)).expect("a place");
    assert_eq!(placement.grants, [0, 1, 2].map(Accessor::Device));
    let request = request.access(A::GpuWritesCpuReads);
    let placement = request.place(&machine(3)).expect("a place");
    assert!(placement.is_host_accessible());
    assert_eq!(placement.devices().collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_placement_is_a_sentence() {
    for (request, text) in [
        (
            bytes(64 * MIB).peers([1]).growable(),
            "mapped memory of device 0: 64.0 MiB, in pages of 2.0 MiB, used by device 0 and device 1 (step \
             4a: only mapped memory grows in its place)",
        ),
        (
            bytes(200 * GIB).peers([2, 1]),
            "mapped memory in equal parts of device 0, device 1 and device 2: 200.0 GiB, in pages of 2.0 \
             MiB, used by device 0, device 1 and device 2 (step 4b: one device lacks the room, and all \
             reach each other)",
        ),
        (
            bytes(MIB).lifetime(Lifetime::Short).export(Export::PosixFd),
            "memory of a pool of device 0: 1.0 MiB, pages as the driver likes, used by device 0, exported \
             as a file descriptor (step 1c: a pool is exported once, and what comes and goes is cheap in \
             it)",
        ),
        (
            bytes(100).access(A::GpuWritesCpuReads),
            "pinned memory of the host: 4.0 KiB, in pages of 4.0 KiB, used by the host and device 0 (step \
             3c: the host reads it through its caches)",
        ),
    ] {
        let placement = request.place(&machine(3)).expect("a place");
        assert_eq!(placement.to_string(), text);
    }
}

#[test]
fn a_record_passes_on_its_capabilities() {
    for &capability in Capability::ALL {
        let only = TopologyDevice::default().with(capability);
        for &other in Capability::ALL {
            assert_eq!(only.has(other), other == capability);
        }
        assert_eq!(only.without(capability), TopologyDevice::new(0));
    }
}

#[test]
fn elements_are_requested_by_their_bytes() {
    let request = PlacementRequest::elements::<u32>(1000);
    assert_eq!(request, bytes(4000));
    let placement = request.place(&machine(1)).expect("a place");
    assert_eq!((placement.bytes, placement.size), (4000, 4 * KIB));
    assert_eq!(placement.home_device(), None);
    let too_many = PlacementRequest::elements::<u64>(usize::MAX);
    let refused = too_many.place(&machine(1));
    assert!(matches!(refused, Err(PlaceError::TooLarge { .. })));
    for nothing in [
        PlacementRequest::elements::<u8>(0),
        PlacementRequest::elements::<()>(9),
    ] {
        assert_eq!(nothing.place(&machine(1)), Err(PlaceError::NoBytes));
    }
}

#[test]
fn records_without_sizes_of_pages_count_as_2_mib() {
    for odd in [0, 3, u64::MAX, 1 << 63] {
        let mut machine = one(|device| {
            device.granularity = odd;
            device.recommended_granularity = odd;
            device.host_granularity = odd;
            device.recommended_host_granularity = odd;
        });
        machine.host_page = odd;
        let placement = expect(&bytes(2 * MIB).growable(), &machine, "4a", K::Vmm);
        assert_eq!(placement.page_size, 2 * MIB);
        let request = bytes(1).access(A::GpuWritesCpuReads);
        assert_eq!(expect(&request, &machine, "3c", PINNED).size, 4 * KIB);
        let placement = expect(&request.growable(), &machine, "3e", MAPPED_NODE);
        assert_eq!(placement.page_size, 2 * MIB);
    }
}

#[test]
fn values_cross_threads() {
    fn is_plain<T: Send + Sync + Clone + 'static>() {}
    is_plain::<PlacementRequest>();
    is_plain::<Topology>();
    is_plain::<Placement>();
    is_plain::<PlaceError>();
}
