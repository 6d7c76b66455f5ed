//! The whole table, line by line and bit by bit, against what must hold whatever is asked.

use proptest::prelude::*;

use super::{KIB, MIB, device};
use crate::arena::random::cases;
use crate::device::HandleTypes;
use crate::placement::*;
use AccessPattern as A;
use Capability as C;
use PlacementKind as K;

/// What the home has in the sweep. Not a whole number of pages, as on real devices.
const TOTAL: u64 = 40 * MIB + 12_345;

const PATTERNS: [A; 6] = [
    A::GpuOnly,
    A::GpuMostly,
    A::CpuWritesGpuReads,
    A::GpuWritesCpuReads,
    A::Shared,
    A::Streaming,
];
const LIFETIMES: [Lifetime; 2] = [Lifetime::Short, Lifetime::Long];
const EXPORTS: [Export; 5] = [
    Export::None,
    Export::PosixFd,
    Export::Fabric,
    Export::LegacyIpc,
    Export::DmaBuf,
];

/// Something that a device, or two of them, can do or not.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bit {
    Can(Capability),
    PoolFd,
    PoolFabric,
    Node,
    /// The peer reaches the home.
    PeerToHome,
    HomeToPeer,
    /// All that is not named, in one.
    Rest,
}

/// The bits that may decide about a request; the others are switched together.
fn bits(export: Export, access: A) -> Vec<Bit> {
    use Bit::Can;
    let mut bits = match (export, access) {
        (Export::None, A::GpuOnly | A::GpuMostly) => {
            vec![
                Can(C::VirtualMemory),
                Can(C::MemoryPools),
                Can(C::UnifiedAddressing),
                Bit::PeerToHome,
                Bit::HomeToPeer,
            ]
        }
        (Export::None, _) => {
            let mut bits = vec![
                Can(C::CanMapHostMemory),
                Can(C::HostNumaVirtualMemory),
                Can(C::HostNumaPools),
                Can(C::HostPools),
                Can(C::HostVirtualMemory),
                Bit::Node,
            ];
            if access == A::Shared {
                bits.extend([Can(C::ManagedMemory), Can(C::ConcurrentManagedAccess)]);
            }
            bits
        }
        (Export::LegacyIpc, _) => vec![
            Can(C::LegacyIpc),
            Can(C::UnifiedAddressing),
            Bit::PeerToHome,
        ],
        (Export::DmaBuf, _) => vec![
            Can(C::DmaBuf),
            Can(C::VirtualMemory),
            Can(C::GpuDirectVirtualMemory),
            Can(C::UnifiedAddressing),
            Bit::PeerToHome,
        ],
        (Export::PosixFd | Export::Fabric, _) => vec![
            Can(C::VirtualMemory),
            Can(C::MemoryPools),
            Can(C::PosixFd),
            Can(C::Fabric),
            Bit::PoolFd,
            Bit::PoolFabric,
            Can(C::UnifiedAddressing),
            Bit::PeerToHome,
        ],
    };
    bits.push(Bit::Rest);
    bits
}

/// Whose bits are switched; the other device has all.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Whose {
    Both,
    Home,
    Peer,
}

/// A machine of two devices that have the bits of `mask`.
fn machine(bits: &[Bit], mask: usize, whose: Whose, free: Option<u64>) -> Machine {
    let is_on = |bit: Bit| {
        let named = bits.iter().position(|known| *known == bit);
        let index = named.or_else(|| bits.iter().position(|known| *known == Bit::Rest));
        index.is_none_or(|index| mask >> index & 1 == 1)
    };
    let mut switched = device();
    for &capability in Capability::ALL {
        switched.set(capability, is_on(Bit::Can(capability)));
    }
    if !is_on(Bit::Node) {
        switched.host_numa_node = None;
    }
    let mut handles = HandleTypes::empty();
    handles.set(HandleTypes::POSIX_FILE_DESCRIPTOR, is_on(Bit::PoolFd));
    handles.set(HandleTypes::FABRIC, is_on(Bit::PoolFabric));
    switched.pool_handle_types = handles;
    let mut devices = match whose {
        Whose::Both => [switched.clone(), switched],
        Whose::Home => [switched, device()],
        Whose::Peer => [device(), switched],
    };
    for (device, edge) in devices.iter_mut().zip([Bit::HomeToPeer, Bit::PeerToHome]) {
        device.total = TOTAL;
        device.reaches = Vec::new();
        if is_on(edge) {
            device.reaches = vec![usize::from(edge == Bit::HomeToPeer)];
        }
    }
    devices[0].free = free;
    Machine::new(devices)
}

