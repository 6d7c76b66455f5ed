//! Single failures of the driver, and what follows from each. For all calls in turn see `sweep.rs`.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Waker};

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::interop::CaptureMode;
use cuda_mem::memory::{LimitAdaptor, PinnedResource};
use cuda_mem::sys::CUresult;
use cuda_mem::{DeviceBuffer, Driver, ErrorKind, MemoryPool, Resource};
use cuda_mem_tests::environment::{Environment, sim_path};
use cuda_mem_tests::executor::block_on;
use cuda_mem_tests::hold::hold;
use cuda_sim::control::Control;

/// So many frees have no effect from now on. One is tried twice, in case that a capture was the reason.
pub(super) fn refuse_frees(control: &Control, frees: u64) {
    for nth in 1..=frees {
        control.fail_without_effect("cuMemFreeAsync", nth, CUresult::CUDA_ERROR_INVALID_VALUE);
    }
}

#[apply(case)]
fn a_buffer_that_could_not_be_freed_comes_back(env: &Environment) -> Result<()> {
    let (pool, stream, control) = (env.pool()?, env.stream()?, env.control()?);
    let buffer = pool.alloc_from(&stream, &[7_u8; 100])?;
    refuse_frees(control, 2);
    let Err(failed) = buffer.free() else {
        bail!("the failure was lost");
    };
    ensure!(failed.error.kind() == ErrorKind::InvalidValue);
    let buffer = failed.object.context("the buffer was not given back")?;
    ensure!(buffer.to_vec()? == [7; 100]);
    buffer.free()?;
    ensure!(pool.stats()?.used.current == 0);
    Ok(())
}

#[apply(case)]
fn a_buffer_that_another_stream_could_not_free_is_as_before(env: &Environment) -> Result<()> {
    let (pool, home, other) = (env.pool()?, env.stream()?, env.stream()?);
    let buffer = pool.alloc_from(&home, &[7_u8; 100])?;
    let control = env.control()?;
    refuse_frees(control, 2);
    let Err(failed) = buffer.free_on(&other) else {
        bail!("the failure was lost");
    };
    let buffer = failed.object.context("the buffer was not given back")?;
    ensure!(*buffer.stream() == home && buffer.to_vec()? == [7; 100]);
    Ok(())
}

#[apply(case)]
fn a_buffer_that_was_not_freed_after_others_comes_back_if_it_is_there(
    env: &Environment,
) -> Result<()> {
    let (stream, other, control) = (env.stream()?, env.stream()?, env.control()?);
    let resource = Resource::from(env.pool()?);
    let buffer = resource.alloc_from(&stream, &[7_u8; 100])?;
    refuse_frees(control, 2);
    let Err(failed) = buffer.free_after([&other]) else {
        bail!("the failure was lost");
    };
    let buffer = failed.object.context("the buffer was not given back")?;
    ensure!(buffer.to_vec()? == [7; 100]);
    // An earlier fault, told by a call that frees all the same.
    control.fail("cuMemFreeAsync", 1, CUresult::CUDA_ERROR_LAUNCH_FAILED);
    let Err(failed) = buffer.free_after([&other]) else {
        bail!("the failure was lost");
    };
    ensure!(failed.object.is_none() && failed.error.kind() == ErrorKind::DeviceFault);
    Ok(())
}

