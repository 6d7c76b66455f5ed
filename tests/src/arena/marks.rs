//! Events that frees record for streams that were short of memory.

use anyhow::{Result, ensure};
use cuda_mem::ReusePolicy;

use super::rules::{LARGE, Scene};
use crate::environment::Environment;
use crate::hold::hold;

/// Frees are marked once a stream was short of memory, one mark for many. What comes behind a mark does not matter then.
#[apply(case)]
fn what_a_busy_stream_freed_goes_to_one_that_was_short(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let scene = Scene::new(env, ReusePolicy::ALLOW_OPPORTUNISTIC)?;
    // Four of these are as much as a mark is worth.
    let small = (0..9).map(|_| scene.on_b(16 << 10));
    let mut small = small.collect::<Result<Vec<_>>>()?;
    let (first, second) = (scene.on_a(LARGE)?, scene.on_a(LARGE)?);
    let calls = || scene.arena.stats().driver_calls;
    let before = calls();
    if let Some(block) = small.pop() {
        block.free_on(&scene.a).map_err(|failed| failed.error)?;
    }
    ensure!(calls() == before, "nobody is short of memory");
    let held = hold(&scene.a)?;
    drop(first);
    // Finds too little.
    let _third = scene.on_b(LARGE)?;
    drop(held);
    drop(second);
    let before = calls();
    for block in small {
        block.free_on(&scene.a).map_err(|failed| failed.error)?;
    }
    let marks = calls() - before;
    ensure!(marks == 2 * 2, "{marks} calls for eight blocks");
    // Behind the marks.
    let held = hold(&scene.a)?;
    let before = scene.arena.stats();
    let _blocks = [scene.on_b(LARGE)?, scene.on_b(LARGE)?];
    let after = scene.arena.stats();
    // More than there is, so that all that is done is found.
    let _more = scene.on_b(3 * LARGE)?;
    let space = scene.arena.free_space();
    drop(held);
    ensure!(after.grown == before.grown, "{before:?}; {after:?}");
    ensure!(space.pending == 0, "{space:?}");
    Ok(())
}
