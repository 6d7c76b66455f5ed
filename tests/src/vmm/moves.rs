//! Memory that is moved from place to place.

use anyhow::{Result, ensure};
use cuda_mem::driver::Location;
use cuda_mem::mapped::{GrowableBuffer, MappedMemory, MigrationStats};
use cuda_mem::{Access, Device, ErrorKind, Stream};

use super::{SIZES, pattern, places};
use crate::environment::Environment;

/// The bytes are looked at after everything that is done.
fn every_size_goes(
    stream: &Stream,
    users: &[Device],
    from: Location,
    path: &[Location],
) -> Result<()> {
    for size in SIZES {
        let memory = MappedMemory::builder_at(stream.device().driver(), from)
            .accessible_from(users.iter().copied().map(Location::Device))
            .build(size as u64)?;
        ensure!(memory.size_bytes() >= size as u64);
        ensure!(memory.size_bytes().is_multiple_of(memory.granularity()));
        let (address, expected) = (memory.address(), pattern(size));
        let mut buffer = memory.into_buffer::<u8>(stream, size)?;
        buffer.as_mut_slice().copy_from(&expected)?;
        let check = |buffer: &GrowableBuffer<u8>, what: &str| -> Result<()> {
            ensure!(buffer.as_raw() == address);
            ensure!(buffer.to_vec()? == expected, "{size} bytes, {from}, {what}");
            Ok(())
        };
        check(&buffer, "mapped")?;
        let mut memory = buffer.into_memory()?;
        memory.unmap()?;
        memory.map()?;
        let mut buffer = memory.into_buffer::<u8>(stream, size)?;
        check(&buffer, "mapped again")?;
        for to in path {
            buffer.move_memory_to(*to)?;
            check(&buffer, &format!("moved to {to}"))?;
            ensure!(buffer.device() == device_of(*to));
            let memory = buffer.into_memory()?;
            ensure!(memory.parts().all(|part| part.location() == *to));
            buffer = memory.into_buffer(stream, size)?;
        }
    }
    Ok(())
}

fn device_of(place: Location) -> Option<Device> {
    match place {
        Location::Device(device) => Some(device),
        _ => None,
    }
}

#[apply(case)]
fn every_size_and_place_keeps_its_bytes(env: &Environment) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    for place in places(env)? {
        every_size_goes(&stream, &[device], place, &places(env)?)?;
    }
    Ok(())
}

/// Every size on every pair of devices, in both directions, and the other device uses the address.
#[apply(case_of_two)]
fn a_buffer_moves_between_devices(env: &Environment) -> Result<()> {
    let devices = env.driver.devices()?;
    let all: Vec<Location> = devices.iter().copied().map(Location::Device).collect();
    for (from, to) in pairs(&devices) {
        let (here, there) = (
            from.primary_context()?.stream()?,
            to.primary_context()?.stream()?,
        );
        let path = [Location::Device(to), Location::Device(from)];
        every_size_goes(&here, &[from, to], path[1], &path)?;
        let memory = MappedMemory::builder(&from)
            .accessible_from(all.clone())
            .build(1)?;
        let address = memory.address();
        let mut buffer = memory.into_buffer::<u8>(&here, 1000)?;
        buffer.as_mut_slice().fill(3)?;
        buffer.move_memory_to(path[0])?;
        let mut buffer = buffer.into_memory()?.into_buffer::<u8>(&there, 1000)?;
        ensure!(buffer.as_raw() == address && buffer.device() == Some(to));
        ensure!(buffer.to_vec()? == [3; 1000]);
        buffer.as_mut_slice().fill(4)?;
        let buffer = buffer.into_memory()?.into_buffer::<u8>(&here, 1000)?;
        ensure!(buffer.to_vec()? == [4; 1000]);
    }
    Ok(())
}

fn pairs(devices: &[Device]) -> Vec<(Device, Device)> {
    let all = devices
        .iter()
        .flat_map(|from| devices.iter().map(move |to| (*from, *to)));
    all.filter(|(from, to)| from != to).collect()
}