/// The free was not tried, so the memory is still allocated from every resource on the way.
#[apply(case)]
fn memory_whose_stream_could_not_be_waited_for_comes_back(env: &Environment) -> Result<()> {
    let (stream, control) = (env.stream()?, env.control()?);
    let limit = Arc::new(LimitAdaptor::new(PinnedResource::new(env.driver), 1 << 20));
    let buffer = Resource::from(Arc::clone(&limit)).alloc::<u8>(&stream, 1000)?;
    let faults = [
        CUresult::CUDA_ERROR_UNKNOWN,
        CUresult::CUDA_ERROR_LAUNCH_FAILED,
    ];
    for (nth, fault) in (1..).zip(faults) {
        control.fail("cuStreamSynchronize", nth, fault);
    }
    let mut buffer = Some(buffer);
    for kind in [ErrorKind::Other, ErrorKind::DeviceFault] {
        let Some(Err(failed)) = buffer.take().map(DeviceBuffer::free) else {
            bail!("the failure was lost");
        };
        ensure!(failed.error.kind() == kind, "{}", failed.error);
        ensure!(limit.allocated() == 1000, "{} bytes", limit.allocated());
        buffer = failed.object;
    }
    buffer.context("the buffer was not given back")?.free()?;
    ensure!(limit.allocated() == 0, "{} bytes", limit.allocated());
    Ok(())
}

/// As above, where the free was to come after another stream's work.
#[apply(case)]
fn memory_whose_streams_could_not_be_ordered_comes_back(env: &Environment) -> Result<()> {
    let (stream, other, control) = (env.stream()?, env.stream()?, env.control()?);
    let limit = Arc::new(LimitAdaptor::new(env.pool()?, 1 << 20));
    let resource = Resource::from(Arc::clone(&limit));
    let mut buffer = resource.alloc::<u8>(&stream, 1000)?;
    for function in ["cuEventRecord", "cuStreamWaitEvent"] {
        control.fail_without_effect(function, 1, CUresult::CUDA_ERROR_UNKNOWN);
        let Err(failed) = buffer.free_after([&other]) else {
            bail!("{function}: the failure was lost");
        };
        ensure!(
            limit.allocated() == 1000,
            "{function}: {} bytes",
            limit.allocated()
        );
        buffer = failed.object.context("the buffer was not given back")?;
    }
    buffer.free()?;
    ensure!(limit.allocated() == 0, "{} bytes", limit.allocated());
    Ok(())
}

/// An earlier fault may be reported by a call that does its work all the same. Freeing again
/// could free what somebody else has got since.
#[apply(case)]
fn what_may_be_released_is_not_released_again(env: &Environment) -> Result<()> {
    let (pool, stream, control) = (env.shareable_pool()?, env.stream()?, env.control()?);
    control.reset();
    let first = pool.alloc::<u8>(&stream, 1000)?;
    let address = first.as_raw();
    control.fail("cuMemFreeAsync", 1, CUresult::CUDA_ERROR_LAUNCH_FAILED);
    let Err(failed) = first.free() else {
        bail!("the failure was lost");
    };
    ensure!(failed.object.is_none() && failed.error.kind() == ErrorKind::DeviceFault);
    let second = pool.alloc_from(&stream, &[2_u8; 1000])?;
    ensure!(second.as_raw() == address, "the simulator did free it");
    drop(failed);
    ensure!(
        control.calls("cuMemFreeAsync") == 1,
        "it was freed a second time"
    );
    drop(second);

    stream.synchronize()?;
    control.fail("cuMemPoolDestroy", 1, CUresult::CUDA_ERROR_LAUNCH_FAILED);
    let Err(failed) = pool.close() else {
        bail!("the failure was lost");
    };
    ensure!(failed.object.is_none());
    ensure!(control.calls("cuMemPoolDestroy") == 1);
    ensure!(control.reports().is_empty(), "{:?}", control.reports());
    Ok(())
}

