//! Every driver call of pinned and registered memory fails once, in turn, with several codes. Each time
//! the caller gets a typed error, or the destructor reports; nothing is left over, nothing panics.

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::mapped::RegisterFlags;
use cuda_mem::memory::{HostFlags, PinnedResource};
use cuda_mem::sys::CUresult;
use cuda_mem::{Driver, Error, ErrorKind, Resource};
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::executor::block_on;
use cuda_mem_tests::sweep::meaning::{CAPTURES, HOST_MEMORY, NOT_READY, STUB};
use cuda_mem_tests::sweep::{self, Scenario};

const LEN: usize = 1000;

/// Everything of host memory, in one go.
fn host_memory(driver: Driver) -> Result<(), Error> {
    let device = driver.devices()?.swap_remove(0);
    let context = device.primary_context()?;
    let stream = context.stream()?;
    let pool = device.default_pool()?;
    let mut buffer = pool.alloc_zeroed::<u8>(&stream, LEN)?;
    {
        let flags = HostFlags::PORTABLE | HostFlags::WRITE_COMBINED;
        let resource = Resource::new(PinnedResource::with_flags(driver, flags));
        drop(resource.alloc::<u8>(&stream, LEN)?);
        let pinned = context.pinned_with::<u8>(LEN, flags)?;
        assert!(pinned.flags()?.contains(flags));
    }
    let pinned = context.pinned_from(&[1u8; LEN])?;
    let mut loan = pinned.lend(&stream)?;
    loan.copy_to(&mut buffer)?;
    buffer.fill(2)?;
    loan.copy_from(&buffer)?;
    loan.is_done()?;
    let pinned = loan.take_back()?;
    assert_eq!(*pinned, [2; LEN]);
    // Done already: the thread that waits would make calls of its own.
    let pinned = block_on(pinned.lend(&stream)?.returned())?;
    // This one ends as a loan.
    drop(pinned.lend(&stream)?);
    let flags = RegisterFlags::default() | RegisterFlags::READ_ONLY;
    let mut memory = [3u8; LEN];
    let registered = context.register(&mut memory, flags)?;
    assert_ne!(registered.device_address(&context)?, 0);
    buffer.copy_from(&registered)?;
    drop(registered);
    let boxed = context.register_boxed(vec![4u8; LEN].into(), RegisterFlags::default())?;
    let loan = boxed.lend(&stream)?;
    loan.copy_to(&mut buffer)?;
    let boxed = loan.take_back()?;
    assert_eq!(boxed.unregister()?.as_deref(), Some(&[4; LEN][..]));
    // What ends below has nothing outstanding then.
    drop(buffer);
    context.synchronize()
}

const SCENARIO: Scenario = Scenario {
    run: host_memory,
    at_least: 60,
    answers: &[STUB, CAPTURES, NOT_READY],
    leftovers: &[HOST_MEMORY],
};

#[apply(case)]
fn every_call_of_host_memory_fails_once(env: &Environment) -> Result<()> {
    sweep::in_parts(env, SCENARIO)
}

#[apply(case)]
fn a_sample_of_pairs_of_calls_fails(env: &Environment) -> Result<()> {
    sweep::every_pair_fails(env, SCENARIO)
}

#[apply(case)]
fn memory_that_could_not_be_freed_comes_back(env: &Environment) -> Result<()> {
    let (context, control) = (env.context()?, env.control()?);
    control.reset();
    let before = control.live().host_allocations;
    let pinned = context.pinned_from(&[7u8; LEN])?;
    control.fail_without_effect("cuMemFreeHost", 1, CUresult::CUDA_ERROR_INVALID_VALUE);
    let Err(failed) = pinned.free() else {
        bail!("the failure was lost");
    };
    ensure!(failed.error.kind() == ErrorKind::InvalidValue);
    let pinned = failed.object.context("the memory was not given back")?;
    ensure!(*pinned == [7; LEN]);
    // An earlier fault that is reported now says nothing about the memory.
    control.fail("cuMemFreeHost", 1, CUresult::CUDA_ERROR_LAUNCH_FAILED);
    let Err(failed) = pinned.free() else {
        bail!("the failure was lost");
    };
    ensure!(failed.object.is_none() && control.live().host_allocations == before);
    Ok(())
}

