//! What devices and streams reach, and what the driver is asked about it. Each machine is one of its own in this process.

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::driver::{AllocationType, Location};
use cuda_mem::memory::{DeviceSet, ManagedResource, PinnedResource};
use cuda_mem::{Access, ErrorKind, MemoryPool, Resource};
use cuda_mem_tests::environment::Environment;
use cuda_sim::Machine;

use super::start;

const ASK: &str = "cuMemPoolGetAccess";
const SET: &str = "cuMemPoolSetAccess";
const ALLOCATE: &str = "cuMemAllocFromPoolAsync";

/// A question would spoil a capture of another library (R110).
#[apply(case)]
fn the_driver_is_not_asked_about_access_that_is_known(_: &Environment) -> Result<()> {
    let (simulator, driver) = start(Machine::new().devices(2))?;
    let control = simulator.control();
    let (own, peer) = (driver.device(0)?, driver.device(1)?);
    let here = own.primary_context()?.stream()?;
    let there = peer.primary_context()?.stream()?;
    let pool = MemoryPool::builder(&own).build()?;
    drop(pool.alloc::<u8>(&here, 100)?);
    ensure!(control.calls(ASK) == 0, "it is the pool's own device");
    pool.set_access([(peer, Access::ReadWrite)])?;
    drop(pool.alloc::<u8>(&there, 100)?);
    ensure!(control.calls(ASK) == 0, "access was given");
    here.synchronize()?;
    there.synchronize()?;
    pool.set_access([(peer, Access::None)])?;
    control.reset();
    drop(pool.alloc::<u8>(&here, 100)?);
    ensure!(control.calls(ASK) == 0, "it was taken from the peer alone");
    Ok(())
}

#[apply(case)]
fn access_that_a_device_has_anyway_is_no_call(_: &Environment) -> Result<()> {
    let (simulator, driver) = start(Machine::new().devices(2))?;
    let (own, peer) = (driver.device(0)?, driver.device(1)?);
    let place = (Location::Anywhere, AllocationType::Managed);
    let managed = MemoryPool::builder_at(driver, place.0, place.1).build()?;
    let plain = MemoryPool::builder(&own).build()?;
    plain.set_access([(own, Access::ReadWrite)])?;
    managed.set_access([(own, Access::ReadWrite), (peer, Access::ReadWrite)])?;
    plain.close()?;
    managed.close()?;
    let calls = simulator.control().calls(SET);
    ensure!(calls == 0, "{calls} calls");
    Ok(())
}

/// The handle serves the next pool (R27).
#[apply(case)]
fn a_pool_that_ends_takes_back_what_it_gave_and_nothing_else(_: &Environment) -> Result<()> {
    let (simulator, driver) = start(Machine::new().devices(3))?;
    let devices = driver.devices()?;
    let (own, peers) = devices.split_first().context("no device")?;
    let pool = MemoryPool::builder(own).build()?;
    let handle = pool.as_raw();
    for peer in peers {
        pool.set_access([(*peer, Access::ReadWrite)])?;
    }
    pool.close()?;
    let next = MemoryPool::builder(own).build()?;
    ensure!(next.as_raw() == handle);
    for peer in peers {
        ensure!(next.access(peer)? == Access::None, "{peer} has kept it");
    }
    for access in [Access::ReadWrite, Access::None] {
        next.set_access([(peers[0], access)])?;
    }
    let control = simulator.control();
    control.reset();
    next.close()?;
    ensure!(control.calls(SET) == 0, "it was taken a second time");
    Ok(())
}

#[apply(case)]
fn a_device_that_is_no_peer_is_refused_in_our_words(_: &Environment) -> Result<()> {
    let (simulator, driver) = start(Machine::new().devices(2).no_peers())?;
    let (own, stranger) = (driver.device(0)?, driver.device(1)?);
    let pool = MemoryPool::builder(&own).build()?;
    let given = pool.set_access([(stranger, Access::ReadWrite)]);
    let built = MemoryPool::builder(&own).accessible_from([&stranger]);
    for refused in [given, built.build().map(drop)] {
        let error = refused
            .err()
            .context("access was given to a device that is no peer")?;
        let is_ours = error.kind() == ErrorKind::NotSupported && error.code().is_none();
        ensure!(is_ours, "{error}");
    }
    ensure!(simulator.control().calls(SET) == 0);
    Ok(())
}