/// The source of a copy is not freed before the copy has read it, whatever fails.
#[apply(case)]
fn a_source_remembers_a_copy_that_it_could_not_wait_for(env: &Environment) -> Result<()> {
    let (pool, from, to) = (env.pool()?, env.stream()?, env.stream()?);
    let control = env.control()?;
    let source = pool.alloc_from(&from, &[1_u8; 1000])?;
    let mut target = pool.alloc::<u8>(&to, 1000)?;
    to.synchronize()?;
    control.reset();
    let held = cuda_mem_tests::hold::hold(&to)?;
    // The second recording is that of the way back.
    control.fail("cuEventRecord", 2, CUresult::CUDA_ERROR_UNKNOWN);
    let Err(error) = target.copy_from_device(&source) else {
        bail!("the failure was lost");
    };
    ensure!(error.function() == Some("cuEventRecord"), "{error}");
    ensure!(from.is_done()?, "nothing waits yet");
    drop(source);
    ensure!(!from.is_done()?, "the free did not wait for the copy");
    drop(held);
    ensure!(target.to_vec()? == [1; 1000]);
    ensure!(control.reports().is_empty(), "{:?}", control.reports());
    Ok(())
}

/// Nobody may free memory that a stream still uses, also not its owner.
#[apply(case)]
fn an_owner_is_not_dropped_when_a_wait_failed(env: &Environment) -> Result<()> {
    let (home, other) = (env.stream()?, env.stream()?);
    let control = env.control()?;
    let theirs = Arc::new(env.pool()?.alloc_zeroed::<u8>(&home, 1000)?);
    // SAFETY: the memory is that of `theirs`, which is kept and frees in the same stream.
    let mut view = unsafe {
        let owner = Arc::clone(&theirs);
        cuda_mem::DeviceBuffer::<u8>::borrow_raw(&home, theirs.as_raw(), 1000, owner)
    };
    home.synchronize()?;
    let held = cuda_mem_tests::hold::hold(&other)?;
    view.on(&other).map(std::mem::forget)?;
    control.reset();
    control.fail("cuEventRecord", 1, CUresult::CUDA_ERROR_UNKNOWN);
    drop(view);
    drop(held);
    ensure!(
        Arc::strong_count(&theirs) == 2,
        "the owner was let go although `other` may use the memory"
    );
    ensure!(control.reports().is_empty(), "{:?}", control.reports());
    Ok(())
}

/// A hook may own what fails to drop when it is replaced.
#[apply(case)]
fn a_hook_is_replaced_without_its_own_lock(env: &Environment) -> Result<()> {
    let (pool, stream, control) = (env.pool()?, env.stream()?, env.control()?);
    let owned = pool.alloc::<u8>(&stream, 10)?;
    cuda_mem::base::on_drop_failure(move |_| {
        let _ = &owned;
    });
    control.fail("cuMemFreeAsync", 1, CUresult::CUDA_ERROR_UNKNOWN);
    let before = cuda_mem::base::drop_counts();
    cuda_mem::base::on_drop_failure(|_| {});
    ensure!(cuda_mem::base::drop_counts().failures == before.failures + 1);
    Ok(())
}

#[apply(case)]
fn a_driver_that_is_going_down_is_no_failure(env: &Environment) -> Result<()> {
    let (pool, stream, control) = (env.pool()?, env.stream()?, env.control()?);
    let before = cuda_mem::base::drop_counts();
    let buffer = pool.alloc::<u8>(&stream, 10)?;
    control.fail("cuMemFreeAsync", 1, CUresult::CUDA_ERROR_DEINITIALIZED);
    drop(buffer);
    let after = cuda_mem::base::drop_counts();
    ensure!(after.failures == before.failures && after.too_late == before.too_late + 1);
    Ok(())
}

#[apply(case)]
fn a_wait_that_failed_is_made_up_for(env: &Environment) -> Result<()> {
    let (pool, stream, other) = (env.pool()?, env.stream()?, env.stream()?);
    let control = env.control()?;
    let mut buffer = pool.alloc_zeroed::<u8>(&stream, 100)?;
    stream.synchronize()?;
    let before = cuda_mem::base::drop_counts();
    let lent = buffer.on(&other)?;
    let held = cuda_mem_tests::hold::hold(&other)?;
    control.fail("cuEventRecord", 1, CUresult::CUDA_ERROR_UNKNOWN);
    drop(lent);
    ensure!(cuda_mem::base::drop_counts().failures == before.failures + 1);
    ensure!(stream.is_done()?, "the wait was not made");
    buffer.fill(1)?;
    ensure!(!stream.is_done()?, "the next use makes the wait");
    drop(held);
    ensure!(buffer.to_vec()? == [1; 100]);
    Ok(())
}

