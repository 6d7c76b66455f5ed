//! Physical memory that goes back to where it was.

use std::alloc::Layout;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::arena::SleepContents;
use cuda_mem::{Arena, DeviceBuffer, MemoryResource as _, Resource, Stream};

use super::moves::PIECE;
use super::spots;
use crate::environment::Environment;

/// Those that were freed are `None`.
type Blocks = Vec<Option<DeviceBuffer<u8>>>;

fn block(
    resource: &Resource,
    stream: &Stream,
    pieces: usize,
    number: u8,
) -> Result<DeviceBuffer<u8>> {
    let mut block = resource.alloc::<u8>(stream, pieces * PIECE)?;
    spots::write(&mut block, number)?;
    Ok(block)
}

/// Each has its number still.
fn look_at(blocks: &Blocks) -> Result<()> {
    for (number, block) in (0_u8..).zip(blocks) {
        let Some(block) = block else {
            continue;
        };
        spots::have(block, number).with_context(|| format!("block {number}"))?;
    }
    Ok(())
}

/// Nine blocks side by side, of which every second one was freed, and its memory moved behind the last one, where it
/// is free again.
fn moved(env: &Environment) -> Result<(Arena, Stream, Blocks)> {
    let arena = Arena::builder(&env.device()?).slack(1.0).build()?;
    let (resource, stream) = (Resource::from(arena.clone()), env.stream()?);
    let blocks = (0..9).map(|number| Ok(Some(block(&resource, &stream, 1, number)?)));
    let mut blocks: Vec<_> = blocks.collect::<Result<_>>()?;
    blocks.iter_mut().step_by(2).for_each(|block| *block = None);
    stream.synchronize()?;
    drop(block(&resource, &stream, 5, 100)?);
    stream.synchronize()?;
    let stats = arena.stats();
    ensure!(stats.moved == 4, "{stats:?}");
    Ok((arena, stream, blocks))
}

/// One of the four pieces that moved comes back, between two blocks that are free by then.
fn move_back(arena: &Arena, stream: &Stream, blocks: &mut Blocks) -> Result<()> {
    let resource = Resource::from(arena.clone());
    // Of the five free pieces behind the row two are left.
    let behind = block(&resource, stream, 3, 101)?;
    blocks[3] = None;
    blocks[5] = None;
    stream.synchronize()?;
    let before = arena.stats();
    let large = block(&resource, stream, 3, 102)?;
    let after = arena.stats();
    ensure!(after.reserved == before.reserved, "{before}; {after}");
    ensure!(after.moved == before.moved + 1, "{before:?}; {after:?}");
    look_at(blocks)?;
    spots::have(&behind, 101)?;
    spots::have(&large, 102)
}

#[apply(case)]
fn memory_goes_back_without_a_driver_call(env: &Environment) -> Result<()> {
    let (arena, stream, mut blocks) = moved(env)?;
    let before = arena.stats();
    move_back(&arena, &stream, &mut blocks)?;
    let after = arena.stats();
    // The look marks the stream and asks how far it is; mapping the memory would take two more.
    ensure!(
        after.driver_calls <= before.driver_calls + 3,
        "{before:?}; {after:?}"
    );
    Ok(())
}

#[apply(case)]
fn memory_that_was_elsewhere_goes_back_to_the_device(env: &Environment) -> Result<()> {
    for goes_back in [false, true] {
        let (arena, stream, mut blocks) = moved(env)?;
        if goes_back {
            move_back(&arena, &stream, &mut blocks)?;
        }
        let held = arena.stats().reserved;
        stream.synchronize()?;
        arena.trim_to(0)?;
        let stats = arena.stats();
        ensure!(
            stats.reserved < held && stats.reserved >= stats.live,
            "{stats}"
        );
        look_at(&blocks)?;
        drop(blocks);
        stream.synchronize()?;
        arena.trim_to(0)?;
        ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    }
    Ok(())
}

#[apply(case)]
fn memory_that_was_elsewhere_sleeps(env: &Environment) -> Result<()> {
    let (arena, stream, mut blocks) = moved(env)?;
    // SAFETY: nothing uses the blocks before the arena is awake.
    unsafe { arena.sleep(SleepContents::Keep) }?;
    arena.wake()?;
    // What was free went back for good.
    let stats = arena.stats();
    ensure!(stats.reserved == 4 * PIECE as u64, "{stats}");
    look_at(&blocks)?;
    // What came anew was nowhere else.
    let resource = Resource::from(arena.clone());
    blocks.push(Some(block(&resource, &stream, 5, 9)?));
    look_at(&blocks)
}