/// The stream's device has access only while it copies.
#[apply(case)]
fn whoever_copies_needs_no_access_of_their_own(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let device = Location::Device(env.device()?);
    for place in places(env)?.into_iter().skip(1) {
        let mut memory = MappedMemory::builder_at(env.driver, place).build(1)?;
        for to in [device, place, place, device] {
            memory.move_to(to, &stream)?;
            ensure!(memory.access(device) == Access::None);
        }
        let failed = memory.into_buffer::<u8>(&stream, 1).expect_err("no access");
        let mut memory = failed.object.expect("it comes back");
        memory.set_access([(device, Access::ReadWrite)])?;
        drop(memory.into_buffer::<u8>(&stream, 1)?);
    }
    Ok(())
}

/// Two devices: the one that copies has no access to what it copies, nor gets it.
#[apply(case_of_two)]
fn a_device_copies_what_is_not_its_own(env: &Environment) -> Result<()> {
    for (from, to) in pairs(&env.driver.devices()?) {
        let (here, there) = (
            from.primary_context()?.stream()?,
            to.primary_context()?.stream()?,
        );
        let memory = MappedMemory::builder(&from).build(1)?;
        let mut buffer = memory.into_buffer::<u32>(&here, 10)?;
        buffer.as_mut_slice().fill(9)?;
        let mut memory = buffer.into_memory()?;
        memory.move_to(Location::Device(to), &there)?;
        ensure!(memory.access(Location::Device(to)) == Access::None);
        let buffer = memory.into_buffer::<u32>(&here, 10)?;
        ensure!(buffer.device() == Some(to) && buffer.to_vec()? == [9; 10]);
    }
    Ok(())
}

/// Memory in parts on several devices becomes one part.
#[apply(case_of_two)]
fn striped_memory_moves_to_one_place(env: &Environment) -> Result<()> {
    let devices = env.driver.devices()?;
    let stream = env.stream()?;
    let own = env.device()?;
    for to in places(env)? {
        let memory = MappedMemory::builder(&own)
            .striped_over(&devices)
            .build(1)?;
        let len = memory.size_bytes() as usize;
        ensure!(memory.parts().count() == devices.len());
        let mut buffer = memory.into_buffer::<u8>(&stream, len)?;
        ensure!(buffer.device().is_none() || devices.len() == 1);
        let expected = pattern(len);
        buffer.as_mut_slice().copy_from(&expected)?;
        buffer.move_memory_to(to)?;
        ensure!(buffer.to_vec()? == expected && buffer.device() == device_of(to));
        ensure!(buffer.into_memory()?.parts().count() == 1);
    }
    Ok(())
}

/// The bytes as the host sees them.
fn seen_by_host(memory: &MappedMemory, len: usize) -> Vec<u8> {
    let here: *const u8 = std::ptr::with_exposed_provenance(memory.address() as usize);
    // SAFETY: memory of the host to which it has access, and no device is at work.
    unsafe { std::slice::from_raw_parts(here, len) }.to_vec()
}

#[apply(case)]
fn the_hosts_access_comes_back_with_the_memory(env: &Environment) -> Result<()> {
    env.need_node()?;
    let stream = env.stream()?;
    let (device, host) = (Location::Device(env.device()?), Location::HostNuma(0));
    let memory = MappedMemory::builder_at(env.driver, host)
        .accessible_from([device, host])
        .reserve(8 << 20)
        .build(1)?;
    let mut buffer = memory.into_buffer::<u8>(&stream, 1000)?;
    buffer.as_mut_slice().fill(1)?;
    for round in 2..5 {
        buffer.move_memory_to(device)?;
        buffer.as_mut_slice().fill(round)?;
        buffer.resize_zeroed((round as usize) << 20)?;
        let memory = buffer.into_memory()?;
        ensure!(memory.access(host) == Access::ReadWrite, "it is noted");
        buffer = memory.into_buffer::<u8>(&stream, 1000)?;
        buffer.move_memory_to(host)?;
        let memory = buffer.into_memory()?;
        ensure!(seen_by_host(&memory, 1000) == [round; 1000]);
        buffer = memory.into_buffer::<u8>(&stream, 1000)?;
    }
    // Nobody gives the host access to memory of a device.
    let refused = MappedMemory::builder(&env.device()?)
        .accessible_from([host])
        .build(1);
    ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::NotSupported));
    Ok(())
}