/// Memory that is only read has no use that waits for them.
#[apply(case)]
fn readers_that_could_not_be_waited_for_are_forgotten_at_a_later_read(
    env: &Environment,
) -> Result<()> {
    const ROUNDS: u64 = 100;
    let (stream, control) = (env.stream()?, env.control()?);
    let weights = env.pool()?.alloc_zeroed::<u8>(&stream, 100)?;
    let copy = env.pool()?.alloc::<u8>(&stream, 100)?;
    stream.synchronize()?;
    control.reset();
    for _ in 0..ROUNDS {
        let reader = env.stream()?;
        let slice = weights.as_slice().read_on(&reader)?;
        // In a captured stream nothing can be made to wait.
        stream.capture(CaptureMode::Relaxed, |_| {
            drop(slice);
            Ok(())
        })?;
    }
    let copied = env.stream()?;
    let mut theirs = env.pool()?.alloc::<u8>(&copied, 100)?;
    // The copy is noted, because its last wait fails.
    control.fail("cuStreamWaitEvent", 2, CUresult::CUDA_ERROR_UNKNOWN);
    ensure!(theirs.copy_from_device(&copy).is_err());
    drop((theirs, copied));
    let destroyed = || control.calls("cuStreamDestroy_v2");
    ensure!(destroyed() <= ROUNDS, "{}", destroyed());
    ensure!(weights.to_vec()? == [0; 100] && copy.to_vec()?.len() == 100);
    ensure!(destroyed() == ROUNDS + 1, "{} of {ROUNDS}", destroyed());
    Ok(())
}

#[apply(case)]
fn a_library_without_a_function_is_a_typed_error(env: &Environment) -> Result<()> {
    let mut table = *env.driver.table();
    table.cuMemPoolCreate = None;
    // SAFETY: the rest is the simulated driver's.
    let driver = unsafe { Driver::from_table(Box::leak(Box::new(table))) }?;
    let Err(error) = MemoryPool::builder(&driver.device(0)?).build() else {
        bail!("a pool without cuMemPoolCreate");
    };
    ensure!(error.kind() == ErrorKind::SymbolMissing);
    ensure!(error.to_string().contains("CUDA 11.2"), "{error}");
    Ok(())
}

#[apply(case)]
fn two_drivers_do_not_mix(env: &Environment) -> Result<()> {
    // SAFETY: it is the simulated driver, opened a second time.
    let second = unsafe { Driver::load_from(sim_path()?) }?;
    ensure!(second != env.driver);
    let foreign = second.device(0)?.primary_context()?.stream()?;
    let pool = env.pool()?;
    let refused = pool.alloc::<u8>(&foreign, 10).map_err(|error| error.kind());
    ensure!(matches!(refused, Err(ErrorKind::InvalidValue)));
    let waited = env
        .stream()?
        .wait_for(&foreign)
        .map_err(|error| error.kind());
    ensure!(waited == Err(ErrorKind::InvalidValue));
    let mut buffer = pool.alloc::<u8>(&env.stream()?, 10)?;
    ensure!(buffer.on(&foreign).is_err());
    let Err(failed) = buffer.free_on(&foreign) else {
        bail!("freed on a stream of another driver");
    };
    ensure!(failed.error.kind() == ErrorKind::InvalidValue);
    failed
        .object
        .context("the buffer was not given back")?
        .free()?;
    Ok(())
}

