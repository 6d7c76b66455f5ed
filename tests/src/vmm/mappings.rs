//! Physical memory, ranges and mappings.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::driver::Location;
use cuda_mem::mapped::{AddressRange, MappedMemory, PhysicalMemory};
use cuda_mem::sys::{CUdeviceptr, CUmemAllocationProp, CUresult};
use cuda_mem::{Access, DeviceBuffer, ErrorKind, Stream};

use super::places;
use crate::environment::Environment;

/// The bytes at an address, for as long as `owner` lives.
fn bytes_at(
    stream: &Stream,
    address: CUdeviceptr,
    len: usize,
    owner: impl Send + Sync + 'static,
) -> DeviceBuffer<u8> {
    // SAFETY: the owner keeps the mapping, and the caller synchronises the stream before it goes.
    unsafe { DeviceBuffer::borrow_raw(stream, address, len, owner) }
}

#[apply(case)]
fn sizes_are_whole_granules(env: &Environment) -> Result<()> {
    for place in places(env)? {
        let builder = PhysicalMemory::builder_at(env.driver, place);
        let granularity = builder.granularity()?;
        ensure!(granularity.minimum.is_power_of_two());
        ensure!(granularity.recommended.is_multiple_of(granularity.minimum));
        for bytes in [1, granularity.minimum, granularity.minimum + 1] {
            let memory = builder.build(bytes)?;
            ensure!(memory.size_bytes() == bytes.next_multiple_of(granularity.minimum));
            ensure!(memory.location() == place);
        }
        for bytes in [0, u64::MAX, u64::MAX - 5] {
            let error = builder.build(bytes).expect_err("it is refused");
            ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
        }
        let more = env.device()?.total_memory()? + (1 << 50);
        let error = builder.build(more).expect_err("there is not so much");
        ensure!(error.kind() == ErrorKind::OutOfMemory, "{error}");
    }
    Ok(())
}

#[apply(case)]
fn a_mapping_gives_no_access(env: &Environment) -> Result<()> {
    let place = Location::Device(env.device()?);
    let memory = PhysicalMemory::builder_at(env.driver, place).build(1)?;
    let range = AddressRange::reserve(env.driver, 1, 0)?;
    let mapping = range.map(0, &memory)?;
    ensure!(mapping.access(place)? == Access::None);
    for access in [Access::Read, Access::ReadWrite, Access::None] {
        mapping.set_access([(place, access)])?;
        ensure!(mapping.access(place)? == access);
    }
    mapping.set_access::<Location>([])?;
    for host in [Location::Host, Location::HostNuma(0)] {
        let error = mapping
            .set_access([(host, Access::ReadWrite)])
            .expect_err("it is refused");
        ensure!(error.kind() == ErrorKind::NotSupported, "{error}");
    }
    Ok(())
}

#[apply(case)]
fn bytes_stay_with_the_memory(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let place = Location::Device(env.device()?);
    let memory = PhysicalMemory::builder_at(env.driver, place).build(1)?;
    let range = AddressRange::reserve(env.driver, 4 * memory.size_bytes(), 0)?;
    for (round, offset) in [0, 2, 0, 3].into_iter().enumerate() {
        let mapping = range.map(offset * memory.size_bytes(), &memory)?;
        mapping.set_access([(place, Access::ReadWrite)])?;
        ensure!(mapping.address() == range.address() + offset * memory.size_bytes());
        let address = mapping.address();
        let mut bytes = bytes_at(&stream, address, 1000, mapping);
        if round > 0 {
            ensure!(bytes.to_vec()? == [round as u8 - 1; 1000]);
        }
        bytes.fill(round as u8)?;
        stream.synchronize()?;
    }
    // The same memory at two addresses.
    let first = range.map(0, &memory)?;
    let second = range.map(memory.size_bytes(), &memory)?;
    for mapping in [&first, &second] {
        mapping.set_access([(place, Access::ReadWrite)])?;
    }
    let (here, there) = (first.address(), second.address());
    let mut bytes = bytes_at(&stream, here, 1000, first);
    bytes.fill(9)?;
    stream.synchronize()?;
    ensure!(bytes_at(&stream, there, 1000, second).to_vec()? == [9; 1000]);
    Ok(())
}

#[apply(case)]
fn what_cannot_be_mapped_is_explained(env: &Environment) -> Result<()> {
    let place = Location::Device(env.device()?);
    let memory = PhysicalMemory::builder_at(env.driver, place).build(1)?;
    let step = memory.size_bytes();
    let range = AddressRange::reserve(env.driver, 2 * step, 0)?;
    ensure!(range.size_bytes() == 2 * step);
    let mapping = range.map(0, &memory)?;
    for (offset, why) in [
        (0, "already"),
        (2 * step, "not within"),
        (u64::MAX, "not within"),
        (step - 1, "multiple"),
    ] {
        let error = range.map(offset, &memory).expect_err("it is refused");
        ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
        ensure!(error.to_string().contains(why), "{offset}: {error}");
    }
    mapping.unmap()?;
    drop(range.map(0, &memory)?);
    for (bytes, align, why) in [
        (0, 0, "no bytes"),
        (step, 3, "power of two"),
        (u64::MAX, 0, "more than"),
    ] {
        let error = AddressRange::reserve(env.driver, bytes, align).expect_err("it is refused");
        ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
        ensure!(error.to_string().contains(why), "{error}");
    }
    let aligned = AddressRange::reserve(env.driver, step, 1 << 30)?;
    ensure!(aligned.address().is_multiple_of(1 << 30));
    Ok(())
}

