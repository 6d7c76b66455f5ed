//! The sixth invariant: what is said of each line of the table, written down apart from the policy. And how
//! refusals are printed.

use crate::driver::capabilities::Capability;
use crate::placement::*;
use PlacementKind as K;

/// A kind without its numbers.
pub(super) fn name_of(kind: PlacementKind) -> &'static str {
    match kind {
        K::Pool => "Pool",
        K::Device => "Device",
        K::Vmm => "Vmm",
        K::VmmStriped => "VmmStriped",
        K::PinnedHost {
            write_combining: true,
        } => "PinnedHost, write-combining",
        K::PinnedHost { .. } => "PinnedHost",
        K::HostNuma { pool: true, .. } => "HostNuma, pool",
        K::HostNuma { .. } => "HostNuma, mapped",
        K::HostVmm => "HostVmm",
        K::HostPool => "HostPool",
        K::Managed => "Managed",
    }
}

/// Line by line, and kind by kind where a line has several.
const WORDS: [(PlacementStep, &str, &str, &str); 31] = {
    use PlacementStep as S;
    let on_bus = "mapped memory may be used by other devices of the bus here";
    let plain_on_bus = "only memory of cuMemAlloc may be used by other devices of the bus here";
    let mapped_host = "only mapped memory grows in its place, or keeps a size of pages";
    let no_pools_for_peers = "there are no pools, and plain memory has no access for other devices";
    let crosses = "it crosses the bus once either way, from the node that is nearest";
    [
        (S::DmaBuf, "1b", "Vmm", on_bus),
        (S::DmaBuf, "1b", "Device", plain_on_bus),
        (
            S::ExportedPool,
            "1c",
            "Pool",
            "a pool is exported once, and what comes and goes is cheap in it",
        ),
        (
            S::ExportedVmm,
            "1d",
            "Vmm",
            "mapped memory is exported on its own, with a handle of its own",
        ),
        (
            S::ExportedHost,
            "1e",
            "HostNuma, mapped",
            "mapped memory of a node is exported with a handle of its own, and all reach it",
        ),
        (
            S::Collective,
            "1f",
            "Vmm",
            "libraries for communication take mapped memory, one piece of it under any range",
        ),
        (
            S::SharedInTurns,
            "2a",
            "Managed",
            "managed memory moves to the side whose turn it is",
        ),
        (
            S::SharedInTurns,
            "2a",
            "PinnedHost",
            "pinned memory is in reach of all, and not all devices share managed memory with the host",
        ),
        (
            S::Shared,
            "2b",
            "PinnedHost",
            "pinned memory is in reach of all, and moves for nobody",
        ),
        (
            S::HostNuma,
            "3a",
            "HostNuma, mapped",
            "devices read much from the node that is nearest to them",
        ),
        (
            S::HostNuma,
            "3a",
            "HostNuma, pool",
            "devices read much from the node that is nearest to them",
        ),
        (
            S::WrittenByHost,
            "3b",
            "PinnedHost",
            "devices read it where the host writes it, through its caches",
        ),
        (
            S::WrittenByHost,
            "3b",
            "PinnedHost, write-combining",
            "the host only writes it, past its caches",
        ),
        (
            S::WrittenByHost,
            "3b",
            "HostPool",
            "devices read it where the host writes it, and it comes and goes without waiting",
        ),
        (
            S::ReadByHost,
            "3c",
            "HostPool",
            "the host reads it through its caches, and it comes and goes without waiting",
        ),
        (
            S::ReadByHost,
            "3c",
            "PinnedHost",
            "the host reads it through its caches",
        ),
        (S::Streaming, "3d", "HostNuma, mapped", crosses),
        (S::Streaming, "3d", "HostNuma, pool", crosses),
        (
            S::Streaming,
            "3d",
            "HostPool",
            "it crosses the bus once either way, and comes and goes without waiting",
        ),
        (
            S::Streaming,
            "3d",
            "PinnedHost",
            "it crosses the bus once either way",
        ),
        (S::MappedHost, "3e", "HostNuma, mapped", mapped_host),
        (S::MappedHost, "3e", "HostVmm", mapped_host),
        (
            S::Growable,
            "4a",
            "Vmm",
            "only mapped memory grows in its place",
        ),
        (
            S::Striped,
            "4b",
            "VmmStriped",
            "one device lacks the room, and all reach each other",
        ),
        (
            S::ShortLived,
            "4c",
            "Pool",
            "what comes and goes does so in the order of streams",
        ),
        (
            S::ShortLived,
            "4c",
            "Device",
            "short-lived memory of a device, and there are no pools",
        ),
        (S::ShortLived, "4c", "Vmm", no_pools_for_peers),
        (
            S::LongLived,
            "4d",
            "Pool",
            "memory of a pool is as fast as any of the device, and the quickest to make",
        ),
        (
            S::LongLived,
            "4d",
            "Device",
            "memory of a device that stays, and there are no pools",
        ),
        (S::LongLived, "4d", "Vmm", no_pools_for_peers),
        (
            S::AskedPages,
            "5",
            "Vmm",
            "only mapped memory keeps a size of pages",
        ),
    ]
};

/// The text ends with the name of the step and its reason, as they stand above.
pub(super) fn check_text(placement: &Placement) {
    let kind = name_of(placement.kind);
    let line = WORDS
        .iter()
        .find(|(step, _, of, _)| *step == placement.step && *of == kind);
    let Some((_, name, _, why)) = line else {
        panic!("nothing is known of {kind} by step {:?}", placement.step);
    };
    let text = placement.to_string();
    assert!(text.ends_with(&format!(" (step {name}: {why})")), "{text}");
}

#[test]
fn a_refusal_is_printed_as_its_message_and_on_request_as_its_structure() {
    let (device, purpose, remedy) = (1, "a purpose", "a remedy");
    let errors = [
        ("NoBytes", PlaceError::NoBytes),
        ("TooLarge", PlaceError::TooLarge { asked: 1 << 60 }),
        (
            "NoSuchDevice",
            PlaceError::NoSuchDevice { device, devices: 1 },
        ),
        (
            "Missing",
            PlaceError::Missing {
                device,
                capability: Capability::Fabric,
                purpose,
                remedy,
            },
        ),
        (
            "NoHostNode",
            PlaceError::NoHostNode {
                device,
                purpose,
                remedy,
            },
        ),
        ("NoPeerAccess", PlaceError::NoPeerAccess { from: 1, to: 0 }),
        (
            "PageSize",
            PlaceError::PageSize {
                asked: 3,
                offered: vec![super::MIB],
                place: "a place",
            },
        ),
        (
            "NoRoom",
            PlaceError::NoRoom {
                device,
                asked: 2,
                capacity: 1,
                striping: Some(Box::new(PlaceError::NoRoomForShare {
                    device,
                    share: 2,
                    capacity: 1,
                })),
                remedy: remedy.to_owned(),
            },
        ),
        (
            "NoRoomForShare",
            PlaceError::NoRoomForShare {
                device,
                share: 2,
                capacity: 1,
            },
        ),
        (
            "Conflict",
            PlaceError::Conflict {
                first: "a",
                second: "b",
                why: "so",
                remedy,
            },
        ),
    ];
    for (name, error) in errors {
        assert_eq!(format!("{error:?}"), error.to_string());
        let structure = format!("{error:#?}");
        assert!(structure.starts_with(name), "{structure}");
        let chain = format!("{:#}", anyhow::Error::new(error.clone()));
        assert_eq!(chain, error.to_string());
    }
}
