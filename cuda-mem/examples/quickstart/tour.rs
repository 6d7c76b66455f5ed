//! A pool from creation to trimming.

use anyhow::{Result, bail, ensure};
use cuda_mem::{Device, MemoryPool, PoolStats, ReleaseThreshold, ReusePolicy};

use crate::show::Show;

/// The statistics after each step.
pub(crate) type Steps = Vec<(&'static str, PoolStats)>;

pub(crate) fn run(device: Device, bytes: u64, show: &mut Show) -> Result<Steps> {
    let context = device.primary_context()?;
    let (stream, other) = (context.stream()?, context.stream()?);
    let pool = MemoryPool::builder(&device)
        .release_threshold(ReleaseThreshold::Never)
        .reuse(ReusePolicy::DETERMINISTIC)
        .build()?;
    show.pool(&pool)?;

    let len = usize::try_from(bytes)?;
    let mut steps = Steps::new();
    let mut step = |what| -> Result<()> {
        steps.push((what, pool.stats()?));
        Ok(())
    };
    step("pool created")?;

    let mut first = pool.alloc::<u8>(&stream, len)?;
    let mut second = pool.alloc::<u8>(&other, len)?;
    step("allocated on two streams")?;

    first.fill(0x5a)?;
    // `other` first waits for `stream`; once the copy is submitted, `stream` waits for `other`.
    second.copy_from_device(&first)?;
    let mut copied = vec![0; len];
    second.copy_to(&mut copied)?;
    let wrong = copied.iter().position(|byte| *byte != 0x5a);
    if let Some(place) = wrong {
        bail!("byte {place} came back wrong");
    }
    step("filled, copied, checked every byte")?;

    {
        let mut there = first.on(&other)?;
        there.fill(0xa5)?;
    }
    ensure!(
        first.to_vec()?.iter().all(|byte| *byte == 0xa5),
        "the other stream's fill was not seen"
    );
    step("used on the other stream")?;

    first.free()?;
    drop(second);
    step("freed in stream order")?;

    stream.synchronize()?;
    other.synchronize()?;
    step("synchronised")?;

    pool.trim_to(0)?;
    step("trimmed to 0")?;

    pool.reset_high_marks()?;
    step("high marks reset")?;

    pool.close()?;
    show.steps(&steps)?;
    Ok(steps)
}
