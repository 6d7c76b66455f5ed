//! Places for large requests that an arena's own thread makes ahead of need.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::arena::{ArenaBuilder, SleepContents};
use cuda_mem::ledger::{Recorder, TraceAction};
use cuda_mem::{
    Arena, Device, DeviceBuffer, MemoryResource as _, ReleaseThreshold, Resource, ReusePolicy,
    Stream,
};

use super::background::{LARGE, MIB, PIECE, arena, every_other, until};
use super::spots;
use crate::environment::Environment;

/// Blocks of one piece side by side.
fn row(
    resource: &Resource,
    stream: &Stream,
    count: usize,
) -> Result<Vec<Option<DeviceBuffer<u8>>>> {
    let blocks = (0..count).map(|_| resource.alloc::<u8>(stream, PIECE).map(Some));
    Ok(blocks.collect::<cuda_mem::Result<_>>()?)
}

/// Frees those at these places.
fn free(blocks: &mut [Option<DeviceBuffer<u8>>], places: &[usize]) {
    for place in places {
        blocks[*place] = None;
    }
}

/// The thread makes a place of three pieces that move and one that it makes, which the slack allows: in a new arena that had
/// memory at this many other addresses before.
///
/// # Errors
///
/// It does anything else.
pub fn make_the_rest_of_a_place(device: &Device, left: usize) -> Result<()> {
    make_the_rest(Arena::builder(device), device, left)
}

/// The same, in an arena of this builder.
fn make_the_rest(builder: ArenaBuilder, device: &Device, left: usize) -> Result<()> {
    const BYTES: u64 = PIECE as u64;
    let arena = builder.slack(1.0).background_thread(true).build()?;
    let resource = Resource::from(arena.clone());
    let stream = device.primary_context()?.stream()?;
    let mut last = resource.alloc::<u8>(&stream, PIECE)?;
    for _ in 0..left {
        let next = resource.alloc::<u8>(&stream, PIECE)?;
        drop(std::mem::replace(&mut last, next));
        stream.synchronize()?;
        arena.trim_to(BYTES)?;
        ensure!(arena.stats().reserved == BYTES, "{}", arena.stats());
    }
    let mut blocks = row(&resource, &stream, 17)?;
    // The most that the program has, so that the slack allows two pieces more than there are now.
    drop(resource.alloc::<u8>(&stream, 2 * PIECE)?);
    stream.synchronize()?;
    arena.trim_to(18 * BYTES)?;
    free(&mut blocks, &[3, 5, 7, 9, 11, 13, 15]);
    let before = arena.stats();
    ensure!(before.reserved == 18 * BYTES, "{before}");
    let mut first = resource.alloc::<u8>(&stream, LARGE)?;
    until("a place for another one", || arena.stats().prepared > 0)?;
    let ready = arena.stats();
    ensure!(
        (ready.moved, ready.grown) == (before.moved + 4 + 3, before.grown + 1),
        "{before:?}; {ready:?}"
    );
    ensure!(ready.reserved == 19 * BYTES, "{ready}");
    let mut second = resource.alloc::<u8>(&stream, LARGE)?;
    let after = arena.stats();
    ensure!(
        (after.moved, after.grown) == (ready.moved, ready.grown),
        "the request found no place: {ready:?}; {after:?}"
    );
    spots::write(&mut first, 1)?;
    spots::write(&mut second, 2)?;
    spots::have(&first, 1)?;
    spots::have(&second, 2)?;
    let (stats, space) = (arena.stats(), arena.free_space());
    ensure!(space.bytes == stats.free(), "{space:?}, {stats}");
    drop((last, blocks, first, second));
    stream.synchronize()?;
    arena.trim_to(0)?;
    ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    Ok(())
}

#[apply(case_alone)]
fn the_rest_of_a_place_is_made_within_the_slack(env: &Environment) -> Result<()> {
    make_the_rest_of_a_place(&env.device()?, 0)
}

