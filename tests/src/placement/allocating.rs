//! What was decided is carried out.

use anyhow::{Context as _, Result, ensure};
use bytemuck::Pod;
use cuda_mem::ErrorKind;
use cuda_mem::driver::Location;
use cuda_mem::kernel::Launch;
use cuda_mem::mapped::{GrowableBuffer, MappedMemory};
use cuda_mem::placement::{
    AccessPattern, PlacedBuffer, PlacementKind, PlacementRequest, Topology, TopologyDevice,
};

use super::kinds::{self, Way};
use super::spread::places;
use crate::environment::{Backend, Environment};
use crate::modules::kernel;
use crate::vmm::{SIZES, pattern};

pub(super) fn alone(env: &Environment) -> Result<Topology> {
    Ok(Topology::gather(&[env.device()?])?)
}

/// The kinds that this machine has, as far as it must have them.
fn ensure_all(env: &Environment, seen: &[PlacementKind]) -> Result<()> {
    println!("{seen:?}");
    if env.backend == Backend::Sim {
        ensure!(seen.len() == kinds_here(env)?, "not all kinds: {seen:?}");
    }
    Ok(())
}

/// How many kinds the simulated machine has with one device. Without NUMA nodes and managed memory that host and device use
/// at the same time, some are missing.
fn kinds_here(env: &Environment) -> Result<usize> {
    let own = env.device()?.capabilities()?;
    let some = [
        own.host_numa_virtual_memory,
        own.host_numa_memory_pools,
        own.concurrent_managed_access,
    ];
    Ok(7 + some.into_iter().filter(|has| *has).count())
}

#[apply(case)]
fn every_kind_and_size_keeps_its_bytes(env: &Environment) -> Result<()> {
    env.need(13, 0)?;
    let machine = alone(env)?;
    let mut seen = Vec::new();
    for size in SIZES {
        let expected = pattern(size);
        for (request, machine, kind) in kinds::all(&machine, size as u64) {
            let way = Way::new(env, &machine, &request)?;
            let what = format!("{size} bytes, {}", way.placement);
            ensure!(way.placement.kind == kind, "{what}: {kind:?} was meant");
            let mut placed = way.allocate(size)?;
            ensure!(placed.to_vec()? == vec![0; size], "{what}: not zero");
            placed.as_mut_slice().copy_from(&expected)?;
            ensure!(placed.to_vec()? == expected, "{what}");
            let other = way.stream.context().stream()?;
            placed.as_mut_slice().on(&other)?.fill(3)?;
            if way.placement.is_host_accessible() {
                ensure!(placed.host()? == vec![3; size], "{what}: the host sees");
                placed.host_mut()?.copy_from_slice(&expected);
            } else {
                let error = placed.host().expect_err("the host has no access");
                ensure!(error.kind() == ErrorKind::NotSupported, "{what}: {error}");
                ensure!(placed.host_mut().is_err(), "{what}");
                placed.as_mut_slice().copy_from(&expected)?;
            }
            let mut copy = way.allocate(size)?;
            copy.as_mut_slice().copy_from_device(&placed)?;
            ensure!(copy.to_vec()? == expected, "{what}: copied");
            if let Ok(buffer) = placed.into_growable() {
                mapped_and_moved(env, buffer, &expected).context(what)?;
            }
            if !seen.contains(&kind) {
                seen.push(kind);
            }
        }
    }
    ensure_all(env, &seen)
}