/// Invariant 1, written apart from the policy: whether the machine has what the placement takes.
fn is_supported(placement: &Placement, machine: &Machine) -> bool {
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
        Export::Fabric => HandleTypes::FABRIC,
        _ => HandleTypes::empty(),
    };
    match (placement.kind, placement.export) {
        (K::Pool, Export::None | Export::PosixFd | Export::Fabric) => {
            reached && home.memory_pools && home.pool_handle_types.contains(handle)
        }
        (K::Device, Export::None) => reached,
        (K::Device, Export::LegacyIpc) => reached && home.legacy_ipc,
        (K::Device, Export::DmaBuf) => reached && home.dma_buf,
        (K::Vmm, export) => {
            let exported = match export {
                Export::None => true,
                Export::PosixFd => home.posix_fd,
                Export::Fabric => home.fabric,
                Export::DmaBuf => home.dma_buf && home.gpu_direct_virtual_memory,
                Export::LegacyIpc => false,
            };
            reached && home.virtual_memory && exported
        }
        (K::VmmStriped, Export::None) => {
            let each = placement.devices().all(|from| {
                let mut others = placement.devices();
                others.all(|to| machine.reaches(from, to))
            });
            each && has_peers && all(&[C::VirtualMemory, C::UnifiedAddressing])
        }
        (K::PinnedHost { .. }, Export::None) => all(&[C::CanMapHostMemory]),
        (K::HostNuma { node, pool }, Export::None) => {
            let bit = if pool {
                C::HostNumaPools
            } else {
                C::HostNumaVirtualMemory
            };
            home.host_numa_node == Some(node) && all(&[bit])
        }
        (K::HostVmm, Export::None) => all(&[C::HostVirtualMemory]),
        (K::HostPool, Export::None) => all(&[C::HostPools]),
        (K::Managed, Export::None) => all(&[C::ManagedMemory, C::ConcurrentManagedAccess]),
        _ => false,
    }
}

/// What must hold of every placement: all invariants but the second, which is about two machines.
fn check(
    request: &PlacementRequest,
    machine: &Machine,
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
        .all(|user| placement.grants.contains(&Grant::Device(user)))
    {
        return fail("7, a device without access");
    }
    // What was asked for is there.
    let is_mapped = matches!(
        placement.kind,
        K::Vmm | K::VmmStriped | K::HostVmm | K::HostNuma { pool: false, .. }
    );
    let page_kept = request
        .page_size
        .is_none_or(|page| placement.page_size == page && placement.page_size_is_fixed);
    let host_wanted =
        request.export == Export::None && !matches!(request.access, A::GpuOnly | A::GpuMostly);
    if request.growable && !is_mapped
        || !page_kept
        || placement.export != request.export
        || placement.zeroing.is_some() != request.zeroed
        || placement.is_host_accessible() != host_wanted
    {
        return fail("a wish was dropped");
    }
    Ok(())
}

/// The sixth: formatting is slow, so it is looked at once for each thing that can be said.
fn check_text(placement: &Placement) {
    let text = placement.to_string();
    let step = format!("(step {}: {})", placement.step, placement.why());
    assert!(text.ends_with(&step), "{text}");
}

