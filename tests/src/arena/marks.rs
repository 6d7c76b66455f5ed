//! Marks in streams, and looks at how far streams are.

use anyhow::{Result, ensure};
use cuda_mem::{Arena, Resource, ReusePolicy};

use super::ends::PATIENCE;
use super::moves::peer;
use super::rules::{LARGE, Scene};
use crate::environment::Environment;
use crate::hold::{hold, hold_for};

const MIB: usize = 1 << 20;

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

/// Blocks of the heap that all streams share are marked by a part of all memory, not each.
#[apply(case)]
fn one_mark_is_for_many_large_blocks(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let scene = Scene::new(env, ReusePolicy::ALLOW_OPPORTUNISTIC)?;
    let blocks = (0..32).map(|_| scene.on_a(4 * MIB));
    let blocks = blocks.collect::<Result<Vec<_>>>()?;
    let first = scene.on_a(LARGE)?;
    let _small = scene.on_b(1000)?;
    let held = hold(&scene.a)?;
    drop(first);
    // Finds too little.
    let _other = scene.on_b(LARGE)?;
    drop(held);
    let before = scene.arena.stats().driver_calls;
    drop(blocks);
    let calls = scene.arena.stats().driver_calls - before;
    // Two for each mark, and a mark for every other block.
    ensure!((2..=2 * 20).contains(&calls), "{calls} calls for 32 blocks");
    Ok(())
}

/// Of more than 64 marks every second one is given up, and the last one stays.
#[apply(case)]
fn marks_show_how_far_a_busy_stream_is(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    // Blocks, and how many of them are not known to be done once the stream is past the third one's mark.
    for (count, left) in [(6, 3), (65, 63)] {
        let builder = Arena::builder(&env.device()?).reuse(ReusePolicy::ALLOW_OPPORTUNISTIC);
        let arena = builder.build()?;
        let resource = Resource::from(arena.clone());
        let (own, user) = (env.stream()?, env.stream()?);
        let blocks = (0..count).map(|_| resource.alloc::<u8>(&own, 1000));
        let mut blocks = blocks.collect::<cuda_mem::Result<Vec<_>>>()?;
        let later = blocks.split_off(3);
        let first = hold(&user)?;
        for block in blocks {
            block.free_after([&user])?;
        }
        let reached = user.context().event()?;
        reached.record(&user)?;
        let second = hold_for(&user, PATIENCE)?;
        for block in later {
            block.free_after([&user])?;
        }
        drop(first);
        // Of the wait for an event the arena does not hear.
        reached.synchronize()?;
        // More than is free, so that all that is done is found.
        let _large = resource.alloc::<u8>(&own, 100 * MIB)?;
        let space = arena.free_space();
        drop(second);
        ensure!(space.pending == left * 1024, "{count} blocks: {space:?}");
    }
    Ok(())
}

/// The wait was over before the mark was made, and says nothing of it.
#[apply(case)]
fn an_earlier_wait_leaves_a_mark_alone(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let scene = Scene::new(env, ReusePolicy::ALLOW_OPPORTUNISTIC)?;
    let first = scene.on_a(LARGE)?;
    // Finds nothing: from now on frees are marked.
    let _second = scene.on_b(LARGE)?;
    scene.a.synchronize()?;
    drop(first);
    // Behind the mark.
    let held = hold(&scene.a)?;
    let before = scene.arena.stats();
    let _third = scene.on_b(LARGE)?;
    let after = scene.arena.stats();
    drop(held);
    ensure!(after.grown == before.grown, "{before}; {after}");
    Ok(())
}

#[apply(case)]
fn one_wait_serves_for_all_that_was_freed_before_it(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let scene = Scene::new(env, ReusePolicy::ALLOW_INTERNAL_DEPENDENCIES)?;
    let blocks = [scene.on_a(LARGE)?, scene.on_a(LARGE)?];
    let held = hold(&scene.a)?;
    drop(blocks);
    let taken = [scene.on_b(LARGE)?, scene.on_b(LARGE)?];
    let stats = scene.arena.stats();
    drop((held, taken));
    ensure!((stats.waits, stats.taken_over) == (1, 2), "{stats:?}");
    Ok(())
}

/// A free counts from the last look on. A look at an idle stream is two calls.
#[apply(case)]
fn frees_are_looked_at_once_they_are_a_mib(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let scene = Scene::new(env, ReusePolicy::DRIVER_DEFAULT)?;
    let first = scene.on_a(LARGE)?;
    // Finds nothing: from now on streams are looked at as they free.
    let _second = scene.on_b(LARGE)?;
    drop(first);
    let before = scene.arena.stats();
    for _ in 0..12 {
        drop(scene.on_a(400 << 10)?);
    }
    let after = scene.arena.stats();
    let calls = after.driver_calls - before.driver_calls;
    // For the large block, and for the third, sixth and ninth of the others.
    ensure!(calls == 4 * 2, "{calls} calls: {after}");
    Ok(())
}

/// A stream of another device takes the cache of one that ended over, with the marks in it.
#[apply(case_of_two)]
fn a_stream_has_marks_of_its_own_context(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let Some(next) = peer(env)? else {
        return Ok(());
    };
    let builder = Arena::builder(&env.device()?).accessible_from([&next.device()]);
    let arena = builder.build()?;
    let resource = Resource::from(arena.clone());
    let (own, first) = (env.stream()?, env.stream()?);
    let blocks = (0..8).map(|_| resource.alloc::<u8>(&own, 1000));
    let blocks = blocks.collect::<cuda_mem::Result<Vec<_>>>()?;
    let held = hold(&first)?;
    for block in blocks {
        block.free_after([&first])?;
    }
    drop(first);
    let block = resource.alloc::<u8>(&next, LARGE)?;
    ensure!(arena.stats().streams == 2, "{}", arena.stats());
    drop(held);
    next.synchronize()?;
    let held = hold(&next)?;
    drop(block);
    let before = arena.stats();
    let _other = resource.alloc::<u8>(&own, LARGE)?;
    let after = arena.stats();
    drop(held);
    ensure!(after.waits == before.waits + 1, "{before:?}; {after:?}");
    ensure!(after.grown == before.grown, "{before:?}; {after:?}");
    Ok(())
}