/// Bytes and address stay over unmapping and mapping, and on the way to another place and back.
fn mapped_and_moved(env: &Environment, buffer: GrowableBuffer<u8>, expected: &[u8]) -> Result<()> {
    let stream = buffer.stream().clone();
    let address = buffer.as_raw();
    let mut memory = buffer.into_memory()?;
    for _ in 0..2 {
        memory.unmap()?;
        memory.unmap()?;
        memory.map()?;
        memory.map()?;
        ensure!(memory.address() == address);
    }
    let home = memory.parts().next().context("no memory")?.location();
    let mut places = vec![Location::Device(env.device()?), home];
    if env.has_node()? {
        places.insert(0, Location::HostNuma(0));
    }
    for place in places {
        memory.move_to(place, &stream)?;
        ensure!(memory.parts().all(|part| part.location() == place));
        ensure!(memory.address() == address);
    }
    let mut buffer = memory.into_buffer::<u8>(&stream, expected.len())?;
    ensure!(buffer.to_vec()? == expected, "mapped again and moved");
    if buffer.device().is_none() {
        ensure!(buffer.host()? == expected, "the host sees it again");
        buffer.move_memory_to(Location::Device(env.device()?))?;
        let error = buffer.host().expect_err("it is of the device now");
        ensure!(error.kind() == ErrorKind::NotSupported, "{error}");
    }
    Ok(())
}

#[apply(case)]
fn every_kind_is_an_argument_of_kernels(env: &Environment) -> Result<()> {
    const LEN: usize = 1000;
    let machine = alone(env)?;
    let [fill, copy] = ["fill", "copy"].map(|name| kernel(&env.context()?, name));
    let (fill, copy) = (fill?, copy?);
    let (len, launch) = (LEN as u64, Launch::over(LEN, 256));
    for (request, machine, _) in kinds::all(&machine, 4 * LEN as u64) {
        let way = Way::new(env, &machine, &request)?;
        let allocate = || way.placement.allocate_len::<u32>(&way.stream, LEN);
        let (mut placed, mut other) = (allocate()?, allocate()?);
        let stream = way.stream.context().stream()?;
        // SAFETY: `fill` takes an address of so many words, a word, and their number.
        unsafe { fill.launch(&stream, launch, (&mut placed, 7_u32, len)) }?;
        // SAFETY: `copy` takes two addresses of so many words, and their number.
        unsafe { copy.launch(&way.stream, launch, (&mut other, &placed, len)) }?;
        ensure!(other.to_vec()? == [7; LEN], "{}", way.placement);
        if way.placement.is_host_accessible() {
            // SAFETY: as above.
            unsafe { fill.launch(&stream, launch, (&mut other, 8_u32, len)) }?;
            ensure!(other.host()? == [8; LEN], "{}", way.placement);
        }
    }
    Ok(())
}

#[apply(case)]
fn memory_that_is_to_grow_grows(env: &Environment) -> Result<()> {
    env.need(13, 0)?;
    const MIB: usize = 1 << 20;
    let machine = alone(env)?;
    let mut grown = Vec::new();
    for (request, machine, kind) in kinds::all(&machine, 1000) {
        let way = Way::new(env, &machine, &request)?;
        if !way.placement.growable {
            ensure!(way.allocate(1000)?.growable().is_none() || kind == PlacementKind::Vmm);
            continue;
        }
        let mut placed = way.allocate(1000)?;
        let address = placed.as_raw();
        let expected = pattern(20 * MIB);
        placed.as_mut_slice().copy_from(&expected[..1000])?;
        let buffer = placed.growable().context("it cannot grow")?;
        buffer
            .resize_zeroed(20 * MIB)
            .with_context(|| format!("{kind:?}: {buffer:?}"))?;
        let (old, new) = expected.split_at(1000);
        let seen = placed.to_vec()?;
        ensure!(
            placed.as_raw() == address && seen[..1000] == *old,
            "{kind:?}"
        );
        ensure!(seen[1000..].iter().all(|byte| *byte == 0), "{kind:?}");
        if way.placement.is_host_accessible() {
            placed.host_mut()?[1000..].copy_from_slice(new);
        } else {
            placed.as_mut_slice().copy_from(&expected)?;
        }
        ensure!(placed.to_vec()? == expected, "{kind:?}");
        grown.push(kind);
    }
    println!("{grown:?}");
    if env.backend == Backend::Sim {
        let has_nodes = env.device()?.capabilities()?.host_numa_virtual_memory;
        ensure!(grown.len() == 2 + usize::from(has_nodes), "{grown:?}");
    }
    Ok(())
}

