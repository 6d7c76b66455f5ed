//! Requests and frees that are refused because of a capture that has just begun, or just ended.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::base::drop_counts;
use cuda_mem::interop::CaptureMode;
use cuda_mem::sys::CUresult;
use cuda_mem::{ErrorKind, Resource};
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::foreign::{RELAXED, begin, end_well};

use super::single::refuse_frees;

/// A free in a captured stream is refused without effect (R68). That capture may have ended when the cause is looked for.
#[apply(case)]
fn a_free_that_was_refused_is_tried_again_in_a_stream_that_is_not_captured(
    env: &Environment,
) -> Result<()> {
    let (stream, control) = (env.stream()?, env.control()?);
    for is_of_resource in [false, true] {
        let pool = env.pool()?;
        let resource = Resource::from(pool.clone());
        let before = drop_counts();
        let alloc = || match is_of_resource {
            true => resource.alloc::<u8>(&stream, 100),
            false => pool.alloc(&stream, 100),
        };
        let (dropped, freed, deferred) = (alloc()?, alloc()?, alloc()?);
        refuse_frees(control, 1);
        drop(dropped);
        refuse_frees(control, 1);
        freed.free()?;
        stream.capture(CaptureMode::Relaxed, |_| {
            drop(deferred);
            refuse_frees(control, 1);
            Ok(())
        })?;
        ensure!(pool.stats()?.used.current == 0);
        ensure!(drop_counts() == before, "{:?}", drop_counts());

        // What is refused twice is wrong.
        let (dropped, deferred) = (alloc()?, alloc()?);
        refuse_frees(control, 2);
        drop(dropped);
        ensure!(drop_counts().failures == before.failures + 1);
        stream.capture(CaptureMode::Relaxed, |_| {
            drop(deferred);
            refuse_frees(control, 2);
            Ok(())
        })?;
        ensure!(drop_counts().failures == before.failures + 2);
    }
    Ok(())
}

/// A capture is named only where it may be the reason.
#[apply(case)]
fn a_free_that_fails_in_a_capture_for_another_reason_says_so(env: &Environment) -> Result<()> {
    let (pool, stream, control) = (env.pool()?, env.stream()?, env.control()?);
    let buffer = pool.alloc::<u8>(&stream, 100)?;
    begin(&stream, RELAXED)?;
    control.fail_without_effect("cuMemFreeAsync", 1, CUresult::CUDA_ERROR_NOT_SUPPORTED);
    let freed = buffer.free();
    end_well(&stream)?;
    let failed = freed.err().context("the failure was lost")?;
    let kind = failed.error.kind();
    ensure!(kind == ErrorKind::NotSupported, "{}", failed.error);
    drop(failed.object.context("the buffer was not given back")?);
    ensure!(pool.stats()?.used.current == 0);
    Ok(())
}

/// The answer of a driver where the capture has begun after the capture mode of the request was chosen.
#[apply(case)]
fn a_request_that_is_refused_beside_a_new_capture_is_made_again(env: &Environment) -> Result<()> {
    let (pool, stream, captured) = (env.pool()?, env.stream()?, env.stream()?);
    let control = env.control()?;
    let refused = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    captured.capture(CaptureMode::Global, |_| {
        control.fail("cuMemAllocFromPoolAsync", 1, refused);
        drop(pool.alloc::<u8>(&stream, 100)?);
        control.fail("cuMemAllocAsync", 1, refused);
        drop(stream.alloc::<u8>(100)?);
        Ok(())
    })?;
    // Beside captures of others the caller hears of it.
    control.fail("cuMemAllocFromPoolAsync", 1, refused);
    let error = pool.alloc::<u8>(&stream, 100).err();
    let error = error.context("the failure was lost")?;
    ensure!(error.kind() == ErrorKind::Capturing, "{error}");
    // Beside captures of others the caller hears of it.
    control.fail("cuMemAllocFromPoolAsync", 1, refused);
    control.fail("cuMemAllocAsync", 1, refused);
    for answer in [pool.alloc::<u8>(&stream, 100), stream.alloc(100)] {
        let error = answer.err().context("the failure was lost")?;
        ensure!(error.kind() == ErrorKind::Capturing, "{error}");
    }
    Ok(())
}