/// Also what the thread makes.
#[apply(case_alone)]
fn all_memory_of_a_place_is_recorded(env: &Environment) -> Result<()> {
    let (device, recorder) = (env.device()?, Recorder::ring(10_000));
    make_the_rest(Arena::builder(&device).record(&recorder), &device, 0)?;
    let recording = recorder.recording();
    let mut mapped: Vec<i64> = Vec::new();
    for entry in recording.entries() {
        match entry.action {
            TraceAction::Map => mapped.push(entry.bytes.cast_signed()),
            TraceAction::Unmap => mapped.push(-entry.bytes.cast_signed()),
            _ => {}
        }
    }
    // All of it has gone back by now.
    let sum: i64 = mapped.iter().sum();
    ensure!(!mapped.is_empty() && sum == 0, "{sum} bytes: {mapped:?}");
    Ok(())
}

/// Returns when the thread has done what it was asked for before: it gives back two pieces of what is free.
fn catch_up(arena: &Arena, stream: &Stream) -> Result<()> {
    let held = arena.stats().reserved;
    // It may do the first of these together with what it was asked for.
    for pieces in 1..=2 {
        let keep = held - pieces * PIECE as u64;
        arena.set_release_threshold(ReleaseThreshold::Bytes(keep));
        stream.synchronize()?;
        until("it is kept", || arena.stats().reserved <= keep)?;
    }
    arena.set_release_threshold(ReleaseThreshold::Never);
    Ok(())
}

/// Under a policy without queries, and while the arena sleeps.
#[apply(case_alone)]
fn the_thread_makes_no_place_where_it_may_not(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for sleeps in [false, true] {
        let mut builder = Arena::builder(&env.device()?).slack(1.0);
        if !sleeps {
            builder = builder.reuse(ReusePolicy::DETERMINISTIC);
        }
        let arena = builder.background_thread(true).build()?;
        let resource = Resource::from(arena.clone());
        let block = resource.alloc::<u8>(&stream, PIECE)?;
        if sleeps {
            // SAFETY: nothing uses the block before the arena is awake.
            unsafe { arena.sleep(SleepContents::Discard) }?;
        }
        let kept = every_other(&resource, &stream, 19)?;
        let first = resource.alloc::<u8>(&stream, LARGE)?;
        catch_up(&arena, &stream)?;
        let stats = arena.stats();
        ensure!(stats.prepared == 0, "{stats:?}");
        ensure!(sleeps || stats.moved == 0, "{stats:?}");
        arena.wake()?;
        drop((block, kept, first));
    }
    Ok(())
}

/// The thread is behind, and nothing is free. Two pieces come and go for that.
fn catch_up_without_memory(arena: &Arena, resource: &Resource, stream: &Stream) -> Result<()> {
    // All at once, or the second would take the first one's place.
    drop(row(resource, stream, 2)?);
    catch_up(arena, stream)
}

/// The next request finds a place, once the thread has had time to make one.
fn finds_a_place(arena: &Arena, resource: &Resource, stream: &Stream) -> Result<()> {
    until("a place for another one", || arena.stats().prepared > 0)?;
    let before = arena.stats();
    let _second = resource.alloc::<u8>(stream, LARGE)?;
    let after = arena.stats();
    ensure!(
        (after.grown, after.moved) == (before.grown, before.moved),
        "the request found no place: {before:?}; {after:?}"
    );
    Ok(())
}

/// Too little is free at first. The thread looks again once enough is, whichever way the blocks are freed.
#[apply(case_alone)]
fn a_place_is_made_once_enough_is_free(env: &Environment) -> Result<()> {
    for several in [false, true] {
        let (arena, resource) = arena(env)?;
        let (stream, other) = (env.stream()?, env.stream()?);
        if several {
            // With one stream alone, blocks stand in its cache first.
            drop(resource.alloc::<u8>(&other, PIECE)?);
        }
        let mut blocks = row(&resource, &stream, 14)?;
        free(&mut blocks, &[0, 2, 4, 6]);
        let _first = resource.alloc::<u8>(&stream, LARGE)?;
        catch_up_without_memory(&arena, &resource, &stream)?;
        ensure!(arena.stats().prepared == 0, "{:?}", arena.stats());
        free(&mut blocks, &[1, 3, 5, 8, 10, 12]);
        finds_a_place(&arena, &resource, &stream)?;
    }
    Ok(())
}

