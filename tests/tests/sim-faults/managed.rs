//! Managed memory where only the simulator can show it: every call fails once, in turn; nothing is left; and
//! a machine without concurrent managed access.

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::driver::{AllocationType, Location};
use cuda_mem::mapped::{Advice, ManagedBuffer};
use cuda_mem::placement::{AccessPattern, PlacementKind, PlacementRequest, Topology};
use cuda_mem::sys::CUresult;
use cuda_mem::{Driver, Error, ErrorKind, MemoryPool};
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::own_process;
use cuda_mem_tests::suite::Suite;
use cuda_mem_tests::sweep::meaning::{CAPTURES, NOT_WAITED_FOR, STUB, UNKNOWN_ATTRIBUTE};
use cuda_mem_tests::sweep::{self, Scenario};

/// On a device without concurrent managed access.
pub(crate) const REFUSED: Suite = Suite::made_of("managed-refused", |test| {
    test.is_in("sim_faults::managed::refused")
})
.staged()
.serial()
.sim_only();

/// All that is done with managed memory. It ends by being dropped.
fn everything(driver: Driver) -> Result<(), Error> {
    let device = driver.device(0)?;
    let context = device.primary_context()?;
    let (stream, other) = (context.stream()?, context.stream()?);
    let here = Location::Device(device);
    let mut buffer = ManagedBuffer::<u32>::zeroed(&stream, 1 << 19)?;
    buffer.host_mut()?[0] = 1;
    let half = buffer.range(..1 << 18)?;
    for advice in [Advice::ReadMostly, Advice::PreferredLocation(here)] {
        half.advise(advice)?;
        buffer.unadvise(advice)?;
    }
    buffer.advise(Advice::AccessedBy(Location::Host))?;
    buffer.prefetch(here)?;
    buffer.prefetch_on(&other, Location::HostNuma(0))?;
    let info = buffer.info()?;
    assert_eq!(info.accessed_by, [Location::Host]);
    assert_eq!(info.last_prefetch, Some(Location::HostNuma(0)));
    buffer.as_mut_slice().on(&other)?.fill(2)?;
    assert!(buffer.host()?.iter().all(|number| *number == 2));
    drop(buffer);
    stream.synchronize()?;
    context.synchronize()
}

const SCENARIO: Scenario = Scenario {
    run: everything,
    at_least: 60,
    answers: &[STUB, UNKNOWN_ATTRIBUTE, CAPTURES],
    leftovers: &[NOT_WAITED_FOR],
};

#[apply(case)]
fn a_sample_of_pairs_of_calls_fails(env: &Environment) -> Result<()> {
    sweep::every_pair_fails(env, SCENARIO)
}

#[apply(case)]
fn every_call_of_managed_memory_fails_once(env: &Environment) -> Result<()> {
    sweep::every_call_fails_once(env, SCENARIO)?;
    let control = env.control()?;
    control.reset();
    everything(env.driver)?;
    for function in [
        "cuMemAdvise_v2",
        "cuMemPrefetchAsync_v2",
        "cuMemRangeGetAttributes",
    ] {
        ensure!(control.calls(function) > 0, "{function} was not called");
    }
    Ok(())
}

#[apply(case)]
fn a_call_that_fails_changes_nothing(env: &Environment) -> Result<()> {
    let (stream, control) = (env.stream()?, env.control()?);
    let here = Location::Device(env.device()?);
    let mut buffer = ManagedBuffer::<u32>::uninit(&stream, 1 << 20)?;
    buffer.host_mut()?.fill(5);
    let before = (control.live(), buffer.info()?);
    for function in ["cuMemAdvise_v2", "cuMemPrefetchAsync_v2"] {
        control.fail(function, 1, CUresult::CUDA_ERROR_UNKNOWN);
        let answer = match function {
            "cuMemAdvise_v2" => buffer.advise(Advice::ReadMostly),
            _ => buffer.prefetch(here),
        };
        let error = answer.err().context("the failure was lost")?;
        ensure!(error.function() == Some(function), "{error}");
        ensure!(
            error.to_string().contains("elements 0 to 1048576"),
            "{error}"
        );
        ensure!((control.live(), buffer.info()?) == before, "{function}");
    }
    control.fail("cuMemRangeGetAttributes", 1, CUresult::CUDA_ERROR_UNKNOWN);
    ensure!(buffer.info().is_err());
    ensure!(
        buffer.migrations().prefetches == 0,
        "what failed is no journey"
    );
    ensure!(buffer.host()?.iter().all(|number| *number == 5));
    Ok(())
}