/// Setting the capture mode is the first call that finds the driver shut down.
#[apply(case)]
fn memory_that_ends_after_the_driver_waits_for_no_capture(env: &Environment) -> Result<()> {
    let (context, control) = (env.context()?, env.control()?);
    let shut_down = || {
        let function = "cuThreadExchangeStreamCaptureMode";
        control.fail(function, 1, CUresult::CUDA_ERROR_DEINITIALIZED);
    };
    let (dropped, freed) = (context.pinned::<u8>(LEN)?, context.pinned::<u8>(LEN)?);
    let before = cuda_mem::base::drop_counts();
    shut_down();
    drop(dropped);
    let after = cuda_mem::base::drop_counts();
    ensure!(after.too_late == before.too_late + 1, "{after:?}");
    ensure!(after.waiting == before.waiting, "{after:?}");
    shut_down();
    let failed = freed.free().err().context("it was freed")?;
    ensure!(failed.error.kind() == ErrorKind::Deinitialized, "{failed}");
    Ok(())
}

#[apply(case)]
fn a_box_that_may_be_registered_is_not_freed(env: &Environment) -> Result<()> {
    let (context, control) = (env.context()?, env.control()?);
    control.reset();
    let flags = RegisterFlags::default();
    control.fail(
        "cuMemHostRegister_v2",
        1,
        CUresult::CUDA_ERROR_LAUNCH_FAILED,
    );
    let failed = context.register_boxed(vec![1u8; LEN].into(), flags);
    let Err(failed) = failed else {
        bail!("the failure was lost");
    };
    ensure!(
        failed.object.is_none(),
        "whether it is registered is not known"
    );
    let boxed = context.register_boxed(vec![1u8; LEN].into(), flags)?;
    control.fail("cuMemHostUnregister", 1, CUresult::CUDA_ERROR_LAUNCH_FAILED);
    let Err(failed) = boxed.unregister() else {
        bail!("the failure was lost");
    };
    ensure!(failed.object.is_none() && control.calls("cuMemHostUnregister") == 1);
    Ok(())
}

#[apply(case)]
fn a_loan_that_could_not_be_waited_for_goes_on(env: &Environment) -> Result<()> {
    let (context, stream, control) = (env.context()?, env.stream()?, env.control()?);
    control.reset();
    let loan = context.pinned_from(&[7u8; LEN])?.lend(&stream)?;
    control.fail("cuStreamSynchronize", 1, CUresult::CUDA_ERROR_UNKNOWN);
    let Err(failed) = loan.take_back() else {
        bail!("the failure was lost");
    };
    let loan = failed.object.context("the loan was not given back")?;
    let pinned = loan.take_back()?;
    ensure!(*pinned == [7; LEN]);
    control.fail("cuMemHostGetDevicePointer_v2", 1, CUresult(1));
    let Err(failed) = pinned.lend(&stream) else {
        bail!("the failure was lost");
    };
    let loan = failed
        .object
        .context("it was not given back")?
        .lend(&stream)?;
    // Dropped, its memory leaks rather than end under a copy.
    let before = cuda_mem::base::drop_counts();
    control.fail("cuStreamSynchronize", 1, CUresult::CUDA_ERROR_UNKNOWN);
    drop(loan);
    ensure!(cuda_mem::base::drop_counts().failures == before.failures + 1);
    ensure!(control.live().host_allocations > 0);
    Ok(())
}

#[apply(case)]
fn pinned_memory_without_a_device_address_is_given_back(env: &Environment) -> Result<()> {
    let (stream, control) = (env.stream()?, env.control()?);
    let flags = HostFlags::PORTABLE | HostFlags::WRITE_COMBINED;
    let pinned = PinnedResource::with_flags(env.driver, flags);
    ensure!(pinned.flags() == flags);
    let resource = Resource::new(pinned);
    let before = control.live().host_allocations;
    let function = "cuMemHostGetDevicePointer_v2";
    control.fail(function, 1, CUresult::CUDA_ERROR_UNKNOWN);
    let answer = resource.alloc::<u8>(&stream, LEN).map(drop);
    let error = answer.err().context("the failure was lost")?;
    ensure!(error.function() == Some(function), "{error}");
    ensure!(control.live().host_allocations == before);
    Ok(())
}