/// Moves through all addresses of an arena, and on from the first.
#[apply(case_of_full_card)]
fn addresses_that_memory_left_serve_other_memory(env: &Environment) -> Result<()> {
    let arena = Arena::builder(&env.device()?).slack(1.0).build()?;
    let stream = env.stream()?;
    let bytes = usize::try_from(env.device()?.total_memory()?)? / 20;
    let layout = |count: usize| Layout::from_size_align(count * bytes, 256);
    for round in 0..12 {
        let allocate = |count| {
            let address = arena.allocate(layout(count)?, &stream);
            address.with_context(|| format!("round {round}: {:?}", arena.stats()))
        };
        let free = |address, count| -> Result<()> {
            // SAFETY: allocated as this layout, and no work uses it.
            Ok(unsafe { arena.deallocate(address, layout(count)?, &stream) }?)
        };
        let row = (0..9).map(|_| allocate(1)).collect::<Result<Vec<_>>>()?;
        for address in row.iter().step_by(2) {
            free(*address, 1)?;
        }
        stream.synchronize()?;
        let large = allocate(5)?;
        for address in row.iter().skip(1).step_by(2) {
            free(*address, 1)?;
        }
        free(large, 5)?;
        stream.synchronize()?;
    }
    let stats = arena.stats();
    ensure!(stats.moved > 100 && stats.live == 0, "{stats:?}");
    println!("{stats:?}");
    arena.trim_to(0)?;
    ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    Ok(())
}

/// Memory went back from there, and is still mapped there.
#[apply(case)]
fn an_arena_grows_where_moved_memory_was(env: &Environment) -> Result<()> {
    let (arena, stream, mut blocks) = moved(env)?;
    let resource = Resource::from(arena.clone());
    let behind = block(&resource, &stream, 3, 101)?;
    blocks[3] = None;
    blocks[5] = None;
    stream.synchronize()?;
    let large = block(&resource, &stream, 3, 102)?;
    let moved = arena.stats();
    stream.synchronize()?;
    // The memory that is free behind the row goes, and its addresses come next.
    arena.trim_to(0)?;
    let more = block(&resource, &stream, 4, 103)?;
    let stats = arena.stats();
    ensure!(stats.moved == moved.moved, "{stats:?}");
    let end = behind.as_raw() + 3 * PIECE as u64;
    ensure!(more.as_raw() == end, "{:#x}, not {end:#x}", more.as_raw());
    for (block, number) in [(&behind, 101), (&large, 102), (&more, 103)] {
        spots::have(block, number).with_context(|| format!("block {number}"))?;
    }
    look_at(&blocks)
}

/// Addresses that memory left can be pinned once there is memory again.
#[apply(case)]
fn memory_that_came_back_can_be_pinned(env: &Environment) -> Result<()> {
    let (arena, stream, mut blocks) = moved(env)?;
    let resource = Resource::from(arena.clone());
    let left = blocks[1].as_ref().map(|block| block.as_raw());
    let left = left.context("no block")? + PIECE as u64;
    ensure!(arena.pin(left, 1).is_err(), "its memory has moved away");
    move_back(&arena, &stream, &mut blocks)?;
    let row = blocks[1].as_ref().map(|block| block.as_raw());
    let row = row.context("no block")? + 2 * PIECE as u64;
    drop(arena.pin(row, 3 * PIECE as u64)?);
    // The same after all was given back.
    drop(blocks);
    stream.synchronize()?;
    arena.trim_to(0)?;
    ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    let again = block(&resource, &stream, 9, 104)?;
    let first = row - 3 * PIECE as u64;
    ensure!(again.as_raw() == first, "not where the arena began");
    let pin = arena.pin(again.as_raw(), 9 * PIECE as u64)?;
    ensure!(pin.range() == (again.as_raw()..again.as_raw() + 9 * PIECE as u64));
    Ok(())
}