#[apply(case)]
fn a_buffer_that_could_not_be_freed_comes_back(env: &Environment) -> Result<()> {
    let (stream, control) = (env.stream()?, env.control()?);
    let mut buffer = ManagedBuffer::<u8>::uninit(&stream, 1000)?;
    buffer.host_mut()?.fill(7);
    buffer.prefetch(Location::Host)?;
    let before = control.live();
    control.fail_without_effect("cuMemFree_v2", 1, CUresult::CUDA_ERROR_INVALID_VALUE);
    let Err(failed) = buffer.into_buffer().free() else {
        bail!("the failure was lost");
    };
    let buffer = failed.object.context("the buffer was not given back")?;
    ensure!(control.live() == before);
    ensure!(buffer.to_vec()? == [7; 1000]);
    buffer.free()?;
    ensure!(control.live().allocations == before.allocations - 1);
    Ok(())
}

#[apply(case)]
fn without_concurrent_access_the_host_is_refused(_: &Environment) -> Result<()> {
    let output = own_process::command(REFUSED.name)?
        .env("CUDA_SIM_DRIVER_MODEL", "wddm")
        .env("CUDA_SIM_DEVICES", "2")
        .env_remove("CUDA_VISIBLE_DEVICES")
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let is_fine = output.status.success() && text.contains("1 passed");
    ensure!(is_fine, "{text}{errors}");
    Ok(())
}

mod refused {
    use super::*;

    #[apply(case_staged)]
    fn what_needs_concurrent_access_says_so(env: &Environment) -> Result<()> {
        let stream = env.stream()?;
        let here = Location::Device(env.device()?);
        let mut buffer = ManagedBuffer::from_slice(&stream, &[1_u8, 2, 3])?;
        for answer in [
            buffer.host().map(drop),
            buffer.host_mut().map(drop),
            buffer.prefetch(here),
            buffer.advise(Advice::PreferredLocation(here)),
            buffer.advise(Advice::AccessedBy(here)),
        ] {
            let error = answer.err().context("accepted")?;
            ensure!(error.kind() == ErrorKind::NotSupported, "{error}");
            ensure!(error.to_string().contains("attribute 89"), "{error}");
        }
        // What the driver copies is as good as ever.
        buffer.as_mut_slice().fill(4)?;
        ensure!(buffer.to_vec()? == [4; 3]);
        ensure!(ManagedBuffer::<u8>::uninit(&stream, 0)?.host()?.is_empty());
        // What is to be used in turns is therefore placed elsewhere, also if the device that refuses was not gathered,
        // or only it.
        let devices = env.driver.devices()?;
        ensure!(devices.len() == 2);
        let request = PlacementRequest::bytes(1).access(AccessPattern::SharedInTurns);
        for devices in [&devices[..1], &devices] {
            let mut machine = Topology::gather(devices)?;
            ensure!(machine.others_concurrent_managed_access == (devices.len() == 2));
            for device in &mut machine.devices {
                device.capabilities.concurrent_managed_access |= devices.len() == 1;
            }
            let placement = request.place(&machine)?;
            ensure!(placement.kind != PlacementKind::Managed, "{placement}");
        }
        Ok(())
    }
}

/// Such memory is renewed by a prefetch (R190).
#[apply(case)]
fn memory_of_a_managed_pool_that_is_not_renewed_is_freed(env: &Environment) -> Result<()> {
    let (stream, control) = (env.stream()?, env.control()?);
    let place = (Location::Anywhere, AllocationType::Managed);
    let pool = MemoryPool::builder_at(env.driver, place.0, place.1).build()?;
    let function = "cuMemPrefetchAsync_v2";
    control.fail(function, 1, CUresult::CUDA_ERROR_UNKNOWN);
    let answer = pool.alloc::<u8>(&stream, 1000).map(drop);
    let error = answer.err().context("the failure was lost")?;
    ensure!(error.function() == Some(function), "{error}");
    ensure!(pool.stats()?.used.current == 0);
    Ok(())
}

/// Its place is only a preference, so a driver may know no current pool there. Other failures are told.
#[apply(case)]
fn a_managed_pool_ends_where_no_pool_is_current(env: &Environment) -> Result<()> {
    const CURRENT: &str = "cuMemGetMemPool";
    let control = env.control()?;
    let at = |place, kind| MemoryPool::builder_at(env.driver, place, kind).build();
    let managed = || at(Location::Anywhere, AllocationType::Managed);
    let no_value = CUresult::CUDA_ERROR_INVALID_VALUE;
    let pool = managed()?;
    control.fail(CURRENT, 1, no_value);
    pool.close()?;
    let on_host = at(Location::Host, AllocationType::Pinned)?;
    for (pool, code) in [
        (managed()?, CUresult::CUDA_ERROR_UNKNOWN),
        (on_host, no_value),
    ] {
        control.fail(CURRENT, 1, code);
        let Err(failed) = pool.close() else {
            bail!("the failure was lost");
        };
        ensure!(failed.error.code() == Some(code), "{}", failed.error);
        let pool = failed.object.context("the pool was not given back")?;
        pool.close()?;
    }
    Ok(())
}
