//! The whole table, line by line and bit by bit, against what must hold whatever is asked.

use std::collections::BTreeSet;

use super::invariants::{EXPORTS, LIFETIMES, check};
use super::words::{check_text, name_of};
use super::{KIB, MIB, device};
use crate::driver::capabilities::Capability;
use crate::driver::device::HandleTypes;
use crate::placement::*;
use AccessPattern as A;
use Capability as C;

/// What the home has in the sweep. Not a whole number of pages, as on real devices.
const TOTAL: u64 = 40 * MIB + 12_345;

/// Something that a device, or two of them, can do or not.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bit {
    Can(Capability),
    PoolFd,
    PoolWin32,
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
                Can(C::HostNumaMemoryPools),
                Can(C::HostMemoryPools),
                Can(C::HostVirtualMemory),
                Bit::Node,
            ];
            if access == A::SharedInTurns {
                bits.extend([Can(C::ManagedMemory), Can(C::ConcurrentManagedAccess)]);
            }
            bits
        }
        (_, A::Shared | A::SharedInTurns) => vec![
            Can(C::HostNumaVirtualMemory),
            Can(C::PosixFd),
            Can(C::VirtualMemory),
            Bit::Node,
        ],
        (Export::DmaBuf, _) => vec![
            Can(C::DmaBuf),
            Can(C::VirtualMemory),
            Can(C::GpuDirectVirtualMemory),
            Can(C::UnifiedAddressing),
            Bit::PeerToHome,
        ],
        (Export::Collective, _) => vec![
            Can(C::VirtualMemory),
            Can(C::UnifiedAddressing),
            Bit::PeerToHome,
        ],
        (Export::Win32, _) => vec![
            Can(C::VirtualMemory),
            Can(C::MemoryPools),
            Can(C::Win32Handle),
            Bit::PoolWin32,
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
fn machine(bits: &[Bit], mask: usize, whose: Whose, free: Option<u64>) -> Topology {
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
    handles.set(HandleTypes::WIN32, is_on(Bit::PoolWin32));
    handles.set(HandleTypes::FABRIC, is_on(Bit::PoolFabric));
    switched.capabilities.pool_handle_types = handles;
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
    Topology::new(devices)
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
    let combining: &[bool] = match (export, access) {
        (Export::None, A::CpuWritesGpuReads) => &[false, true],
        _ => &[false],
    };
    let mut requests = Vec::new();
    for &bytes in sizes {
        for page_size in pages {
            for lifetime in LIFETIMES {
                for growable in [false, true] {
                    for &write_combining in combining {
                        requests.push(PlacementRequest {
                            bytes,
                            home: 0,
                            peers: Vec::new(),
                            access,
                            lifetime,
                            growable,
                            write_combining,
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

/// Steps and kinds that were placed.
type Said = BTreeSet<(&'static str, &'static str)>;

fn sweep(export: Export, access: A, whose: Whose, free: Option<u64>, said: &mut Said) {
    let bits = bits(export, access);
    let machines: Vec<Topology> = (0..1 << bits.len())
        .map(|mask| machine(&bits, mask, whose, free))
        .collect();
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
            if said.insert((placement.step.name(), name_of(placement.kind))) {
                check_text(placement);
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
}

/// One pattern with every export, so that the patterns run side by side. These steps and kinds come of it, and no
/// other.
#[track_caller]
fn sweep_all(access: A, expected: &[(&'static str, &'static str)]) {
    let mut said = Said::new();
    for export in EXPORTS {
        sweep(export, access, Whose::Both, None, &mut said);
        for whose in [Whose::Home, Whose::Peer] {
            sweep(export, access, whose, Some(3 * MIB), &mut said);
        }
    }
    assert_eq!(said, Said::from_iter(expected.iter().copied()));
}

/// Of memory of devices that is exported.
const EXPORTED: [(&str, &str); 5] = [
    ("1b", "Device"),
    ("1b", "Vmm"),
    ("1c", "Pool"),
    ("1d", "Vmm"),
    ("1f", "Vmm"),
];

/// Of memory of the host that is mapped because it grows or for its pages.
const MAPPED: [(&str, &str); 2] = [("3e", "HostNuma, mapped"), ("3e", "HostVmm")];

const OF_DEVICES: [(&str, &str); 9] = [
    ("4a", "Vmm"),
    ("4b", "VmmStriped"),
    ("4c", "Pool"),
    ("4c", "Device"),
    ("4c", "Vmm"),
    ("4d", "Pool"),
    ("4d", "Device"),
    ("4d", "Vmm"),
    ("5", "Vmm"),
];

#[test]
fn the_table_holds_for_devices_only() {
    sweep_all(A::GpuOnly, &[&EXPORTED[..], &OF_DEVICES].concat());
}

#[test]
fn the_table_holds_for_devices_mostly() {
    sweep_all(A::GpuMostly, &[&EXPORTED[..], &OF_DEVICES].concat());
}

#[test]
fn the_table_holds_where_the_host_writes() {
    let own = [
        ("3a", "HostNuma, mapped"),
        ("3a", "HostNuma, pool"),
        ("3b", "HostPool"),
        ("3b", "PinnedHost"),
        ("3b", "PinnedHost, write-combining"),
    ];
    let all = [&EXPORTED[..], &MAPPED, &own].concat();
    sweep_all(A::CpuWritesGpuReads, &all);
}

#[test]
fn the_table_holds_where_the_host_reads() {
    let own = [("3c", "HostPool"), ("3c", "PinnedHost")];
    sweep_all(
        A::GpuWritesCpuReads,
        &[&EXPORTED[..], &MAPPED, &own].concat(),
    );
}

#[test]
fn the_table_holds_where_all_share() {
    let own = [("1e", "HostNuma, mapped"), ("2b", "PinnedHost")];
    sweep_all(A::Shared, &[&MAPPED[..], &own].concat());
}

#[test]
fn the_table_holds_where_all_share_in_turns() {
    let own = [
        ("1e", "HostNuma, mapped"),
        ("2a", "Managed"),
        ("2a", "PinnedHost"),
    ];
    sweep_all(A::SharedInTurns, &[&MAPPED[..], &own].concat());
}

#[test]
fn the_table_holds_for_what_runs_through() {
    let own = [
        ("3d", "HostNuma, mapped"),
        ("3d", "HostNuma, pool"),
        ("3d", "HostPool"),
        ("3d", "PinnedHost"),
    ];
    sweep_all(A::Streaming, &[&EXPORTED[..], &MAPPED, &own].concat());
}
