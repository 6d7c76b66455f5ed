//! Pools that are not plain device pools, and what tells whether there are any.

use anyhow::{Result, bail, ensure};
use cuda_mem::driver::{AllocationType, HandleTypes, Location, Reason, Support};
use cuda_mem::{CudaVersion, ErrorKind, MemoryPool, PoolBuilder, Resource};

use crate::environment::{Environment, Skip};

/// Every kind of pool that this crate knows to make, and the version that has it.
fn kinds(env: &Environment) -> Result<Vec<(PoolBuilder, CudaVersion)>> {
    let (driver, device) = (env.driver, env.device()?);
    let pinned = |location| MemoryPool::builder_at(driver, location, AllocationType::Pinned);
    let managed = |location| MemoryPool::builder_at(driver, location, AllocationType::Managed);
    let posix = HandleTypes::POSIX_FILE_DESCRIPTOR;
    let version = CudaVersion::new;
    Ok(vec![
        (MemoryPool::builder(&device), version(11, 2)),
        (
            MemoryPool::builder(&device).handle_types(posix),
            version(11, 2),
        ),
        (
            MemoryPool::builder(&device).handle_types(HandleTypes::FABRIC),
            version(12, 3),
        ),
        (pinned(Location::HostNuma(0)), version(12, 2)),
        (pinned(Location::Host), version(13, 0)),
        (managed(Location::Anywhere), version(13, 0)),
        (managed(Location::Device(device)), version(13, 0)),
        (managed(Location::Host), version(13, 0)),
    ])
}

#[apply(case)]
fn support_says_what_building_does(env: &Environment) -> Result<()> {
    for (builder, since) in kinds(env)? {
        let support = builder.support()?;
        ensure!(builder.support()? == support, "the answer stays");
        let built = builder.clone().build();
        match (support, built) {
            (Support::Yes, Ok(pool)) => pool.close()?,
            (Support::No(reason), Err(error)) => {
                let old = env.driver.version() < since;
                ensure!(
                    old == matches!(reason, Reason::DriverTooOld { .. }),
                    "{builder:?}: {reason}"
                );
                if old {
                    ensure!(error.needs_version() == Some(since), "{builder:?}: {error}");
                }
            }
            (support, built) => bail!("{builder:?}: {support}, but {built:?}"),
        }
    }
    Ok(())
}

#[apply(case)]
fn every_kind_serves_a_stream(env: &Environment) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    let mut made = 0;
    for (builder, _) in kinds(env)? {
        if !builder.support()?.is_yes() {
            continue;
        }
        let pool = builder.clone().accessible_from([&device]).build()?;
        let mut buffer = pool.alloc_from(&stream, &[1_u32, 2, 3])?;
        ensure!(buffer.to_vec()? == [1, 2, 3], "{builder:?}");
        buffer.fill(9)?;
        ensure!(buffer.to_vec()? == [9; 3], "{builder:?}");
        drop(buffer);
        stream.synchronize()?;
        pool.trim_to(0)?;
        if env.need(11, 3).is_ok() {
            ensure!(pool.stats()?.used.current == 0, "{builder:?}");
        }
        made += 1;
    }
    ensure!(made >= 1, "not even a plain pool");
    Ok(())
}

#[apply(case)]
fn memory_of_a_host_pool_is_the_hosts(env: &Environment) -> Result<()> {
    env.need(13, 0)?;
    let builder = MemoryPool::builder_at(env.driver, Location::Host, AllocationType::Pinned);
    if let Support::No(reason) = builder.support()? {
        return Err(Skip(format!("no pools of the host: {reason}")).into());
    }
    let (device, stream) = (env.device()?, env.stream()?);
    let pool = builder.build()?;
    ensure!(pool.device().is_none() && pool.location() == Location::Host);
    // Nobody has given the device access yet.
    let refused = pool.alloc::<u8>(&stream, 10);
    ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
    pool.set_access([(device, cuda_mem::Access::ReadWrite)])?;
    let mut buffer = pool.alloc::<u8>(&stream, 1000)?;
    buffer.fill(5)?;
    stream.synchronize()?;
    let pointer = buffer.as_raw() as *const u8;
    // SAFETY: memory of a host pool is at the same address on the host (R31), the fill is done, and
    // nobody writes.
    let bytes = unsafe { std::slice::from_raw_parts(pointer, 1000) };
    ensure!(bytes.iter().all(|byte| *byte == 5));
    let resource = Resource::from(pool);
    ensure!(resource.alloc_from(&stream, &[6_u8; 10])?.host()? == [6; 10]);
    Ok(())
}

