//! Imports that end beside captures, which forbid things to the whole process, so these bodies run alone.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::base::drop_counts;
use cuda_mem::interop::{CaptureMode, ImportedPool};

use super::graph::MODES;
use crate::environment::Environment;
use crate::foreign::{begin, end_well};
use crate::hold::hold;

/// The mode of a capture that lets its thread do everything else.
const RELAXED: u32 = 2;

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
