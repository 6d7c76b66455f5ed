//! Driver calls that fail where memory of an arena has moved.

use anyhow::{Result, ensure};
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
