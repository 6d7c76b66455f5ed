//! Streams that come and go: which memory of an arena they find again, and what others get of it.

use std::alloc::Layout;

use anyhow::{Result, ensure};
use cuda_mem::{Arena, MemoryResource as _, ReleaseThreshold, Resource, ReusePolicy, Stream};

use super::ends::overlap;
use crate::environment::Environment;
use crate::foreign;
use crate::hold::hold;

const MIB: usize = 1 << 20;

/// Another handle of a stream, as a library makes it that is given the raw one.
pub(super) fn borrowed(stream: &Stream) -> Stream {
    // SAFETY: the clone keeps the stream alive.
    unsafe { Stream::borrow_raw(stream.context(), stream.as_raw(), stream.clone()) }
}

#[apply(case)]
fn handles_of_one_stream_share_its_memory(env: &Environment) -> Result<()> {
    // Stream ids.
    env.need(12, 0)?;
    let _calm = env.shared();
    let builder = Arena::builder(&env.device()?).reuse(ReusePolicy::DETERMINISTIC);
    let arena = builder.build()?;
    let resource = Resource::from(arena.clone());
    let (stream, other) = (env.stream()?, env.stream()?);
    drop(resource.alloc::<u8>(&other, MIB)?);
    let _held = hold(&stream)?;
    for bytes in [1000, 100 << 10, 8 * MIB] {
        let first = resource.alloc::<u8>(&stream, bytes)?;
        let address = first.as_raw();
        drop(first);
        let second = resource.alloc::<u8>(&borrowed(&stream), bytes)?;
        // What is free beside it on the same stream may be one with it.
        let distance = second.as_raw().abs_diff(address);
        ensure!(distance < bytes as u64, "{bytes}: {}", arena.stats());
    }
    let stats = arena.stats();
    ensure!(stats.streams == 2, "{} streams", stats.streams);
    ensure!(stats.waits == 0, "{stats}");
    Ok(())
}

#[apply(case)]
fn a_stream_that_is_borrowed_again_finds_its_memory(env: &Environment) -> Result<()> {
    // Stream ids.
    env.need(12, 0)?;
    let _calm = env.shared();
    let builder = Arena::builder(&env.device()?).reuse(ReusePolicy::DETERMINISTIC);
    let arena = builder.build()?;
    let resource = Resource::from(arena.clone());
    let (stream, another) = (env.stream()?, env.stream()?);
    let held = hold(&stream)?;
    let mut address = None;
    for turn in 0..100 {
        let buffer = resource.alloc::<u8>(&borrowed(&stream), 8 * MIB)?;
        let before = *address.get_or_insert(buffer.as_raw());
        ensure!(buffer.as_raw() == before, "turn {turn}: {}", arena.stats());
    }
    let stats = arena.stats();
    ensure!(
        (stats.streams, stats.grown, stats.waits) == (1, 1, 0),
        "{stats}"
    );
    // What it used is busy, and nobody may wait for it.
    let elsewhere = resource.alloc::<u8>(&another, 8 * MIB)?;
    ensure!(Some(elsewhere.as_raw()) != address, "it is in use");
    drop(held);
    Ok(())
}

/// Another stream gets the cache of one that ended. The first stream's handle must not lead there any more.
#[apply(case)]
fn a_stream_whose_cache_went_to_another_gets_a_new_one(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let arena = Arena::builder(&env.device()?).build()?;
    let resource = Resource::from(arena.clone());
    let (first, second) = (env.stream()?, env.stream()?);
    drop(resource.alloc::<u8>(&borrowed(&first), 8 * MIB)?);
    first.synchronize()?;
    // Takes over what `first` left.
    drop(resource.alloc::<u8>(&second, 8 * MIB)?);
    ensure!(arena.stats().streams == 1, "{}", arena.stats());
    let _held = hold(&second)?;
    let busy = resource.alloc::<u8>(&second, 8 * MIB)?;
    let address = busy.as_raw();
    drop(busy);
    let again = resource.alloc::<u8>(&borrowed(&first), 8 * MIB)?;
    ensure!(arena.stats().streams == 2, "{}", arena.stats());
    ensure!(
        again.as_raw() != address,
        "it is in use on the other stream"
    );
    Ok(())
}