/// All requests of one export and pattern.
fn requests(export: Export, access: A) -> Vec<PlacementRequest> {
    // Around the limits that may matter.
    let sizes: &[u64] = match (export, access) {
        (Export::None, A::GpuOnly | A::GpuMostly) => &[
            1,
            64 * KIB - 1,
            64 * KIB,
            2 * MIB - 1,
            2 * MIB,
            2 * MIB + 1,
            18 * MIB - 17,
            40 * MIB,
            40 * MIB + 1,
            79 * MIB,
            81 * MIB,
        ],
        (Export::None, _) => &[1, 64 * KIB - 1, 64 * KIB, 2 * MIB - 1, 2 * MIB, 81 * MIB],
        _ => &[1, 2 * MIB - 1, 40 * MIB, 40 * MIB + 1],
    };
    let pages = [None, Some(4 * KIB), Some(2 * MIB)];
    let once: &[bool] = match access {
        A::CpuWritesGpuReads => &[false, true],
        _ => &[false],
    };
    let mut requests = Vec::new();
    for &bytes in sizes {
        for page_size in pages {
            for lifetime in LIFETIMES {
                for growable in [false, true] {
                    for &written_once in once {
                        requests.push(PlacementRequest {
                            bytes,
                            home: 0,
                            peers: Vec::new(),
                            access,
                            lifetime,
                            growable,
                            written_once,
                            // Decides nothing else, so half of them will do.
                            zeroed: requests.len().count_ones() % 2 == 1,
                            export,
                            page_size,
                        });
                    }
                }
            }
        }
    }
    requests
}

fn sweep(export: Export, access: A, whose: Whose, free: Option<u64>) -> usize {
    let bits = bits(export, access);
    let machines: Vec<Machine> = (0..1 << bits.len())
        .map(|mask| machine(&bits, mask, whose, free))
        .collect();
    let mut seen = Vec::new();
    for mut request in requests(export, access) {
        if whose != Whose::Both {
            request.peers = vec![1];
        }
        let answers: Vec<_> = machines
            .iter()
            .map(|machine| request.place(machine))
            .collect();
        for (mask, answer) in answers.iter().enumerate() {
            let Ok(placement) = answer else {
                continue;
            };
            if let Err(broken) = check(&request, &machines[mask], placement) {
                panic!("{broken}\non {:?}", machines[mask]);
            }
            let said = (placement.step, placement.kind);
            if !seen.contains(&said) {
                check_text(placement);
                seen.push(said);
            }
            // The second: with one bit more it is still placed.
            for more in 0..bits.len() {
                let more = mask | 1 << more;
                assert!(
                    answers[more].is_ok(),
                    "{request:?} with {more:b} of {bits:?}: {answers:?}"
                );
            }
        }
    }
    seen.len()
}

/// One pattern with every export, so that the patterns run side by side.
fn sweep_all(access: A) {
    for export in EXPORTS {
        let mut said = sweep(export, access, Whose::Both, None);
        for whose in [Whose::Home, Whose::Peer] {
            said += sweep(export, access, whose, Some(3 * MIB));
        }
        let is_possible = export == Export::None || access != A::Shared;
        assert_eq!(said > 0, is_possible, "{export:?} and {access:?}");
    }
}

#[test]
fn the_table_holds_for_devices_only() {
    sweep_all(A::GpuOnly);
}

#[test]
fn the_table_holds_for_devices_mostly() {
    sweep_all(A::GpuMostly);
}

#[test]
fn the_table_holds_where_the_host_writes() {
    sweep_all(A::CpuWritesGpuReads);
}

#[test]
fn the_table_holds_where_the_host_reads() {
    sweep_all(A::GpuWritesCpuReads);
}

#[test]
fn the_table_holds_where_all_share() {
    sweep_all(A::Shared);
}

#[test]
fn the_table_holds_for_what_runs_through() {
    sweep_all(A::Streaming);
}

