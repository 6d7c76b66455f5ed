//! Resources of the program that panic below an arena.
//!
//! A direct resource waits for the whole device when it frees, so nobody may hold a stream meanwhile.

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Result, ensure};
use cuda_mem::{MemoryResource as _, Resource};

use super::moody::{Mood, moody};
use crate::environment::Environment;
use crate::executor::block_on;
use crate::foreign::{begin, capture_mode, end_well};

const MIB: usize = 1 << 20;

#[apply(case)]
fn an_upstream_that_panics_is_given_nothing_twice(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let (below, arena) = moody(env)?;
    let resource = Resource::from(arena.clone());
    let stream = env.stream()?;
    drop(resource.alloc::<u8>(&stream, MIB)?);
    stream.synchronize()?;
    below.set(Mood::PanicsWhenGiven);
    ensure!(arena.trim_to(0).is_err(), "the panic is not told");
    below.set(Mood::Good);
    ensure!(below.counts() == (1, 1), "{:?}", below.counts());
    ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    // Not what the upstream has again.
    let mut buffer = resource.alloc::<u8>(&stream, MIB)?;
    buffer.fill(5)?;
    ensure!(below.counts() == (2, 1), "{:?}", below.counts());
    drop(buffer);
    stream.synchronize()?;
    drop((resource, arena, stream));
    ensure!(below.counts() == (2, 2), "{:?}", below.counts());
    Ok(())
}

#[apply(case)]
fn a_panic_of_the_upstream_leaves_the_arena_as_it_was(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let (below, arena) = moody(env)?;
    let resource = Resource::from(arena.clone());
    let stream = env.stream()?;
    below.set(Mood::PanicsWhenAsked);
    for bytes in [1000, 8 * MIB] {
        let asked = || resource.alloc::<u8>(&stream, bytes).map(drop);
        let asked = catch_unwind(AssertUnwindSafe(asked));
        ensure!(!matches!(asked, Ok(Ok(()))), "{bytes} bytes from nowhere");
    }
    below.set(Mood::Good);
    let stats = arena.stats();
    ensure!((stats.reserved, stats.live_blocks) == (0, 0), "{stats}");
    for bytes in [1000, 8 * MIB] {
        let mut buffer = resource.alloc::<u8>(&stream, bytes)?;
        buffer.fill(6)?;
        ensure!(buffer.to_vec()?.iter().all(|byte| *byte == 6));
    }
    stream.synchronize()?;
    drop((resource, arena, stream));
    let (allocated, freed) = below.counts();
    ensure!(allocated == freed, "{allocated} came, {freed} went");
    Ok(())
}

/// The capture mode belongs to the thread and would stay changed.
#[apply(case_alone)]
fn a_panic_in_a_capture_leaves_the_threads_capture_mode(env: &Environment) -> Result<()> {
    const GLOBAL: u32 = 0;
    let (below, arena) = moody(env)?;
    let pool = arena.external_capture_pool()?;
    let (captured, stream) = (env.stream()?, env.stream()?);
    below.set(Mood::PanicsWhenAsked);
    begin(&captured, GLOBAL)?;
    let asked = catch_unwind(AssertUnwindSafe(|| pool.allocate(1000, &captured)));
    ensure!(asked.is_err(), "the panic is lost");
    end_well(&captured)?;
    let mode = capture_mode(env)?;
    ensure!(mode == GLOBAL, "mode {mode}");
    below.set(Mood::Good);
    // If the crate still took the thread for relaxed, this question would invalidate the capture.
    begin(&captured, GLOBAL)?;
    block_on(stream.completion()?)?;
    end_well(&captured)
}

/// A resource may hold its lock when it panics, and print what the lock holds.
#[apply(case)]
fn an_upstream_that_cannot_be_printed_is_told_of(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let (below, arena) = moody(env)?;
    let stream = env.stream()?;
    let blocks = [0; 2].map(|_| arena.alloc::<u8>(&stream, 8 * MIB));
    ensure!(blocks.iter().all(Result::is_ok), "{blocks:?}");
    drop(blocks);
    stream.synchronize()?;
    let before = below.counts().0;
    below.set(Mood::PanicsWhenShown);
    let trimmed = catch_unwind(AssertUnwindSafe(|| arena.trim_to(0)));
    ensure!(matches!(trimmed, Ok(Err(_))), "{trimmed:?}");
    below.set(Mood::Good);
    arena.trim_to(0)?;
    ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    ensure!(below.counts() == (before, before), "{:?}", below.counts());
    Ok(())
}