/// All but a page of what a stream keeps goes to others once its work is done, without a call from it.
#[apply(case)]
fn an_idle_stream_keeps_no_more_than_a_page(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    const SIZES: [usize; 6] = [256, 1000, 16 << 10, 17 << 10, MIB, 20 * MIB];
    let max = 64 << 20;
    let arena = Arena::builder(&env.device()?).max_bytes(max).build()?;
    let resource = Resource::from(arena.clone());
    let (idle, other) = (env.stream()?, env.stream()?);
    // Keeps a page of the stream's cache in use.
    let _live = resource.alloc::<u8>(&idle, 256)?;
    for _ in 0..3 {
        for bytes in SIZES {
            let many: Vec<_> = (0..(24 * MIB / bytes).min(400))
                .map(|_| resource.alloc::<u8>(&idle, bytes))
                .collect::<cuda_mem::Result<_>>()?;
            drop(many);
        }
    }
    idle.synchronize()?;
    let all = resource.alloc::<u8>(&other, max as usize - 2 * MIB)?;
    let stats = arena.stats();
    ensure!(stats.reserved <= max, "{stats}");
    ensure!(all.len() as u64 + (2 << 20) == max, "{stats}");
    Ok(())
}

#[apply(case_alone)]
fn a_wait_gives_back_what_other_streams_freed(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let builder = Arena::builder(&env.device()?);
    let arena = builder
        .release_threshold(ReleaseThreshold::Bytes(0))
        .build()?;
    let (own, other) = (env.stream()?, env.stream()?);
    let resource = Resource::from(arena.clone());
    let blocks = (0..1000).map(|_| resource.alloc::<u8>(&own, 16 << 10));
    for block in blocks.collect::<cuda_mem::Result<Vec<_>>>()? {
        block.free_on(&other).map_err(|failed| failed.error)?;
    }
    for stream in [&own, &other, &own] {
        stream.synchronize()?;
    }
    let stats = arena.stats();
    ensure!(stats.reserved == 0, "{stats}");
    Ok(())
}

/// A stream ends with its last handle: what is freed through that is not done because the first one has ended.
#[apply(case)]
fn a_stream_lives_as_long_as_one_of_its_handles(env: &Environment) -> Result<()> {
    // Stream ids.
    env.need(12, 0)?;
    let _calm = env.shared();
    let builder = Arena::builder(&env.device()?).reuse(ReusePolicy::ALLOW_OPPORTUNISTIC);
    let arena = builder.build()?;
    let resource = Resource::from(arena.clone());
    let (stream, other) = (env.stream()?, env.stream()?);
    let (first, last) = (borrowed(&stream), borrowed(&stream));
    drop(resource.alloc::<u8>(&first, MIB)?);
    let block = resource.alloc::<u8>(&last, 8 * MIB)?;
    let place = (block.as_raw(), 8 * MIB);
    stream.synchronize()?;
    drop(first);
    let held = hold(&stream)?;
    drop(block);
    let meanwhile = resource.alloc::<u8>(&other, 8 * MIB)?;
    ensure!(
        !overlap(place, (meanwhile.as_raw(), 8 * MIB)),
        "the stream may still use it: {}",
        arena.stats()
    );
    drop(held);
    stream.synchronize()?;
    drop(last);
    // Now it has ended, and another one gets its cache.
    let next = env.stream()?;
    drop(resource.alloc::<u8>(&next, 1000)?);
    ensure!(arena.stats().streams == 2, "{}", arena.stats());
    Ok(())
}

/// The same of the first handle.
#[apply(case)]
fn a_stream_goes_on_when_a_later_handle_of_it_has_ended(env: &Environment) -> Result<()> {
    // Stream ids.
    env.need(12, 0)?;
    let _calm = env.shared();
    let builder = Arena::builder(&env.device()?).reuse(ReusePolicy::ALLOW_OPPORTUNISTIC);
    let arena = builder.build()?;
    let resource = Resource::from(arena.clone());
    let (stream, other) = (env.stream()?, env.stream()?);
    let (first, last) = (borrowed(&stream), borrowed(&stream));
    let block = resource.alloc::<u8>(&first, 8 * MIB)?;
    let place = (block.as_raw(), 8 * MIB);
    drop(resource.alloc::<u8>(&last, MIB)?);
    stream.synchronize()?;
    drop(last);
    let held = hold(&stream)?;
    drop(block);
    let meanwhile = resource.alloc::<u8>(&other, 8 * MIB)?;
    drop(held);
    ensure!(
        !overlap(place, (meanwhile.as_raw(), 8 * MIB)),
        "the stream may still use it: {}",
        arena.stats()
    );
    Ok(())
}

