//! Sharing beside captures, which forbid things to the whole process, so these bodies run alone.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::ErrorKind;
use cuda_mem::base::drop_counts;
use cuda_mem::interop::{CaptureMode, ImportedPool};
use cuda_mem::sys::CUresult;

use super::capture_elsewhere::by_another_thread;
use super::graph::MODES;
use crate::environment::Environment;
use crate::foreign::{RELAXED, begin, end_well};
use crate::hold::hold;

#[apply(case_alone)]
fn an_imported_pool_ends_beside_a_capture(env: &Environment) -> Result<()> {
    let (pool, context) = (env.shareable_pool()?, env.context()?);
    let (stream, captured) = (context.stream()?, context.stream()?);
    let buffer = pool.alloc_from(&stream, &[1_u32; 100])?;
    for mode in MODES {
        let imported = ImportedPool::from_fd(&env.device()?, pool.export_fd()?)?;
        // SAFETY: one stream orders everything; the buffer lives longer.
        let view = unsafe { imported.import::<u32>(&stream, &buffer.export()?) }?;
        let (_, waiting) = captured
            .capture(mode, |capture| {
                drop((view, imported));
                stream.synchronize()?;
                drop(capture.alloc::<u8>(1000)?);
                Ok(drop_counts().waiting)
            })
            .with_context(|| format!("{mode:?}: the capture is lost"))?;
        ensure!(waiting == 0, "{mode:?}: {waiting} releases wait");
    }
    Ok(())
}

#[apply(case_alone)]
fn an_imported_pool_waits_for_a_stream_that_is_captured(env: &Environment) -> Result<()> {
    let (pool, context) = (env.shareable_pool()?, env.context()?);
    let (stream, other) = (context.stream()?, context.stream()?);
    let buffer = pool.alloc_from(&stream, &[1_u32; 100])?;
    let imported = ImportedPool::from_fd(&env.device()?, pool.export_fd()?)?;
    // SAFETY: one stream orders everything; the buffer lives longer.
    let view = unsafe { imported.import::<u32>(&stream, &buffer.export()?) }?;
    drop(view);
    stream.capture(CaptureMode::Global, |_| {
        drop(imported);
        other.synchronize()?;
        other.synchronize()?;
        Ok(())
    })?;
    ensure!(drop_counts().failures == 0, "{:?}", drop_counts());
    stream.synchronize()?;
    ensure!(drop_counts().waiting == 0, "{:?}", drop_counts());
    Ok(())
}

/// A free is asked about when another view ends; not while other code captures its stream.
#[apply(case_alone)]
fn a_view_ends_beside_a_capture_of_other_code(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, context) = (env.shareable_pool()?, env.context()?);
    let (first, second) = (context.stream()?, context.stream()?);
    let imported = ImportedPool::from_fd(&env.device()?, pool.export_fd()?)?;
    let owned = [1_u32, 2].map(|value| pool.alloc_from(&first, &[value; 100]));
    let owned = owned.into_iter().collect::<cuda_mem::Result<Vec<_>>>()?;
    first.synchronize()?;
    // SAFETY: nothing writes, and the buffers live longer.
    let view =
        |index: usize, stream| unsafe { imported.import::<u32>(stream, &owned[index].export()?) };
    let (one, two) = (view(0, &first)?, view(1, &second)?);
    let held = hold(&first)?;
    drop(one); // its free waits
    begin(&first, RELAXED)?;
    drop(two);
    drop(imported);
    second.synchronize()?;
    second.synchronize()?;
    end_well(&first)?;
    ensure!(drop_counts().failures == 0, "{:?}", drop_counts());
    drop(held);
    context.synchronize()?;
    ensure!(drop_counts().waiting == 0, "{:?}", drop_counts());
    Ok(())
}

/// Calls of sharing, each of which another thread makes while this one captures, too.
const SHARES: [&str; 6] = [
    "cuMemPoolExportToShareableHandle",
    "cuMemPoolImportFromShareableHandle",
    "cuMemPoolExportPointer",
    "cuMemPoolImportPointer",
    "cuIpcGetEventHandle",
    "cuIpcOpenEventHandle",
];

#[apply(case_alone)]
fn memory_and_events_are_shared_beside_a_capture(env: &Environment) -> Result<()> {
    let (pool, context) = (env.shareable_pool()?, env.context()?);
    let (stream, captured) = (context.stream()?, context.stream()?);
    let buffer = pool.alloc_from(&stream, &[1_u32; 100])?;
    let event = context.interprocess_event()?;
    stream.synchronize()?;
    let share = || -> Result<Vec<u32>> {
        let imported = ImportedPool::from_fd(&env.device()?, pool.export_fd()?)?;
        // SAFETY: one stream orders everything; the buffer lives longer.
        let view = unsafe { imported.import::<u32>(&stream, &buffer.export()?) }?;
        let opened = context.import_event(&event.export()?);
        let refused = opened.err().context("this process has made it")?;
        ensure!(refused.kind() == ErrorKind::InvalidContext, "{refused}");
        Ok(view.to_vec()?)
    };
    for mode in MODES {
        let all = || captured.capture(mode, |_| Ok([share(), by_another_thread(share)]));
        let (captured, calls) = match env.control() {
            Ok(control) => control.record(all),
            Err(_) => (all(), Vec::new()),
        };
        let (_, values) = captured.with_context(|| format!("{mode:?}: the capture is lost"))?;
        for value in values {
            ensure!(value? == [1; 100], "{mode:?}");
        }
        // A thread sets its mode before the call, and sets it back afterwards.
        let mut is_relaxed = false;
        for call in &calls {
            is_relaxed ^= call == "cuThreadExchangeStreamCaptureMode";
            ensure!(
                is_relaxed || !SHARES.contains(&call.as_str()),
                "{mode:?}: {call} may be refused"
            );
        }
    }
    Ok(())
}

/// Other code captures, which is over when the export is tried again.
#[apply(case_of_sim_alone)]
fn a_pool_whose_export_a_capture_refused_serves_on(env: &Environment) -> Result<()> {
    let (pool, stream, control) = (env.shareable_pool()?, env.stream()?, env.control()?);
    let unsupported = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    control.fail_without_effect(SHARES[0], 1, unsupported);
    let refused = pool.export_fd().err().context("it was exported")?;
    ensure!(refused.kind() == ErrorKind::Capturing, "{refused}");
    ensure!(refused.code() == Some(unsupported), "{refused}");
    ensure!(pool.alloc_from(&stream, &[1, 2, 3])?.to_vec()? == [1, 2, 3]);
    drop(pool.export_fd()?);
    stream.synchronize()?;
    pool.close()?;
    Ok(())
}