/// A look that finds much memory and no whole piece is not the last one.
#[apply(case_alone)]
fn a_place_is_made_after_a_look_that_found_no_piece(env: &Environment) -> Result<()> {
    let (arena, resource) = arena(env)?;
    let stream = env.stream()?;
    let mut blocks = row(&resource, &stream, 14)?;
    let mut halves = Vec::new();
    for _ in 0..9 {
        // The next two share the piece.
        drop(resource.alloc::<u8>(&stream, PIECE)?);
        let half = || resource.alloc::<u8>(&stream, PIECE / 2);
        halves.push([half()?, half()?]);
    }
    free(&mut blocks, &[0, 2, 4, 6]);
    let _first = resource.alloc::<u8>(&stream, LARGE)?;
    catch_up_without_memory(&arena, &resource, &stream)?;
    let before = arena.stats().driver_calls;
    let _others: Vec<_> = halves.into_iter().map(|[_, second]| second).collect();
    // Only a search for pieces asks the driver.
    until("a look", || arena.stats().driver_calls > before)?;
    ensure!(arena.stats().prepared == 0, "{:?}", arena.stats());
    free(&mut blocks, &[1, 3, 5, 8, 10, 12]);
    finds_a_place(&arena, &resource, &stream)
}

/// Memory that is free where the place is to be stays there, though it is the smallest piece.
#[apply(case_alone)]
fn a_place_is_made_behind_free_memory(env: &Environment) -> Result<()> {
    let (arena, resource) = arena(env)?;
    let (stream, other) = (env.stream()?, env.stream()?);
    drop(resource.alloc::<u8>(&other, PIECE)?);
    let mut blocks = row(&resource, &stream, 14)?;
    free(&mut blocks, &[0, 2, 4, 6]);
    let _first = resource.alloc::<u8>(&stream, LARGE)?;
    // Takes a piece that is a little smaller than the others.
    drop(resource.alloc::<u8>(&stream, 4 * MIB)?);
    free(&mut blocks, &[1, 3, 5, 8, 10, 12]);
    finds_a_place(&arena, &resource, &stream)
}

/// One piece goes back to where it was, behind two that are free by then.
#[apply(case_alone)]
fn a_place_that_memory_goes_back_to_counts(env: &Environment) -> Result<()> {
    let (arena, resource) = arena(env)?;
    let (stream, other) = (env.stream()?, env.stream()?);
    drop(resource.alloc::<u8>(&other, PIECE)?);
    let blocks = [1, 1, 2, 1, 1, 1, 1].map(|pieces| resource.alloc::<u8>(&stream, pieces * PIECE));
    let mut blocks: Vec<_> = blocks.into_iter().map(Result::ok).collect();
    free(&mut blocks, &[1, 3, 5]);
    // They move behind the last one.
    drop(resource.alloc::<u8>(&stream, 3 * PIECE)?);
    let _behind = resource.alloc::<u8>(&stream, PIECE)?;
    let address = blocks[2].as_ref().context("no block")?.as_raw();
    let before = arena.stats();
    ensure!((before.moved, before.prepared) == (3, 0), "{before:?}");
    free(&mut blocks, &[2]);
    until("a place", || arena.stats().prepared > 0)?;
    let again = resource.alloc::<u8>(&stream, 3 * PIECE)?;
    let after = arena.stats();
    ensure!(again.as_raw() == address, "another place: {after:?}");
    ensure!(
        (after.moved, after.grown) == (before.moved + 1, before.grown),
        "{before:?}; {after:?}"
    );
    Ok(())
}