#[apply(case)]
fn what_does_not_go_together_is_refused(env: &Environment) -> Result<()> {
    let (driver, device) = (env.driver, env.device()?);
    env.need(13, 0)?;
    let at = |location, kind| MemoryPool::builder_at(driver, location, kind);
    for builder in [
        at(Location::Anywhere, AllocationType::Pinned),
        at(Location::Host, AllocationType::Pinned).handle_types(HandleTypes::POSIX_FILE_DESCRIPTOR),
        at(Location::Device(device), AllocationType::Managed).max_size(1 << 30),
        at(Location::Device(device), AllocationType::Managed)
            .handle_types(HandleTypes::POSIX_FILE_DESCRIPTOR),
        at(Location::Device(device), AllocationType::Managed).hw_decompress(true),
        at(Location::Invisible, AllocationType::Pinned),
        MemoryPool::builder(&device).max_size(0),
    ] {
        let supported = builder.support();
        ensure!(supported.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
        let Err(error) = builder.build() else {
            bail!("a pool was made");
        };
        ensure!(
            error.kind() == ErrorKind::InvalidValue && error.code().is_none(),
            "{error}"
        );
    }
    // A node that no machine has: the driver says so.
    let nowhere = at(Location::HostNuma(9999), AllocationType::Pinned);
    ensure!(!nowhere.support()?.is_yes());
    ensure!(nowhere.build().is_err());
    Ok(())
}

#[apply(case)]
fn a_pool_tells_what_it_was_made_with(env: &Environment) -> Result<()> {
    let device = env.device()?;
    let pool = MemoryPool::builder(&device).max_size(64 << 20).build();
    if env.need(13, 2).is_err() {
        let properties = env.pool()?.properties();
        let Err(error) = properties else {
            bail!("an old driver told what it cannot know");
        };
        ensure!(
            error.needs_version() == Some(CudaVersion::new(13, 2)),
            "{error}"
        );
        return Ok(());
    }
    let properties = pool?.properties()?;
    ensure!(properties.allocation_type == AllocationType::Pinned);
    ensure!(properties.location == Location::Device(device));
    ensure!(properties.handle_types.is_empty() && !properties.hw_decompress);
    ensure!(properties.max_size >= 64 << 20);
    ensure!(properties.locality_domain.is_some() == env.need(13, 4).is_ok());
    Ok(())
}
#[apply(case)]
fn default_pools_are_found_by_place_and_type(env: &Environment) -> Result<()> {
    let (driver, device) = (env.driver, env.device()?);
    let here = Location::Device(device);
    let found = driver.default_pool_at(here, AllocationType::Pinned);
    if env.need(13, 0).is_err() {
        let Err(error) = found else {
            bail!("an old driver found a pool by its place");
        };
        ensure!(
            error.needs_version() == Some(CudaVersion::new(13, 0)),
            "{error}"
        );
        return Ok(());
    }
    ensure!(*found? == *device.default_pool()?);
    // The driver's own numbers for the same place.
    let id = device.as_raw();
    let numbers =
        driver.default_pool_at(Location::Other { kind: 1, id }, AllocationType::Other(1))?;
    ensure!(numbers.device() == Some(device) && *numbers == *device.default_pool()?);
    let managed = driver.default_pool_at(Location::Anywhere, AllocationType::Managed);
    if device.capabilities()?.concurrent_managed_access {
        let managed = managed?;
        let kind = managed.allocation_type();
        ensure!(kind == AllocationType::Managed && managed.device().is_none());
    } else {
        ensure!(managed.is_err_and(|error| error.kind() == ErrorKind::NotSupported));
    }
    let nothing = driver.default_pool_at(Location::Anywhere, AllocationType::Pinned);
    ensure!(nothing.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
    Ok(())
}
