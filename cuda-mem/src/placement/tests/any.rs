//! Any size on any machine.

use proptest::prelude::*;

use super::invariants::{EXPORTS, LIFETIMES, PATTERNS, check};
use super::words::check_text;
use super::{KIB, MIB, device};
use crate::arena::random::cases;
use crate::driver::capabilities::Capability;
use crate::driver::device::HandleTypes;
use crate::placement::*;

/// Sizes of every magnitude, and those beside a power of two.
fn size() -> impl Strategy<Value = u64> {
    let scaled = (any::<u64>(), 0u32..64).prop_map(|(number, shift)| number >> shift);
    let edge = (0u32..64, 0u64..3).prop_map(|(shift, off)| (1u64 << shift).wrapping_add(off) - 1);
    prop_oneof![scaled, edge]
}

fn record() -> impl Strategy<Value = TopologyDevice> {
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
    let bits = prop_oneof![any::<u64>(), Just(u64::MAX)];
    (bits, [page(), page(), page(), page()], room).prop_map(|(bits, pages, (total, free, node))| {
        let mut record = device();
        for (index, &capability) in Capability::ALL.iter().enumerate() {
            record.set(capability, bits >> index & 1 == 1);
        }
        let handle_types = (bits >> 32) as u32 & 0xfff;
        record.capabilities.pool_handle_types = HandleTypes::from_bits_retain(handle_types);
        [
            record.granularity,
            record.recommended_granularity,
            record.host_granularity,
            record.recommended_host_granularity,
        ] = pages;
        (record.total, record.free, record.host_numa_node) = (total, free, node);
        record.reaches = (0..3).filter(|to| bits >> (48 + to) & 1 == 1).collect();
        record
    })
}

/// The same machine with one thing more, in every way there is.
fn richer(machine: &Topology) -> Vec<Topology> {
    let mut all = Vec::new();
    for (index, device) in machine.devices.iter().enumerate() {
        let mut add = |change: &dyn Fn(&mut TopologyDevice)| {
            let mut richer = machine.clone();
            change(&mut richer.devices[index]);
            all.push(richer);
        };
        for &capability in Capability::ALL {
            if !device.has(capability) {
                add(&|device| device.set(capability, true));
            }
        }
        add(&|device| device.capabilities.pool_handle_types = HandleTypes::all());
        if device.host_numa_node.is_none() {
            add(&|device| device.host_numa_node = Some(0));
        }
        for to in (0..machine.devices.len()).filter(|to| !device.reaches.contains(to)) {
            add(&|device| device.reaches.push(to));
        }
    }
    let mut others = machine.clone();
    others.others_concurrent_managed_access = true;
    all.push(others);
    all
}

/// An error is true of the machine, and its text names what it is about.
fn check_error(
    request: &PlacementRequest,
    machine: &Topology,
    error: &PlaceError,
) -> Result<(), String> {
    let text = error.to_string();
    let require = |is_true: bool, words: &[String]| {
        let missing = words.iter().find(|words| !text.contains(words.as_str()));
        match (is_true, missing) {
            (true, None) => Ok(()),
            (false, _) => Err(format!("not true: {text}; {request:?} on {machine:?}")),
            (_, Some(words)) => Err(format!("{words:?} is not in: {text}")),
        }
    };
    let known = |device: usize| machine.devices.get(device);
    let named = |device: usize| format!("device {device}");
    match error {
        PlaceError::NoBytes => require(request.bytes == 0, &[]),
        PlaceError::TooLarge { asked } => require(*asked == request.bytes, &[asked.to_string()]),
        PlaceError::NoSuchDevice { device, devices } => {
            let asked_for = *device == request.home || request.peers.contains(device);
            let is_true = asked_for && *devices == machine.devices.len() && device >= devices;
            require(is_true, &[named(*device)])
        }
        PlaceError::Missing {
            device, capability, ..
        } => {
            let lacks = known(*device).is_some_and(|found| !found.has(*capability));
            require(lacks, &[named(*device), capability.name().to_owned()])
        }
        PlaceError::NoHostNode { device, .. } => {
            let lacks = known(*device).is_some_and(|found| found.host_numa_node.is_none());
            require(lacks, &[named(*device), "NUMA".to_owned()])
        }
        PlaceError::NoPeerAccess { from, to } => {
            let lacks = known(*from).is_some_and(|found| !found.reaches.contains(to));
            require(lacks, &[named(*from), named(*to)])
        }
        PlaceError::PageSize { asked, offered, .. } => {
            let is_true = request.page_size == Some(*asked) && !offered.contains(asked);
            require(is_true, &[asked.to_string()])
        }
        PlaceError::NoRoom {
            device,
            asked,
            capacity,
            striping,
            ..
        } => {
            if let Some(why) = striping {
                check_error(request, machine, why)?;
            }
            let is_true = capacity < asked && known(*device).is_some();
            require(is_true, &[named(*device)])
        }
        PlaceError::NoRoomForShare {
            device,
            share,
            capacity,
        } => {
            let is_true = capacity < share && known(*device).is_some();
            require(is_true, &[named(*device)])
        }
        PlaceError::Conflict { first, second, .. } => require(
            first != second,
            &[(*first).to_owned(), (*second).to_owned()],
        ),
    }
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
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let all = (size(), machines, who, what, page, flags);
    cases(
        5_000,
        &all,
        |(bytes, devices, (home, peers), (access, lifetime, export), page_size, flags)| {
            let mut machine = Topology::new(devices);
            machine.others_concurrent_managed_access = flags.3;
            let request = PlacementRequest {
                bytes,
                home,
                peers,
                access,
                lifetime,
                growable: flags.0,
                write_combining: flags.1,
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
                    prop_assert_eq!(request.place(&machine), Err(error.clone()));
                    check_error(&request, &machine, &error).map_err(TestCaseError::fail)
                }
            }
        },
    );
}
