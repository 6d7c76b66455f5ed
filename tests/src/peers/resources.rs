//! Memory resources on two devices.

use anyhow::{Result, bail, ensure};
use cuda_mem::driver::{AllocationType, Location, Support};
use cuda_mem::interop::CaptureMode;
use cuda_mem::memory::{
    DeviceVec, DirectResource, ManagedResource, PinnedResource, PrefetchAdaptor,
};
use cuda_mem::{Access, Arena, ErrorKind, MemoryPool, MemoryResource as _, Resource, Stream};

use crate::environment::{Environment, Skip};
use crate::hold::hold;

fn streams(env: &Environment) -> Result<[Stream; 2]> {
    let stream = |ordinal| env.driver.device(ordinal)?.primary_context()?.stream();
    Ok([stream(0)?, stream(1)?])
}

#[apply(case_of_two)]
fn a_resource_is_of_its_device(env: &Environment) -> Result<()> {
    let [here, there] = streams(env)?;
    for resource in [
        here.device().default_resource()?,
        Resource::new(DirectResource::new(here.device())),
    ] {
        ensure!(resource.memory_properties().reaches(here.device()));
        ensure!(!resource.memory_properties().reaches(there.device()));
        ensure!(resource.alloc_from(&here, &[1_u8, 2])?.to_vec()? == [1, 2]);
        let Err(error) = resource.alloc::<u8>(&there, 100) else {
            bail!("{resource:?} served a device that does not reach it");
        };
        ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
        ensure!(there.device().set_current_resource(&resource).is_err());
    }
    ensure!(here.device().default_resource()? != there.device().default_resource()?);
    Ok(())
}

/// Written by one device, read by the other, at one address.
#[apply(case_of_two)]
fn memory_of_everybody_serves_both_devices(env: &Environment) -> Result<()> {
    let [here, there] = streams(env)?;
    for resource in [
        Resource::new(PinnedResource::new(env.driver)),
        Resource::new(ManagedResource::new(env.driver)),
        Resource::new(PrefetchAdaptor::new(ManagedResource::new(env.driver))),
    ] {
        for (first, second) in [(&here, &there), (&there, &here)] {
            ensure!(resource.memory_properties().reaches(second.device()));
            let mut buffer = resource.alloc::<u32>(first, 100_000)?;
            buffer.fill(1)?;
            buffer.on(second)?.fill(2)?;
            ensure!(buffer.to_vec()? == vec![2; 100_000]);
            let buffer = buffer.move_to(second)?;
            ensure!(buffer.to_vec()? == vec![2; 100_000]);
            buffer.free()?;
        }
    }
    Ok(())
}

#[apply(case_of_two)]
fn each_device_has_its_own_current_resource(env: &Environment) -> Result<()> {
    let [here, there] = streams(env)?;
    let pinned = Resource::new(PinnedResource::new(env.driver));
    let _scope = here.device().use_resource(&pinned)?;
    let (near, far) = (
        DeviceVec::<u8>::zeroed(&here, 100)?,
        DeviceVec::<u8>::zeroed(&there, 100)?,
    );
    ensure!(near.resource() == &pinned && near.device().is_none());
    ensure!(far.device() == Some(there.device()));
    ensure!(near.to_vec()? == far.to_vec()?);
    Ok(())
}

/// The driver waits for the streams of the memory's own device when host memory ends, and for no others.
#[apply(case_of_two)]
fn host_memory_that_ends_in_a_capture_waits_for_both_devices(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let devices = env.driver.devices()?;
    let contexts = [devices[0].primary_context()?, devices[1].primary_context()?];
    let (here, there) = (contexts[0].stream()?, contexts[1].stream()?);
    let boxed = vec![1_u8; 1 << 20].into_boxed_slice();
    let mut memory = contexts[0]
        .register_boxed(boxed, cuda_mem::mapped::RegisterFlags::default())?
        .lend(&here)?;
    let held = hold(&there)?;
    let mut slice = memory.as_mut_slice()?.on(&there)?;
    slice.fill(7)?;
    std::mem::forget(slice);
    let (graph, ()) = here.capture(CaptureMode::Relaxed, |_| {
        drop(memory);
        Ok(())
    })?;
    drop(graph);
    // Nothing that waits here may end the memory: the other device's work would fault.
    here.synchronize()?;
    contexts[0].synchronize()?;
    drop(held);
    there.synchronize()?;
    here.synchronize()?;
    Ok(())
}

/// Memory of the host has no device: who may use it is the pool's to say, also when the arena has memory already.
#[apply(case_of_two)]
fn an_arena_over_a_pool_serves_the_devices_that_reach_the_pool(env: &Environment) -> Result<()> {
    env.need(13, 0)?;
    let builder = MemoryPool::builder_at(env.driver, Location::Host, AllocationType::Pinned);
    if let Support::No(reason) = builder.support()? {
        return Err(Skip(format!("no pools of the host: {reason}")).into());
    }
    let [here, there] = streams(env)?;
    let pool = builder.accessible_from([&here.device()]).build()?;
    let arena = Arena::over(pool);
    let kept = arena.alloc::<u8>(&here, 1 << 20)?;
    let refused = arena.alloc::<u8>(&there, 1000);
    ensure!(
        refused.is_err_and(|error| error.kind() == ErrorKind::InvalidValue),
        "memory that the device does not reach"
    );
    ensure!(arena.alloc_from(&here, &[7_u8; 1000])?.to_vec()? == [7; 1000]);
    drop(kept);
    Ok(())
}

#[apply(case_of_two)]
fn an_arena_over_a_pool_knows_what_access_the_pool_gives_later(env: &Environment) -> Result<()> {
    let [here, there] = streams(env)?;
    if !there.device().can_access_peer(&here.device())? {
        return Err(Skip("the devices do not reach each other".to_owned()).into());
    }
    let pool = MemoryPool::builder(&here.device()).build()?;
    let arena = Arena::over((*pool).clone());
    let refused = arena.alloc::<u8>(&there, 1000);
    ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
    ensure!(!arena.memory_properties().reaches(there.device()));
    pool.set_access([(there.device(), Access::ReadWrite)])?;
    ensure!(arena.memory_properties().reaches(there.device()));
    ensure!(arena.alloc_from(&there, &[8_u8; 1000])?.to_vec()? == [8; 1000]);
    Ok(())
}
