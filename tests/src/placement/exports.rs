//! Memory that is to be handed to others.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::driver::Location;
use cuda_mem::mapped::MappedMemory;
use cuda_mem::placement::{AccessPattern, Export, Lifetime, PlacementKind, PlacementRequest};
use cuda_mem::{Access, DeviceBuffer, ErrorKind};

use super::allocating::alone;
use super::kinds::Way;
use crate::environment::Environment;
use crate::handles;
use crate::vmm::pattern;

#[apply(case)]
fn what_exports_memory_comes_with_it(env: &Environment) -> Result<()> {
    const LEN: usize = 5 << 20;
    let machine = alone(env)?;
    let request = PlacementRequest::bytes(LEN as u64).export(handles::EXPORT);
    let expected = pattern(LEN);
    let record = &machine.devices[0];
    if record.capabilities.memory_pools
        && record
            .capabilities
            .pool_handle_types
            .contains(handles::KIND)
    {
        let short = request.clone().lifetime(Lifetime::Short);
        let way = Way::new(env, &machine, &short)?;
        ensure!(way.placement.kind == PlacementKind::Pool);
        let placed = way.allocate(LEN)?;
        let pool = placed.pool().context("no pool")?;
        drop(handles::of_pool(pool)?);
        placed.export()?;
        let other = way.allocate(LEN)?;
        let other = other.pool().context("no pool")?;
        ensure!(pool.as_raw() != other.as_raw(), "an importer sees both");
        // What only its own device uses has no pool of its own.
        let plain = PlacementRequest::bytes(1).lifetime(Lifetime::Short);
        let plain = Way::new(env, &machine, &plain)?.allocate(1)?;
        ensure!(plain.pool().is_none());
    }
    let shared = request.clone().access(AccessPattern::Shared);
    for request in [request, shared] {
        if request.place(&machine).is_err() {
            println!("not here: {request:?}");
            continue;
        }
        let way = Way::new(env, &machine, &request)?;
        let mut placed = way.allocate(LEN)?;
        placed.as_mut_slice().copy_from(&expected)?;
        let buffer = placed.into_growable().ok().context("it is not mapped")?;
        let mut parts = Vec::new();
        for (descriptor, bytes) in handles::of_parts(&buffer)? {
            let part = handles::import_memory(env.driver, &descriptor, bytes)?;
            parts.push(part);
        }
        let same = MappedMemory::builder(&env.device()?).build_from(parts);
        if !way.placement.is_host_accessible() {
            let same = same?.into_buffer::<u8>(&way.stream, LEN)?;
            ensure!(same.to_vec()? == expected, "{}", way.placement);
            continue;
        }
        // The owner may have a slice of it, so this is for unsafe code.
        let error = same.err().context("memory of the host was mapped")?;
        ensure!(error.kind() == ErrorKind::NotSupported, "{error}");
        let memory = buffer.into_memory()?;
        ensure!(memory.size_bytes() == way.placement.size);
        for part in memory.parts() {
            let descriptor = handles::of_memory(part)?;
            // Another handle of the same memory sees the same bytes.
            let same = handles::import_memory(env.driver, &descriptor, part.size_bytes())?;
            let range = cuda_mem::mapped::AddressRange::reserve(env.driver, same.size_bytes(), 0)?;
            let mapping = range.map(0, &same)?;
            let here = Location::Device(env.device()?);
            mapping.set_access([(here, Access::ReadWrite)])?;
            // SAFETY: the bytes are mapped there with access, no longer than the mapping lives, and not freed.
            let view = unsafe { DeviceBuffer::<u8>::from_raw(&way.stream, mapping.address(), LEN) };
            ensure!(view.to_vec()? == expected, "{}", way.placement);
            view.into_raw()?;
        }
    }
    Ok(())
}

#[apply(case)]
fn a_dma_buf_takes_whole_pages(env: &Environment) -> Result<()> {
    let mut machine = alone(env)?;
    machine.devices[0].capabilities.dma_buf = true;
    let request = PlacementRequest::bytes(1000).export(Export::DmaBuf);
    for gpu_direct in [true, false] {
        let record = &mut machine.devices[0];
        record.capabilities.gpu_direct_virtual_memory &= gpu_direct;
        let way = Way::new(env, &machine, &request)?;
        let mut placed = way.allocate(1000)?;
        ensure!(way.placement.size >= 2 << 20 && placed.len() == 1000);
        placed.as_mut_slice().fill(7)?;
        ensure!(placed.to_vec()? == [7; 1000]);
        let info = env.driver.pointer_info(placed.as_raw())?;
        let info = info.context("it is known")?;
        ensure!(info.bytes >= way.placement.size, "{info:?}");
    }
    Ok(())
}

/// Also what no element of the owner shows.
#[apply(case)]
fn zeros_fill_whole_pages(env: &Environment) -> Result<()> {
    let mut machine = alone(env)?;
    machine.devices[0].capabilities.dma_buf = true;
    machine.devices[0].capabilities.gpu_direct_virtual_memory = false;
    let request = |export| PlacementRequest::bytes(1000).export(export).zeroed();
    let by_handle = request(handles::EXPORT);
    let shared = by_handle.clone().access(AccessPattern::Shared);
    for request in [request(Export::DmaBuf), by_handle, shared] {
        if request.place(&machine).is_err() {
            println!("not here: {request:?}");
            continue;
        }
        let way = Way::new(env, &machine, &request)?;
        let (what, size) = (way.placement.to_string(), way.placement.size as usize);
        // The same pages may come again.
        let mut before = way.allocate(size)?;
        before.as_mut_slice().fill(0xff)?;
        way.stream.synchronize()?;
        drop(before);
        let mut placed = way.allocate(1000)?;
        ensure!(placed.len() == 1000);
        if let Some(buffer) = placed.growable() {
            buffer.resize_uninit(size)?;
            ensure!(placed.to_vec()? == vec![0; size], "{what}");
            continue;
        }
        // SAFETY: so many bytes were allocated there, and `placed` keeps them.
        let all = unsafe { DeviceBuffer::<u8>::from_raw(&way.stream, placed.as_raw(), size) };
        let seen = all.to_vec();
        all.into_raw()?;
        ensure!(seen? == vec![0; size], "{what}");
    }
    Ok(())
}
