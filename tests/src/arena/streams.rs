//! Streams that come and go: which memory of an arena they find again, and what others get of it.

use anyhow::{Result, ensure};
use cuda_mem::{Arena, ReleaseThreshold, Resource, ReusePolicy, Stream};

use super::ends::overlap;
use crate::environment::Environment;
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
