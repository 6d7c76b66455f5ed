//! Driver calls that fail where an arena maps and moves memory.

use anyhow::{Result, ensure};
use cuda_mem::base::drop_counts;
use cuda_mem::sys::CUresult;
use cuda_mem::{Arena, MemoryResource as _, Resource};
use cuda_mem_tests::environment::Environment;

/// A piece that moved is mapped at two addresses. Whichever mapping cannot be ended, the arena has it still, and ends it at
/// the next trim.
#[apply(case)]
fn no_mapping_of_moved_memory_is_lost(env: &Environment) -> Result<()> {
    const PIECE: usize = 8 << 20;
    let control = env.control()?;
    let stream = env.stream()?;
    // Other tests leave memory on purpose.
    let counts = || {
        let live = control.live();
        (live.mappings, live.physical_allocations)
    };
    let before = counts();
    // Nine pieces, of which four are mapped twice.
    for nth in 1..=12 {
        let arena = Arena::builder(&env.device()?).slack(1.0).build()?;
        let resource = Resource::from(arena.clone());
        let row = (0..9).map(|_| resource.alloc::<u8>(&stream, PIECE));
        let row = row.collect::<cuda_mem::Result<Vec<_>>>()?;
        let kept: Vec<_> = row.into_iter().skip(1).step_by(2).collect();
        stream.synchronize()?;
        let large = resource.alloc::<u8>(&stream, 5 * PIECE)?;
        ensure!(arena.stats().moved == 4, "{:?}", arena.stats());
        drop((kept, large));
        stream.synchronize()?;
        // A mapping that was let go would be tried once more, in vain.
        for nth in [nth, nth + 1] {
            control.fail_without_effect("cuMemUnmap", nth, CUresult::CUDA_ERROR_UNKNOWN);
        }
        let trimmed = arena.trim_to(0);
        control.clear_faults();
        ensure!(trimmed.is_err(), "{nth}: nothing failed");
        arena.trim_to(0)?;
        let (left, stats) = (counts(), arena.stats());
        ensure!(
            left == before && stats.reserved == 0,
            "{nth}: {left:?}, not {before:?}; {stats}"
        );
    }
    Ok(())
}

/// What a growth that failed cannot unmap either stays the arena's, which ends it later.
#[apply(case)]
fn what_a_failed_growth_leaves_mapped_is_not_lost(env: &Environment) -> Result<()> {
    let (control, stream) = (env.control()?, env.stream()?);
    let mappings = || control.live().mappings;
    let (before, failures) = (mappings(), drop_counts().failures);
    let arena = Arena::builder(&env.device()?).build()?;
    // The second of two pieces; and a mapping that was let go would be tried once more, in vain.
    control.fail_without_effect("cuMemCreate", 2, CUresult::CUDA_ERROR_UNKNOWN);
    for nth in 1..=2 {
        control.fail_without_effect("cuMemUnmap", nth, CUresult::CUDA_ERROR_UNKNOWN);
    }
    let grown = arena.alloc::<u8>(&stream, 64 << 20).map(drop);
    control.clear_faults();
    ensure!(grown.is_err(), "nothing failed");
    ensure!(mappings() == before + 1, "{} mappings", mappings());
    let failures = drop_counts().failures - failures;
    ensure!(failures == 0, "{failures} failures");
    drop(arena.alloc::<u8>(&stream, 64 << 20)?);
    stream.synchronize()?;
    drop(arena);
    let counts = drop_counts();
    ensure!(
        mappings() == before,
        "{} mappings are left of {before}, {counts:?}",
        mappings()
    );
    Ok(())
}