/// Sizes of every magnitude, and those beside a power of two.
fn size() -> impl Strategy<Value = u64> {
    let scaled = (any::<u64>(), 0u32..64).prop_map(|(number, shift)| number >> shift);
    let edge = (0u32..64, 0u64..3).prop_map(|(shift, off)| (1u64 << shift).wrapping_add(off) - 1);
    prop_oneof![scaled, edge]
}

fn record() -> impl Strategy<Value = DeviceCapabilities> {
    let page = || {
        prop_oneof![
            Just(2 * MIB),
            Just(64 * KIB),
            Just(512 * MIB),
            Just(4 * KIB),
            size()
        ]
    };
    let room = (
        size(),
        proptest::option::of(size()),
        proptest::option::of(0u32..3),
    );
    let bits = prop_oneof![any::<u32>(), Just(u32::MAX)];
    (bits, [page(), page(), page(), page()], room).prop_map(|(bits, pages, (total, free, node))| {
        let mut record = device();
        for (index, &capability) in Capability::ALL.iter().enumerate() {
            record.set(capability, bits >> index & 1 == 1);
        }
        record.pool_handle_types = HandleTypes::from_bits_retain(bits >> 20);
        [
            record.granularity,
            record.recommended_granularity,
            record.host_granularity,
            record.recommended_host_granularity,
        ] = pages;
        (record.total, record.free, record.host_numa_node) = (total, free, node);
        record.reaches = (0..3).filter(|to| bits >> (24 + to) & 1 == 1).collect();
        record
    })
}

/// The same machine with one thing more, in every way there is.
fn richer(machine: &Machine) -> Vec<Machine> {
    let mut all = Vec::new();
    for (index, device) in machine.devices.iter().enumerate() {
        let mut add = |change: &dyn Fn(&mut DeviceCapabilities)| {
            let mut richer = machine.clone();
            change(&mut richer.devices[index]);
            all.push(richer);
        };
        for &capability in Capability::ALL {
            if !device.has(capability) {
                add(&|device| device.set(capability, true));
            }
        }
        add(&|device| device.pool_handle_types = HandleTypes::all());
        if device.host_numa_node.is_none() {
            add(&|device| device.host_numa_node = Some(0));
        }
        for to in (0..machine.devices.len()).filter(|to| !device.reaches.contains(to)) {
            add(&|device| device.reaches.push(to));
        }
    }
    all
}

#[test]
fn any_size_on_any_machine_keeps_the_invariants() {
    let machines = proptest::collection::vec(record(), 1..4);
    let who = (0usize..3, proptest::collection::vec(0usize..3, 0..3));
    let what = (
        proptest::sample::select(&PATTERNS[..]),
        proptest::sample::select(&LIFETIMES[..]),
        proptest::sample::select(&EXPORTS[..]),
    );
    let page = prop_oneof![3 => Just(None), 1 => (0u32..64).prop_map(|shift| Some(1u64 << shift))];
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let all = (size(), machines, who, what, page, flags);
    cases(
        5_000,
        &all,
        |(bytes, devices, (home, peers), (access, lifetime, export), page_size, flags)| {
            let machine = Machine::new(devices);
            let request = PlacementRequest {
                bytes,
                home,
                peers,
                access,
                lifetime,
                growable: flags.0,
                written_once: flags.1,
                zeroed: flags.2,
                export,
                page_size,
            };
            match request.place(&machine) {
                Ok(placement) => {
                    check_text(&placement);
                    check(&request, &machine, &placement).map_err(TestCaseError::fail)?;
                    for richer in richer(&machine) {
                        let answer = request.place(&richer);
                        prop_assert!(answer.is_ok(), "{request:?} on {richer:?}: {answer:?}");
                    }
                    Ok(())
                }
                Err(error) => {
                    // An error says something, and says it of devices that are there.
                    prop_assert!(!error.to_string().is_empty());
                    Ok(())
                }
            }
        },
    );
}