/// The cache of a stream that ended goes to one other stream.
#[apply(case)]
fn two_streams_never_share_a_cache(env: &Environment) -> Result<()> {
    // Stream ids.
    env.need(12, 0)?;
    let _calm = env.shared();
    for comes_back in [false, true] {
        let arena = Arena::builder(&env.device()?).build()?;
        let resource = Resource::from(arena.clone());
        let stream = env.stream()?;
        let held = hold(&stream)?;
        drop(resource.alloc::<u8>(&borrowed(&stream), 8 * MIB)?);
        // The first takes the cache over, behind the work that the stream still has.
        let first = if comes_back {
            borrowed(&stream)
        } else {
            env.stream()?
        };
        let second = env.stream()?;
        let of_first = resource.alloc::<u8>(&first, 8 * MIB)?;
        let place = (of_first.as_raw(), 8 * MIB);
        let of_second = resource.alloc::<u8>(&second, 1000)?;
        ensure!(arena.stats().streams == 2, "{}", arena.stats());
        drop(of_first);
        let other = resource.alloc::<u8>(&second, 8 * MIB)?;
        ensure!(
            !overlap(place, (other.as_raw(), 8 * MIB)),
            "the first stream may still use it: {}",
            arena.stats()
        );
        drop((held, of_second));
    }
    Ok(())
}

#[apply(case)]
fn many_streams_have_caches_of_their_own(env: &Environment) -> Result<()> {
    const COUNT: usize = 70;
    let arena = Arena::builder(&env.device()?).build()?;
    let resource = Resource::from(arena.clone());
    let streams = (0..COUNT).map(|_| env.stream());
    let streams = streams.collect::<Result<Vec<_>>>()?;
    let mut blocks = Vec::new();
    for (number, stream) in (0_u8..).zip(&streams) {
        let mut block = resource.alloc::<u8>(stream, 1000)?;
        block.fill(number)?;
        blocks.push(block);
    }
    ensure!(arena.stats().streams == COUNT as u64, "{}", arena.stats());
    for (number, block) in (0_u8..).zip(&blocks) {
        ensure!(block.to_vec()? == vec![number; 1000], "block {number}");
    }
    let last = blocks.pop().map(|block| block.as_raw());
    let again = resource.alloc::<u8>(&streams[COUNT - 1], 1000)?;
    ensure!(Some(again.as_raw()) == last, "{}", arena.stats());
    Ok(())
}

/// Blocks of one stream that another one freed, which is busy then. The first finds them as soon as that is done, whether they
/// came 64 at a time or were looked at before in vain.
#[apply(case)]
fn blocks_that_another_stream_freed_come_back(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let layout = Layout::from_size_align(16 << 10, 256)?;
    for (count, is_looked_at) in [(64, false), (40, true)] {
        let builder = Arena::builder(&env.device()?).reuse(ReusePolicy::ALLOW_OPPORTUNISTIC);
        let arena = builder.max_bytes(8 << 20).build()?;
        let (own, other) = (env.stream()?, env.stream()?);
        // All that the arena may hold.
        let blocks = (0..512).map(|_| arena.allocate(layout, &own));
        let mut blocks = blocks.collect::<cuda_mem::Result<Vec<_>>>()?;
        let held = hold(&other)?;
        for address in blocks.drain(..count) {
            // SAFETY: allocated as this layout, and no work uses it.
            unsafe { arena.deallocate(address, layout, &other) }?;
        }
        if is_looked_at {
            ensure!(arena.allocate(layout, &own).is_err());
        }
        drop(held);
        other.synchronize()?;
        let before = arena.stats();
        for _ in 0..count {
            blocks.push(arena.allocate(layout, &own)?);
        }
        let after = arena.stats();
        ensure!(
            (after.refills, after.grown, after.released)
                == (before.refills, before.grown, before.released),
            "{count} blocks: {before:?}; {after:?}"
        );
        for address in blocks {
            // SAFETY: allocated as this layout, and no work uses it.
            unsafe { arena.deallocate(address, layout, &own) }?;
        }
    }
    Ok(())
}

