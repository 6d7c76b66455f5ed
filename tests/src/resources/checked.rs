//! Wrong frees, which a checking adaptor refuses.

use std::alloc::Layout;
use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use cuda_mem::memory::{CheckedAdaptor, LimitAdaptor};
use cuda_mem::{Arena, Error, ErrorKind, MemoryResource, Resource, Stream};

use crate::environment::Environment;
use crate::foreign;

/// The mode of a capture that lets its thread do everything else.
const RELAXED: u32 = 2;

fn layout(bytes: usize) -> Result<Layout> {
    Ok(Layout::from_size_align(bytes, 256)?)
}

/// Frees, rightly or wrongly.
fn free(
    resource: &impl MemoryResource,
    address: u64,
    layout: Layout,
    stream: &Stream,
) -> Result<(), Error> {
    // SAFETY: what is wrong is refused by the resource, and the rest is allocated and unused.
    unsafe { resource.deallocate(address, layout, stream) }
}

fn refused(freed: Result<(), Error>, why: &str) -> Result<()> {
    let Err(error) = freed else {
        bail!("it was freed, and should be refused: {why}");
    };
    ensure!(
        error.kind() == ErrorKind::InvalidValue && error.had_no_effect(),
        "{error}"
    );
    ensure!(error.to_string().contains(why), "{error}");
    Ok(())
}

#[apply(case)]
fn wrong_frees_are_refused_and_lose_nothing(env: &Environment) -> Result<()> {
    let (stream, arena) = (env.stream()?, Arena::builder(&env.device()?).build()?);
    let checked = CheckedAdaptor::new(arena.clone());
    let (small, large) = (layout(1000)?, layout(10 << 20)?);
    let block = checked.allocate(small, &stream)?;
    let other = checked.allocate(large, &stream)?;
    let foreign = arena.allocate(small, &stream)?;
    ensure!(checked.layout_of(block) == Some(small) && checked.layout_of(block + 256).is_none());
    let aligned = Layout::from_size_align(1000, 128)?;
    for _ in 0..2 {
        for (address, layout, why) in [
            (block, layout(999)?, "was allocated as 1000 B"),
            (block, aligned, "aligned to 128"),
            (other + 4096, small, "lies in the block of 10.0 MiB"),
            (foreign, small, "comes from elsewhere"),
        ] {
            refused(free(&checked, address, layout, &stream), why)?;
        }
        ensure!(checked.live_count() == 2);
    }
    free(&checked, block, small, &stream)?;
    refused(free(&checked, block, small, &stream), "freed twice")?;
    free(&checked, other, large, &stream)?;
    refused(free(&checked, other, large, &stream), "freed twice")?;
    free(&checked, 0, small, &stream)?;
    free(&arena, foreign, small, &stream)?;
    let stats = arena.stats();
    ensure!(checked.live_count() == 0 && stats.live == 0, "{stats}");
    Ok(())
}

#[apply(case)]
fn frees_on_other_streams_are_refused_if_asked(env: &Environment) -> Result<()> {
    let (stream, other) = (env.stream()?, env.stream()?);
    let arena = Arena::builder(&env.device()?).build()?;
    let strict = CheckedAdaptor::new(arena.clone()).with_streams();
    let lenient = CheckedAdaptor::new(arena.clone());
    let bytes = layout(5000)?;
    let first = strict.allocate(bytes, &stream)?;
    let second = lenient.allocate(bytes, &stream)?;
    refused(
        free(&strict, first, bytes, &other),
        "free it on its own stream",
    )?;
    ensure!(strict.live_count() == 1);
    // SAFETY: allocated above, and unused.
    unsafe { strict.deallocate_after(first, bytes, &stream, &[&other]) }?;
    free(&lenient, second, bytes, &other)?;
    stream.synchronize()?;
    other.synchronize()?;
    let stats = arena.stats();
    ensure!(stats.live == 0, "{stats}");
    Ok(())
}

/// Alone, because it captures.
#[apply(case_alone)]
fn buffers_are_freed_although_their_own_stream_cannot(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let limit = Arc::new(LimitAdaptor::new(env.pool()?, 1000));
    let checked = CheckedAdaptor::new(limit.clone()).with_streams();
    let resource = Resource::new(checked);
    // Dropped during a capture of its stream.
    let buffer = resource.alloc::<u8>(&stream, 600)?;
    foreign::begin(&stream, RELAXED)?;
    drop(buffer);
    foreign::end_well(&stream)?;
    stream.synchronize()?;
    ensure!(limit.allocated() == 0, "it is freed after the capture");
    // Dropped by another thread than that of its stream.
    let own = env.context()?.per_thread_stream();
    let buffer = resource.alloc::<u8>(&own, 600)?;
    let there = std::thread::spawn(move || drop(buffer)).join();
    ensure!(there.is_ok() && limit.allocated() == 0);
    // The program's own choice is checked as before.
    let buffer = resource.alloc::<u8>(&stream, 600)?;
    let Err(failed) = buffer.free_on(&own) else {
        bail!("it was freed on another stream");
    };
    ensure!(failed.error.kind() == ErrorKind::InvalidValue);
    drop(failed.object);
    ensure!(limit.allocated() == 0, "on its own stream");
    Ok(())
}

#[apply(case)]
fn a_block_is_freed_once_by_several_threads(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let checked = CheckedAdaptor::new(Arena::builder(&env.device()?).build()?);
    let bytes = layout(512)?;
    for _ in 0..100 {
        let block = checked.allocate(bytes, &stream)?;
        let succeeded = std::thread::scope(|scope| {
            let attempt = || free(&checked, block, bytes, &stream).is_ok();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(attempt)).collect();
            let done = threads.into_iter().map(|thread| thread.join());
            done.filter(|done| matches!(done, Ok(true))).count()
        });
        ensure!(succeeded == 1, "{succeeded} of four frees succeeded");
    }
    Ok(())
}
