//! Every driver call of virtual memory fails once, in turn, with several codes. Each time the caller gets a typed
//! error, or the destructor reports; nothing is left over, nothing panics.

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::base::drop_counts;
use cuda_mem::driver::Location;
use cuda_mem::interop::CaptureMode;
use cuda_mem::ledger::{Ledger, LedgerKind, LedgerLevel};
use cuda_mem::mapped::{AddressRange, GrowableBuffer, MappedMemory, PhysicalMemory};
use cuda_mem::sys::CUresult;
use cuda_mem::{Access, Driver, Error, ErrorKind};
use cuda_mem_tests::environment::{Environment, sim_path};
use cuda_mem_tests::handles;
use cuda_mem_tests::sweep::meaning::{CAPTURES, MAPPED_MEMORY, NOT_READY, STUB, devices_after};
use cuda_mem_tests::sweep::{self, Answer, Scenario};

/// Everything of virtual memory, in one go.
fn memory(driver: Driver) -> Result<(), Error> {
    let device = driver.devices()?.swap_remove(0);
    let stream = device.primary_context()?.stream()?;
    let here = Location::Device(device);
    let memory = PhysicalMemory::builder(&device)
        .handle_types(handles::KIND)
        .build(1)?;
    let handle = handles::of_memory(&memory)?;
    let imported = handles::import_memory(driver, &handle, memory.size_bytes())?;
    let range = AddressRange::reserve(driver, 2 * memory.size_bytes(), 0)?;
    let first = range.map(0, &memory)?;
    let second = range.map(memory.size_bytes(), &imported)?;
    first.set_access([(here, Access::ReadWrite)])?;
    second.set_access([(here, Access::ReadWrite)])?;
    first.access(here)?;
    first.unmap().map_err(|failed| failed.error)?;
    drop((second, range, memory, imported));

    let memory = MappedMemory::builder(&device).reserve(16 << 20).build(1)?;
    let buffer = memory.into_buffer::<u32>(&stream, 10);
    let mut buffer = buffer.map_err(|failed| failed.error)?;
    buffer.as_mut_slice().fill(7)?;
    buffer.resize_zeroed(20_000)?;
    buffer.resize_uninit(5)?;
    buffer.extend_from_slice(&[])?;
    buffer.shrink_to_fit()?;
    buffer.extend_from_slice(&[8; 20_000])?;
    buffer.resize_uninit(5)?;
    buffer.shrink_to_fit()?;
    buffer.move_memory_to(Location::HostNuma(0))?;
    let memory = buffer.into_memory();
    let mut memory = memory.map_err(|failed| failed.error)?;
    memory.unmap()?;
    memory.map()?;
    memory.move_to(here, &stream)?;
    let buffer = memory.into_buffer::<u32>(&stream, 5);
    let buffer = buffer.map_err(|failed| failed.error)?;
    assert_eq!(buffer.to_vec()?, [7; 5]);
    Ok(())
}

/// Memory in parts, memory that the host sees, and moves between all of them.
fn places(driver: Driver) -> Result<(), Error> {
    let device = driver.devices()?.swap_remove(0);
    let stream = &device.primary_context()?.stream()?;
    let (here, node) = (Location::Device(device), Location::HostNuma(0));
    // One device twice is as good as two here.
    let striped = MappedMemory::builder(&device).striped_over([&device, &device]);
    let buffer = striped.build(1)?.into_buffer::<u32>(stream, 10);
    let mut buffer = buffer.map_err(|failed| failed.error)?;
    buffer.as_mut_slice().fill(7)?;
    buffer.move_memory_to(node)?;
    let memory = buffer.into_memory();
    let mut memory = memory.map_err(|failed| failed.error)?;
    memory.set_access([(node, Access::ReadWrite)])?;
    // Now the one who copies may not look.
    memory.set_access([(here, Access::None)])?;
    memory.move_to(here, stream)?;
    memory.move_to(node, stream)?;
    memory.set_access([(here, Access::ReadWrite)])?;
    let buffer = memory.into_buffer::<u32>(stream, 10);
    let buffer = buffer.map_err(|failed| failed.error)?;
    assert_eq!(buffer.to_vec()?, [7; 10]);
    // It ends after the capture.
    let captured = stream.capture(CaptureMode::Relaxed, |_| {
        drop(buffer);
        Ok(())
    });
    captured.map(drop)
}

const ANSWERS: &[Answer] = &[STUB, CAPTURES, devices_after(5), NOT_READY];

const fn scenario(run: fn(Driver) -> Result<(), Error>) -> Scenario {
    Scenario {
        run,
        at_least: 60,
        answers: ANSWERS,
        leftovers: &[MAPPED_MEMORY],
    }
}