#[apply(case)]
fn ends_come_in_any_order(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let place = Location::Device(env.device()?);
    let memory = PhysicalMemory::builder_at(env.driver, place).build(1)?;
    let range = AddressRange::reserve(env.driver, 1, 0)?;
    let mapping = range.map(0, &memory)?;
    mapping.set_access([(place, Access::ReadWrite)])?;
    // The mapping keeps both.
    drop(range);
    drop(memory);
    let memory = mapping.memory().clone();
    let address = mapping.address();
    let mut bytes = bytes_at(&stream, address, 100, mapping);
    bytes.fill(3)?;
    ensure!(bytes.to_vec()? == [3; 100]);
    drop(bytes);
    // The memory keeps its bytes.
    let range = AddressRange::reserve(env.driver, 1, 0)?;
    let mapping = range.map(0, &memory)?;
    mapping.set_access([(place, Access::ReadWrite)])?;
    let address = mapping.address();
    ensure!(bytes_at(&stream, address, 100, mapping).to_vec()? == [3; 100]);
    Ok(())
}

/// Mapped memory is made as physical memory alone is.
#[apply(case)]
fn wishes_are_handed_on(env: &Environment) -> Result<()> {
    let device = env.device()?;
    let ask = env.driver.table().cuMemGetAllocationPropertiesFromHandle;
    let ask = ask.context("not in this driver")?;
    let told = |memory: &PhysicalMemory| {
        let mut prop = CUmemAllocationProp::default();
        // SAFETY: the handle is live, and the place is one for properties.
        let code = unsafe { ask(&raw mut prop, memory.as_raw()) };
        ensure!(code == CUresult::CUDA_SUCCESS, "{code:?}");
        let flags = prop.allocFlags;
        Ok((flags.compressionType, flags.gpuDirectRDMACapable))
    };
    for (compressible, direct) in [(false, false), (true, false), (false, true)] {
        let alone = PhysicalMemory::builder(&device).compressible(compressible);
        let Ok(alone) = alone.gpu_direct_rdma(direct).build(1) else {
            println!("not here: {compressible}, {direct}");
            continue;
        };
        let memory = MappedMemory::builder(&device).compressible(compressible);
        let memory = memory.gpu_direct_rdma(direct).build(1)?;
        let part = memory.parts().next().context("no memory")?;
        ensure!(told(part)? == told(&alone)?, "{compressible}, {direct}");
    }
    Ok(())
}

#[apply(case)]
fn memory_that_is_there_is_mapped(env: &Environment) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    let make = || PhysicalMemory::builder(&device).build(1);
    let (first, second) = (make()?, make()?);
    let step = first.size_bytes();
    let len = usize::try_from(step)?;
    let builder = || MappedMemory::builder(&device);
    let one = builder().build_from([second.clone()])?;
    ensure!(one.granularity() == step && one.size_bytes() == step);
    let mut one = one.into_buffer::<u8>(&stream, len)?;
    // The same memory in another place, behind another.
    let both = builder().reserve(4 * step).build_from([first, second])?;
    ensure!(both.parts().count() == 2 && both.reserved_bytes() == 4 * step);
    let mut both = both.into_buffer::<u8>(&stream, 2 * len)?;
    ensure!(both.device() == Some(device));
    both.as_mut_slice().fill(3)?;
    one.as_mut_slice().fill(4)?;
    let seen = both.to_vec()?;
    ensure!(seen[..len].iter().all(|byte| *byte == 3));
    ensure!(seen[len..].iter().all(|byte| *byte == 4));
    // It grows by memory of its own, and the parts stay with who has them.
    both.resize_zeroed(3 * len)?;
    ensure!(both.capacity() == 3 * len && both.to_vec()?[..2 * len] == seen);
    both.free()?;
    ensure!(one.to_vec()?.iter().all(|byte| *byte == 4));

    let refused = |memory: cuda_mem::Result<MappedMemory>, kind| {
        let error = memory.err().context("it was mapped")?;
        ensure!(error.kind() == kind, "{error}");
        Ok(())
    };
    refused(builder().build_from([]), ErrorKind::InvalidValue)?;
    let larger = builder().granularity(8 * step).build_from([make()?]);
    refused(larger, ErrorKind::InvalidValue)?;
    if env.has_node()? {
        let host = PhysicalMemory::builder_at(env.driver, Location::HostNuma(0)).build(1)?;
        refused(builder().build_from([host]), ErrorKind::NotSupported)?;
    }
    Ok(())
}

#[apply(case)]
fn memory_of_the_host_is_mapped_for_devices(env: &Environment) -> Result<()> {
    env.need_node()?;
    let stream = env.stream()?;
    let node = Location::HostNuma(0);
    let memory = PhysicalMemory::builder_at(env.driver, node).build(1)?;
    let range = AddressRange::reserve(env.driver, 1, 0)?;
    let mapping = range.map(0, &memory)?;
    let device = Location::Device(env.device()?);
    mapping.set_access([(device, Access::ReadWrite), (node, Access::ReadWrite)])?;
    ensure!(mapping.access(node)? == Access::ReadWrite);
    let address = mapping.address();
    bytes_at(&stream, address, 1000, ()).fill(5)?;
    stream.synchronize()?;
    let here: *mut u8 = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: memory of the host, to which it has access; the device is done with it.
    let seen = unsafe { std::slice::from_raw_parts_mut(here, 1000) };
    ensure!(seen.iter().all(|byte| *byte == 5));
    seen.fill(6);
    ensure!(bytes_at(&stream, address, 1000, mapping).to_vec()? == [6; 1000]);
    Ok(())
}