#[apply(case)]
fn pages_have_the_size_that_was_placed(env: &Environment) -> Result<()> {
    let mut machine = alone(env)?;
    let least = machine.devices[0].granularity;
    if !machine.devices[0].capabilities.virtual_memory {
        return Err(crate::environment::Skip("no virtual memory".to_owned()).into());
    }
    // A device that recommends larger pages than it needs, as far as the policy knows.
    machine.devices[0].recommended_granularity = 8 * least;
    let request = PlacementRequest::bytes(1);
    for (request, page) in [
        (request.clone().page_size(least), least),
        (request.clone().page_size(8 * least), 8 * least),
        (request.clone().growable(), 8 * least),
    ] {
        let way = Way::new(env, &machine, &request)?;
        ensure!((way.placement.page_size, way.placement.size) == (page, page));
        let placed = way.allocate(1)?;
        let buffer = placed.into_growable().ok().context("it is not mapped")?;
        let memory = buffer.into_memory()?;
        ensure!((memory.granularity(), memory.size_bytes()) == (page, page));
    }
    Ok(())
}

fn refused<T: Pod>(answer: cuda_mem::Result<PlacedBuffer<T>>, words: &str) -> Result<()> {
    let error = answer.err().context("it was allocated")?;
    ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    ensure!(error.to_string().contains(words), "{error}");
    Ok(())
}

#[apply(case)]
fn a_topology_written_by_hand_allocates_nothing(env: &Environment) -> Result<()> {
    let (stream, machine) = (env.stream()?, alone(env)?);
    let gathered = &machine.devices[0];
    let mut record = TopologyDevice::new(gathered.total);
    record.capabilities = gathered.capabilities;
    record.granularity = gathered.granularity;
    record.recommended_granularity = gathered.recommended_granularity;
    record.host_granularity = gathered.host_granularity;
    record.recommended_host_granularity = gathered.recommended_host_granularity;
    record.host_numa_node = gathered.host_numa_node;
    let mut by_hand = machine.clone();
    by_hand.devices = vec![record];
    ensure!(by_hand != machine, "only one of them knows its device");
    for (request, machine, _) in kinds::all(&machine, 1000) {
        let mut by_hand = by_hand.clone();
        by_hand.devices[0].capabilities = machine.devices[0].capabilities;
        by_hand.devices[0].host_numa_node = machine.devices[0].host_numa_node;
        let placement = request.place(&by_hand)?;
        ensure!(placement == request.place(&machine)?, "{placement}");
        ensure!(placement.home_device().is_none());
        let gather = "Topology::gather";
        refused(placement.allocate_len::<u8>(&stream, 1000), gather)?;
        refused(placement.allocate::<u8>(&stream), gather)?;
    }
    Ok(())
}

/// A record keeps its device wherever it is moved to.
#[apply(case_of_two)]
fn a_moved_record_keeps_its_device(env: &Environment) -> Result<()> {
    let devices = env.driver.devices()?[..2].to_vec();
    let mut machine = Topology::gather(&devices)?;
    machine.devices.remove(0);
    let placement = PlacementRequest::bytes(1000).place(&machine)?;
    ensure!(placement.home_device() == Some(devices[1]));
    let (stream, other) = (
        devices[1].primary_context()?.stream()?,
        devices[0].primary_context()?.stream()?,
    );
    ensure!(placement.allocate::<u8>(&stream)?.device() == Some(devices[1]));
    refused(placement.allocate::<u8>(&other), "home device")
}