/// It would make no place for the request, so other memory moves to the end instead.
#[apply(case)]
fn memory_goes_back_only_where_that_helps(env: &Environment) -> Result<()> {
    let (arena, stream, mut blocks) = moved(env)?;
    let resource = Resource::from(arena.clone());
    // Of the five free pieces behind the row two are left.
    let behind = block(&resource, &stream, 3, 101)?;
    // With what would come back beside it these are two pieces.
    blocks[3] = None;
    stream.synchronize()?;
    let before = arena.stats();
    let large = block(&resource, &stream, 3, 102)?;
    let after = arena.stats();
    ensure!(after.reserved == before.reserved, "{before}; {after}");
    ensure!(after.moved == before.moved + 1, "{before:?}; {after:?}");
    let end = behind.as_raw() + 3 * PIECE as u64;
    ensure!(large.as_raw() == end, "{:#x}, not {end:#x}", large.as_raw());
    look_at(&blocks)?;
    spots::have(&behind, 101)?;
    spots::have(&large, 102)
}

/// The last piece of a place would go back to where that begins, and be missing at its end.
#[apply(case)]
fn memory_does_not_go_back_within_a_place(env: &Environment) -> Result<()> {
    let (arena, stream, mut blocks) = moved(env)?;
    let resource = Resource::from(arena.clone());
    blocks[1] = None;
    // Six pieces lie side by side then, and before them is where one of these came from.
    blocks[7] = None;
    stream.synchronize()?;
    let before = arena.stats();
    let large = block(&resource, &stream, 7, 101)?;
    let after = arena.stats();
    ensure!(after.reserved == before.reserved, "{before}; {after}");
    ensure!(after.moved == before.moved + 1, "{before:?}; {after:?}");
    look_at(&blocks)?;
    spots::have(&large, 101)
}

/// Two pieces go to addresses behind all that is mapped by then. The arena grows behind these.
#[apply(case)]
fn an_arena_grows_behind_memory_that_went_back(env: &Environment) -> Result<()> {
    let (arena, stream, mut blocks) = moved(env)?;
    let resource = Resource::from(arena.clone());
    let second = blocks[1].as_ref().map(|block| block.as_raw());
    let first = second.context("no block")? - PIECE as u64;
    let at = |piece: usize| first + (piece * PIECE) as u64;
    // Of the five free pieces behind the row two are left, which were the fifth and the seventh of it.
    let behind = block(&resource, &stream, 3, 101)?;
    [3, 5, 7].into_iter().for_each(|place| blocks[place] = None);
    stream.synchronize()?;
    // These two go back, each for a request.
    let three = block(&resource, &stream, 3, 102)?;
    stream.synchronize()?;
    let two = block(&resource, &stream, 2, 102)?;
    ensure!(arena.stats().moved == 6, "{:?}", arena.stats());
    // A piece goes to the device, so that the arena sees where its memory ends now.
    blocks[1] = None;
    stream.synchronize()?;
    arena.trim_to(0)?;
    let held = arena.stats().reserved;
    ensure!(held == 8 * PIECE as u64, "{held}");
    stream.synchronize()?;
    drop((three, two));
    let row = (0..5).map(|number| Ok(Some(block(&resource, &stream, 1, number)?)));
    let mut row: Blocks = row.collect::<Result<_>>()?;
    for (number, block) in row.iter().flatten().enumerate() {
        let expected = at(3 + number);
        ensure!(
            block.as_raw() == expected,
            "{:#x}, not {expected:#x}",
            block.as_raw()
        );
    }
    // The two that went back are free, with nothing beside them.
    [1, 3].into_iter().for_each(|place| row[place] = None);
    stream.synchronize()?;
    let before = arena.stats();
    let returned = block(&resource, &stream, 2, 103)?;
    let after = arena.stats();
    ensure!(
        (after.moved, after.grown) == (before.moved + 2, before.grown),
        "{before:?}; {after:?}"
    );
    ensure!(returned.as_raw() == at(11), "{:#x}", returned.as_raw());
    let more = block(&resource, &stream, 3, 104)?;
    ensure!(more.as_raw() == at(13), "{:#x}", more.as_raw());
    for (block, number) in [(&behind, 101), (&returned, 103), (&more, 104)] {
        spots::have(block, number).with_context(|| format!("block {number}"))?;
    }
    look_at(&row)
}