/// The driver would give it, and a handle of another driver means nothing to it.
#[apply(case)]
fn a_pool_out_of_reach_is_not_asked_for_memory(_: &Environment) -> Result<()> {
    let (simulator, driver) = start(Machine::new().devices(2))?;
    let (other_simulator, other_driver) = start(Machine::new())?;
    let own = driver.device(0)?;
    let pool = MemoryPool::builder(&own).build()?;
    // A thread's first request is checked in another way.
    drop(pool.alloc::<u8>(&own.primary_context()?.stream()?, 100)?);
    simulator.control().reset();
    for device in [driver.device(1)?, other_driver.device(0)?] {
        let stream = device.primary_context()?.stream()?;
        let Err(error) = pool.alloc::<u8>(&stream, 100) else {
            bail!("{device} got memory that it does not reach");
        };
        let is_ours = error.kind() == ErrorKind::InvalidValue && error.code().is_none();
        ensure!(is_ours, "{error}");
    }
    for simulator in [&simulator, &other_simulator] {
        ensure!(simulator.control().calls(ALLOCATE) == 0);
    }
    Ok(())
}

/// There is nothing to reach.
#[apply(case)]
fn an_empty_buffer_goes_to_every_device_of_its_driver(_: &Environment) -> Result<()> {
    let (_simulator, driver) = start(Machine::new().devices(2))?;
    let (_other_simulator, other_driver) = start(Machine::new())?;
    let (own, peer) = (driver.device(0)?, driver.device(1)?);
    let here = own.primary_context()?.stream()?;
    let there = peer.primary_context()?.stream()?;
    let elsewhere = other_driver.device(0)?.primary_context()?.stream()?;
    let mut empty = MemoryPool::builder(&own).build()?.alloc::<u8>(&here, 0)?;
    drop(empty.on(&there)?);
    let refused = empty.on(&elsewhere).map(drop);
    let kind = refused.err().map(|error| error.kind());
    ensure!(kind == Some(ErrorKind::InvalidValue), "{kind:?}");
    Ok(())
}

/// There the driver tells no access, and no memory is mapped that a device may only read.
#[apply(case)]
fn a_device_writes_to_a_peer_without_virtual_memory_management(_: &Environment) -> Result<()> {
    let machine = Machine::new().devices(2).set("CUDA_SIM_VMM", 0);
    let (simulator, driver) = start(machine)?;
    let (own, peer) = (driver.device(0)?, driver.device(1)?);
    let here = own.primary_context()?.stream()?;
    let there = peer.primary_context()?.stream()?;
    let pool = MemoryPool::builder(&own).accessible_from([&peer]).build()?;
    let mut buffer = pool.alloc_zeroed::<u8>(&here, 100)?;
    buffer.on(&there)?.fill(7)?;
    ensure!(simulator.control().calls("cuMemGetAccess") == 1);
    ensure!(buffer.to_vec()? == [7; 100]);
    Ok(())
}

/// Its contexts mean nothing to the driver of the resource.
#[apply(case)]
fn memory_of_everybody_is_for_streams_of_one_driver(_: &Environment) -> Result<()> {
    let (simulator, driver) = start(Machine::new())?;
    let (_other_simulator, other_driver) = start(Machine::new())?;
    let stream = other_driver.device(0)?.primary_context()?.stream()?;
    for resource in [
        Resource::new(PinnedResource::new(driver)),
        Resource::new(ManagedResource::new(driver)),
    ] {
        let Err(error) = resource.alloc::<u8>(&stream, 100) else {
            bail!("{resource:?} served a stream of another driver");
        };
        let is_ours = error.kind() == ErrorKind::InvalidValue && error.code().is_none();
        ensure!(is_ours, "{resource:?}: {error}");
    }
    for function in ["cuMemHostAlloc", "cuMemAllocManaged"] {
        ensure!(simulator.control().calls(function) == 0, "{function}");
    }
    Ok(())
}

#[apply(case)]
fn a_set_of_devices_has_those_that_were_added(_: &Environment) -> Result<()> {
    let (_simulator, driver) = start(Machine::new().devices(3))?;
    let (_other_simulator, other_driver) = start(Machine::new())?;
    let devices = driver.devices()?;
    for added in &devices {
        let set = DeviceSet::none(driver).with(*added);
        for device in &devices {
            ensure!(
                set.contains(*device) == (device == added),
                "{device}: {set}"
            );
        }
        ensure!(!set.contains(other_driver.device(0)?), "another driver's");
    }
    Ok(())
}