#[apply(case)]
fn every_call_of_virtual_memory_fails_once(env: &Environment) -> Result<()> {
    sweep::in_parts(env, scenario(memory))
}

#[apply(case)]
fn every_call_of_several_places_fails_once(env: &Environment) -> Result<()> {
    sweep::in_parts(env, scenario(places))
}

#[apply(case)]
fn a_sample_of_pairs_of_calls_of_virtual_memory_fails(env: &Environment) -> Result<()> {
    sweep::every_pair_fails(env, scenario(memory))
}

#[apply(case)]
fn a_sample_of_pairs_of_calls_of_several_places_fails(env: &Environment) -> Result<()> {
    sweep::every_pair_fails(env, scenario(places))
}

/// A buffer of two parts, with other bytes in each.
fn of_two_parts(env: &Environment) -> Result<(GrowableBuffer<u8>, Vec<u8>)> {
    let builder = MappedMemory::builder(&env.device()?).reserve(16 << 20);
    let memory = builder.build(2 << 20)?;
    let mut buffer = memory.into_buffer::<u8>(&env.stream()?, 2 << 20)?;
    buffer.as_mut_slice().fill(7)?;
    buffer.resize_zeroed(4 << 20)?;
    let bytes = [vec![7; 2 << 20], vec![0; 2 << 20]].concat();
    Ok((buffer, bytes))
}

#[apply(case)]
fn a_move_that_fails_puts_the_memory_back(env: &Environment) -> Result<()> {
    let control = env.control()?;
    let (here, node) = (Location::Device(env.device()?), Location::HostNuma(0));
    let calls = [
        // The copy's mapping is taken apart, and tried again when it is dropped; then both parts.
        ("cuMemUnmap", 1..=3),
        // Where it is copied to, and where it was.
        ("cuMemMap", 1..=2),
        ("cuMemSetAccess", 1..=2),
        ("cuMemCreate", 1..=1),
        ("cuMemAddressReserve", 1..=1),
    ];
    for (function, times) in calls {
        for nth in times {
            let (mut buffer, bytes) = of_two_parts(env)?;
            let failures = drop_counts().failures;
            control.fail_without_effect(function, nth, CUresult::CUDA_ERROR_UNKNOWN);
            let moved = buffer.move_memory_to(node);
            control.clear_faults();
            let Err(error) = moved else {
                bail!("{function} {nth}: the failure was neither returned nor reported");
            };
            ensure!(error.function() == Some(function), "{error}");
            ensure!(
                buffer.to_vec()? == bytes && buffer.device() == Some(env.device()?),
                "{function} {nth}"
            );
            ensure!(drop_counts().failures == failures, "it was told twice");
            buffer.move_memory_to(node)?;
            ensure!(buffer.to_vec()? == bytes && buffer.device().is_none());
            buffer.move_memory_to(here)?;
            ensure!(buffer.to_vec()? == bytes);
        }
    }
    Ok(())
}