#[apply(case)]
fn access_is_given_later(env: &Environment) -> Result<()> {
    env.need_node()?;
    let stream = env.stream()?;
    let (device, host) = (Location::Device(env.device()?), Location::HostNuma(0));
    let memory = MappedMemory::builder(&env.device()?).build(1)?;
    let mut buffer = memory.into_buffer::<u8>(&stream, 1000)?;
    buffer.as_mut_slice().fill(7)?;
    let mut memory = buffer.into_memory()?;
    let error = memory
        .set_access([(host, Access::ReadWrite)])
        .expect_err("it is memory of the device");
    ensure!(error.kind() == ErrorKind::NotSupported, "{error}");
    ensure!(memory.access(host) == Access::None);
    memory.move_to(host, &stream)?;
    memory.set_access([(host, Access::ReadWrite)])?;
    ensure!(seen_by_host(&memory, 1000) == [7; 1000]);
    // What is not mapped gets it at the next map.
    memory.set_access([(device, Access::None)])?;
    memory.unmap()?;
    memory.set_access([(device, Access::ReadWrite)])?;
    let buffer = memory.into_buffer::<u8>(&stream, 1000)?;
    ensure!(buffer.to_vec()? == [7; 1000]);
    Ok(())
}

#[apply(case)]
fn a_buffer_is_moved_and_keeps_its_address(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let memory = MappedMemory::builder(&env.device()?)
        .reserve(16 << 20)
        .build(5 << 20)?;
    let address = memory.address();
    let len = 5 << 20;
    let mut buffer = memory.into_buffer::<u8>(&stream, len)?;
    let expected = pattern(len);
    buffer.as_mut_slice().copy_from(&expected)?;
    let all = places(env)?;
    let before: Vec<MigrationStats> = all
        .iter()
        .map(|place| env.driver.migrations_to(*place))
        .collect();
    for place in &all {
        buffer.move_memory_to(*place)?;
        ensure!(buffer.as_raw() == address);
        ensure!(buffer.to_vec()? == expected, "{place}");
    }
    buffer.resize_zeroed(len + 1)?;
    ensure!(buffer.to_vec()?[..len] == expected);
    let told = all.iter().map(|place| buffer.migrations_to(*place));
    let (told, whole): (Vec<MigrationStats>, _) = (told.collect(), buffer.migrations());
    let memory = buffer.into_memory()?;
    ensure!(whole == memory.migrations());
    for (place, told) in all.iter().zip(told) {
        ensure!(
            told.moves == 1 && told == memory.migrations_to(*place),
            "{place}"
        );
    }
    let seen = |migrations: MigrationStats| (migrations.moves, migrations.moved_bytes);
    let size = 6 << 20;
    let moves = all.len() as u64;
    ensure!(seen(memory.migrations()) == (moves, moves * size));
    ensure!(
        memory.migrations().maps == moves + 1,
        "made and moved: {}",
        memory.migrations()
    );
    // Other tests may run beside this one and add to what a place saw.
    for (place, before) in all.iter().zip(before) {
        let times = all.iter().filter(|other| *other == place).count() as u64;
        ensure!(seen(memory.migrations_to(*place)) == (times, times * size));
        let now = env.driver.migrations_to(*place);
        ensure!(now.moves >= before.moves + times && now.maps >= before.maps + 2 * times);
        ensure!(now.moved_bytes >= before.moved_bytes + times * size);
    }
    Ok(())
}