/// Found by the thread that waits for futures, and not by the task.
#[apply(case)]
fn a_future_tells_of_a_fault_that_comes_meanwhile(env: &Environment) -> Result<()> {
    let (stream, control) = (env.stream()?, env.control()?);
    let held = hold(&stream)?;
    let mut future = std::pin::pin!(stream.completion()?);
    let mut context = Context::from_waker(Waker::noop());
    ensure!(future.as_mut().poll(&mut context).is_pending());
    control.fail("cuEventQuery", 1, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
    let error = block_on(future).expect_err("the fault");
    ensure!(
        error.code() == Some(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS),
        "{error}"
    );
    drop(held);
    block_on(stream.completion()?)?;

    let pinned = env.context()?.pinned::<u8>(100)?.lend(&stream)?;
    control.fail("cuEventRecord", 1, CUresult::CUDA_ERROR_LAUNCH_FAILED);
    let Err(failed) = block_on(pinned.returned()) else {
        bail!("the failure was lost");
    };
    ensure!(failed.error.code() == Some(CUresult::CUDA_ERROR_LAUNCH_FAILED));
    let pinned = failed.object.context("the memory did not come back")?;
    ensure!(block_on(pinned.returned())?.len() == 100);
    Ok(())
}

/// The owner stays with memory that may be in use for good, because the context is lost; after any other failure the
/// release is tried again.
#[apply(case)]
fn an_owner_is_not_dropped_while_its_release_after_a_capture_fails(
    env: &Environment,
) -> Result<()> {
    for (code, lasts) in [
        (CUresult::CUDA_ERROR_UNKNOWN, false),
        (CUresult::CUDA_ERROR_ILLEGAL_ADDRESS, true),
    ] {
        let (stream, other, control) = (env.stream()?, env.stream()?, env.control()?);
        let theirs = Arc::new(env.pool()?.alloc_zeroed::<u8>(&stream, 1000)?);
        // SAFETY: the memory is that of `theirs`, which is kept and frees in the same stream.
        let mut view = unsafe {
            let owner = Arc::clone(&theirs);
            cuda_mem::DeviceBuffer::<u8>::borrow_raw(&stream, theirs.as_raw(), 1000, owner)
        };
        view.on(&other).map(std::mem::forget)?;
        let failures = cuda_mem::base::drop_counts().failures;
        stream.capture(CaptureMode::Relaxed, |_| {
            drop(view);
            // The release waits for the other stream.
            let calls = if lasts { 100 } else { 1 };
            (1..=calls).for_each(|nth| control.fail("cuEventRecord", nth, code));
            Ok(())
        })?;
        let polled = (0..8).try_for_each(|_| other.synchronize());
        control.clear_faults();
        polled?;
        stream.synchronize()?;
        let failed = cuda_mem::base::drop_counts().failures - failures;
        let kept = Arc::strong_count(&theirs);
        let expected = if lasts { (2, 2) } else { (1, 1) };
        ensure!((failed, kept) == expected, "{code}: {failed}, {kept}");
    }
    Ok(())
}

#[apply(case)]
fn a_context_that_could_not_be_released_is_a_failure(env: &Environment) -> Result<()> {
    let (context, control) = (env.context()?, env.control()?);
    let before = cuda_mem::base::drop_counts();
    let release = "cuDevicePrimaryCtxRelease_v2";
    control.fail(release, 1, CUresult::CUDA_ERROR_UNKNOWN);
    drop(context);
    let after = cuda_mem::base::drop_counts();
    ensure!((after.failures, after.too_late) == (before.failures + 1, before.too_late));
    Ok(())
}

#[apply(case)]
fn events_beyond_those_that_a_context_keeps_are_destroyed(env: &Environment) -> Result<()> {
    let (context, stream, control) = (env.context()?, env.stream()?, env.control()?);
    let before = control.live().events;
    let completions = (0..200).map(|_| stream.completion());
    let completions = completions.collect::<cuda_mem::Result<Vec<_>>>()?;
    drop(completions);
    let kept = control.live().events - before;
    ensure!(kept < 100, "{kept} events are kept");
    drop((context, stream));
    ensure!(control.live().events <= before, "{:?}", control.live());
    Ok(())
}