/// Neither the memory nor the copy.
#[apply(case)]
fn elements_that_cannot_be_added_are_not_shown(env: &Environment) -> Result<()> {
    let (control, stream) = (env.control()?, env.stream()?);
    let memory = MappedMemory::builder(&env.device()?)
        .reserve(64 << 20)
        .build(1)?;
    let mut buffer = memory.into_buffer::<u8>(&stream, 0)?;
    buffer.extend_from_slice(&[1, 2, 3])?;
    let more = vec![4; buffer.capacity()];
    for function in [
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemcpyHtoDAsync_v2",
        "cuStreamSynchronize",
    ] {
        control.fail(function, 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let Err(error) = buffer.extend_from_slice(&more) else {
            bail!("{function} failed, and nothing was said");
        };
        ensure!(error.kind() == ErrorKind::OutOfMemory, "{error}");
        control.clear_faults();
        ensure!(buffer.to_vec()? == [1, 2, 3], "{function}");
    }
    buffer.extend_from_slice(&more)?;
    ensure!(buffer.to_vec()? == [vec![1, 2, 3], more].concat());
    Ok(())
}

#[apply(case)]
fn memory_that_is_not_put_back_is_not_shown(env: &Environment) -> Result<()> {
    let control = env.control()?;
    let (mut buffer, bytes) = of_two_parts(env)?;
    // The first part is gone when the second one cannot be taken away; where it is copied to was mapped before.
    control.fail_without_effect("cuMemUnmap", 3, CUresult::CUDA_ERROR_UNKNOWN);
    control.fail_without_effect("cuMemMap", 2, CUresult::CUDA_ERROR_UNKNOWN);
    let moved = buffer.move_memory_to(Location::HostNuma(0));
    control.clear_faults();
    ensure!(moved.is_err());
    ensure!((buffer.len(), buffer.capacity()) == (0, 0));
    ensure!(buffer.as_mut_slice().fill(1).is_ok() && buffer.to_vec()?.is_empty());
    ensure!(buffer.as_mut_slice().copy_from(&bytes).is_err());
    // What was there comes back.
    buffer.resize_uninit(4 << 20)?;
    ensure!(buffer.to_vec()? == bytes);
    Ok(())
}

/// Of another driver everything is refused, and nothing is changed.
#[apply(case)]
fn two_drivers_do_not_mix(env: &Environment) -> Result<()> {
    // SAFETY: it is the simulated driver, opened a second time.
    let second = unsafe { Driver::load_from(sim_path()?) }?;
    let (device, other) = (env.device()?, second.device(0)?);
    let (own, foreign) = (Location::Device(device), Location::Device(other));
    let stream = other.primary_context()?.stream()?;
    let refused = |what: &str, result: Result<(), Error>| -> Result<()> {
        let Err(error) = result else {
            bail!("{what}: two drivers were mixed");
        };
        ensure!(error.kind() == ErrorKind::InvalidValue, "{what}: {error}");
        ensure!(error.to_string().contains("two drivers"), "{what}: {error}");
        Ok(())
    };
    let physical = PhysicalMemory::builder_at(env.driver, foreign);
    refused("granularity", physical.granularity().map(drop))?;
    refused("create", physical.build(1).map(drop))?;
    let memory = PhysicalMemory::builder(&device).build(1)?;
    let range = AddressRange::reserve(env.driver, 1, 0)?;
    let mapping = range.map(0, &memory)?;
    refused("set", mapping.set_access([(foreign, Access::ReadWrite)]))?;
    refused("ask", mapping.access(foreign).map(drop))?;
    let builder = || MappedMemory::builder(&device);
    let at = MappedMemory::builder_at(env.driver, foreign);
    refused("place", at.build(1).map(drop))?;
    let accessible = builder().accessible_from([foreign]);
    refused("access", accessible.build(1).map(drop))?;
    let striped = builder().striped_over([&device, &other]);
    refused("stripes", striped.build(1).map(drop))?;
    let mut memory = builder().build(1)?;
    refused("later", memory.set_access([(foreign, Access::ReadWrite)]))?;
    refused("stream", memory.move_to(own, &stream))?;
    refused("to", memory.move_to(foreign, &env.stream()?))?;
    let Err(failed) = memory.into_buffer::<u8>(&stream, 1) else {
        bail!("a buffer on a stream of another driver");
    };
    refused("buffer", Err(failed.error))?;
    let memory = failed.object.context("it did not come back")?;
    let mut buffer = memory.into_buffer::<u8>(&env.stream()?, 1)?;
    refused("move", buffer.move_memory_to(foreign))?;
    buffer.as_mut_slice().fill(1)?;
    ensure!(buffer.to_vec()? == [1]);
    Ok(())
}

fn listed(kind: LedgerKind) -> (i64, i64) {
    let report = Ledger::report();
    let mut of = report.of(kind);
    of.next().map_or((0, 0), |group| (group.count, group.bytes))
}

#[apply(case)]
fn the_ledger_knows_what_was_not_given_back(env: &Environment) -> Result<()> {
    use LedgerKind as K;
    let control = env.control()?;
    let before = control.live().physical_allocations;
    Ledger::enable(LedgerLevel::Bytes);
    let memory = PhysicalMemory::builder(&env.device()?)
        .handle_types(handles::KIND)
        .build(1)?;
    let bytes = memory.size_bytes() as i64;
    // What was never listed does not end.
    let handle = handles::of_memory(&memory)?;
    let unknown = CUresult::CUDA_ERROR_UNKNOWN;
    control.fail("cuMemGetAllocationPropertiesFromHandle", 1, unknown);
    let imported = handles::import_memory(env.driver, &handle, memory.size_bytes());
    ensure!(imported.is_err() && listed(K::PhysicalMemory) == (1, bytes));
    ensure!(control.live().physical_allocations == before + 1);
    // What is refused stays.
    let refusal = CUresult::CUDA_ERROR_INVALID_VALUE;
    control.fail_without_effect("cuMemRelease", 1, refusal);
    drop(memory);
    ensure!(listed(K::PhysicalMemory) == (1, bytes));
    let range = AddressRange::reserve(env.driver, 1, 0)?;
    control.fail_without_effect("cuMemAddressFree", 1, refusal);
    drop(range);
    ensure!(listed(K::AddressRange) == (1, 0), "addresses are no memory");
    control.clear_faults();
    Ledger::enable(LedgerLevel::Off);
    Ok(())
}