#[apply(case)]
fn what_cannot_be_carried_out_is_told(env: &Environment) -> Result<()> {
    env.need(13, 0)?;
    let machine = alone(env)?;
    let stream = env.stream()?;
    let placement = PlacementRequest::bytes(1000).place(&machine)?;
    for len in [5000, usize::MAX] {
        refused(placement.allocate_len::<u8>(&stream, len), "")?;
    }
    // Of 7, 1000 bytes hold no whole number, and of nothing any.
    refused(placement.allocate::<[u8; 7]>(&stream), "1000 bytes")?;
    refused(placement.allocate::<[u8; 0]>(&stream), "allocate_len")?;
    ensure!(placement.allocate::<[u8; 8]>(&stream)?.len() == 125);
    ensure!(placement.allocate_len::<u8>(&stream, 1001)?.len() == 1001);
    // A buffer of the host's memory that was exchanged with one of a device is not read.
    let growable = PlacementRequest::bytes(1000)
        .access(AccessPattern::Shared)
        .growable();
    let way = Way::new(env, &machine, &growable)?;
    let mut placed = way.allocate(1000)?;
    let mut other = MappedMemory::builder(&env.device()?)
        .build(1)?
        .into_buffer::<u8>(&stream, 1000)?;
    std::mem::swap(placed.growable().context("mapped")?, &mut other);
    let error = placed.host().expect_err("it is of the device now");
    ensure!(error.kind() == ErrorKind::NotSupported, "{error}");
    std::mem::swap(placed.growable().context("mapped")?, &mut other);
    placed.host()?;
    Ok(())
}

/// Both devices and, where it may, the host use memory of each kind, from each of them as its home.
#[apply(case_of_two)]
fn both_devices_use_what_was_placed_for_both(env: &Environment) -> Result<()> {
    const LEN: usize = 5 << 20;
    let devices = env.driver.devices()?[..2].to_vec();
    let machine = Topology::gather(&devices)?;
    let expected = pattern(LEN);
    let mut seen = Vec::new();
    for home in [0, 1] {
        let peer = 1 - home;
        let mut ways = kinds::all(&machine, LEN as u64);
        // Without pools it is mapped, since plain memory is its own device's.
        for (_, machine, _) in &mut ways {
            let own = machine.devices[0].clone();
            machine.devices[1].capabilities.memory_pools = own.capabilities.memory_pools;
            if own.host_numa_node.is_none() {
                machine.devices[1].host_numa_node = None;
            }
        }
        let mut full = machine.clone();
        full.devices[home].free = Some(4 << 20);
        let spread = PlacementRequest::bytes(LEN as u64).zeroed();
        ways.push((spread, full, PlacementKind::VmmStriped));
        for (request, machine, kind) in ways {
            let request = request.home(home).peers([peer]);
            let way = Way::new(env, &machine, &request)?;
            let what = way.placement.to_string();
            let instead = match kind {
                PlacementKind::Device => PlacementKind::Vmm,
                kind => kind,
            };
            ensure!(way.placement.kind == instead, "{what}: {kind:?} was meant");
            let mut placed = way.allocate(LEN)?;
            let there = devices[peer].primary_context()?.stream()?;
            placed.as_mut_slice().on(&there)?.fill(3)?;
            ensure!(placed.to_vec()? == vec![3; LEN], "{what}");
            placed.as_mut_slice().on(&there)?.copy_from(&expected)?;
            if way.placement.is_host_accessible() {
                ensure!(placed.host()? == expected, "{what}: the host sees");
            }
            let mut seen_there = vec![0; LEN];
            placed.read_on(&there)?.copy_to(&mut seen_there)?;
            ensure!(seen_there == expected, "{what}: the peer sees");
            let parts = placed.growable().map(|buffer| buffer.max_len());
            if let (PlacementKind::VmmStriped, Some(room)) = (kind, parts) {
                ensure!(room >= LEN);
                let places = places(placed)?;
                ensure!(
                    places == [0, 1].map(|at| Location::Device(devices[at])),
                    "{what}"
                );
            }
            if !seen.contains(&kind) {
                seen.push(kind);
            }
        }
    }
    println!("{seen:?}");
    if env.backend == Backend::Sim {
        ensure!(
            seen.len() == kinds_here(env)? + 1,
            "not all kinds: {seen:?}"
        );
    }
    Ok(())
}