/// They were looked at in vain while the stream that freed the blocks was busy.
#[apply(case)]
fn pages_of_blocks_that_another_stream_freed_go_to_a_third(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let layout = Layout::from_size_align(16 << 10, 256)?;
    for reuse in [ReusePolicy::all(), ReusePolicy::ALLOW_OPPORTUNISTIC] {
        let arena = Arena::builder(&env.device()?).reuse(reuse).build()?;
        let resource = Resource::from(arena.clone());
        let (own, other, third) = (env.stream()?, env.stream()?, env.stream()?);
        let blocks = (0..2048).map(|_| arena.allocate(layout, &own));
        let blocks = blocks.collect::<cuda_mem::Result<Vec<_>>>()?;
        let held = hold(&other)?;
        for address in blocks {
            // SAFETY: allocated as this layout, and no work uses it.
            unsafe { arena.deallocate(address, layout, &other) }?;
        }
        let _first = resource.alloc::<u8>(&third, 24 * MIB)?;
        drop(held);
        other.synchronize()?;
        let before = arena.stats();
        let _second = resource.alloc::<u8>(&third, 24 * MIB)?;
        let after = arena.stats();
        ensure!(
            after.grown == before.grown,
            "{reuse:?}: {before:?}; {after:?}"
        );
    }
    Ok(())
}

/// Blocks of its pages that came back on another stream, which was busy, are found without a call from it.
#[apply(case)]
fn pages_of_an_idle_stream_come_back_through_others(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let arena = Arena::builder(&env.device()?).build()?;
    let resource = Resource::from(arena.clone());
    let (idle, freeing, third) = (env.stream()?, env.stream()?, env.stream()?);
    let blocks = (0..2400).map(|_| resource.alloc::<u8>(&idle, 16 << 10));
    let blocks = blocks.collect::<cuda_mem::Result<Vec<_>>>()?;
    let _small = resource.alloc::<u8>(&third, 1000)?;
    let held = hold(&freeing)?;
    for block in blocks {
        block.free_on(&freeing).map_err(|failed| failed.error)?;
    }
    drop(held);
    foreign::synchronize(&freeing)?;
    let before = arena.stats();
    // Most of the 37.5 MiB.
    let _large = resource.alloc::<u8>(&third, 34 * MIB)?;
    let after = arena.stats();
    ensure!(after.grown == before.grown, "{before}; {after}");
    Ok(())
}

/// That all of a stream that ended is done says nothing of the one that takes its cache over.
#[apply(case)]
fn what_uses_the_memory_of_a_stream_that_ended_may_be_busy(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let builder = Arena::builder(&env.device()?).reuse(ReusePolicy::ALLOW_OPPORTUNISTIC);
    let arena = builder.build()?;
    let resource = Resource::from(arena.clone());
    let (first, second, other) = (env.stream()?, env.stream()?, env.stream()?);
    let blocks = [(); 2].map(|()| resource.alloc::<u8>(&first, 8 * MIB));
    drop(blocks);
    first.synchronize()?;
    drop(first);
    // It looks, and half of the memory stays.
    arena.trim_to(8 << 20)?;
    ensure!(arena.stats().reserved == 8 << 20, "{}", arena.stats());
    let blocks = [(); 2].map(|()| resource.alloc::<u8>(&second, 4 * MIB));
    let [one, two] = blocks;
    let (one, two) = (one?, two?);
    ensure!(arena.stats().streams == 1, "{}", arena.stats());
    let places = [one.as_raw(), two.as_raw()];
    let held = hold(&second)?;
    drop((one, two));
    let taken = resource.alloc::<u8>(&other, 4 * MIB)?;
    let stats = arena.stats();
    drop(held);
    let taken = (taken.as_raw(), 4 * MIB);
    ensure!(
        !places.iter().any(|place| overlap((*place, 4 * MIB), taken)),
        "the second stream may still use it: {stats}"
    );
    Ok(())
}
