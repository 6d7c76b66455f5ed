//! What a user of an arena can count on.

use std::alloc::Layout;

use anyhow::{Result, ensure};
use cuda_mem::{Arena, DeviceBuffer, ErrorKind, MemoryResource, Resource, ReusePolicy, Stream};

use crate::environment::Environment;
use crate::hold::hold;

const MIB: usize = 1 << 20;

/// More than an arena of several streams takes from the device rather than from other streams.
pub(super) const LARGE: usize = 40 * MIB;

/// An arena and two streams.
pub(super) struct Scene {
    pub(super) arena: Arena,
    resource: Resource,
    pub(super) a: Stream,
    pub(super) b: Stream,
}

fn scene(env: &Environment, reuse: ReusePolicy, max: u64) -> Result<Scene> {
    let builder = Arena::builder(&env.device()?).reuse(reuse).max_bytes(max);
    let arena = builder.build()?;
    Ok(Scene {
        resource: Resource::from(arena.clone()),
        arena,
        a: env.stream()?,
        b: env.stream()?,
    })
}

impl Scene {
    pub(super) fn new(env: &Environment, reuse: ReusePolicy) -> Result<Self> {
        scene(env, reuse, u64::MAX)
    }

    pub(super) fn on_a(&self, bytes: usize) -> Result<DeviceBuffer<u8>> {
        Ok(self.resource.alloc(&self.a, bytes)?)
    }

    pub(super) fn on_b(&self, bytes: usize) -> Result<DeviceBuffer<u8>> {
        Ok(self.resource.alloc(&self.b, bytes)?)
    }
}

fn overlap(one: (u64, usize), other: (u64, usize)) -> bool {
    one.0 < other.0 + other.1 as u64 && other.0 < one.0 + one.1 as u64
}

#[apply(case)]
fn memory_is_reused_at_once_on_its_stream(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    for bytes in [1000, 40 << 10, MIB, 30 * MIB] {
        let scene = Scene::new(env, ReusePolicy::DRIVER_DEFAULT)?;
        let _held = hold(&scene.a)?;
        let first = scene.on_a(bytes)?;
        let address = first.as_raw();
        drop(first);
        let calls = scene.arena.stats().driver_calls;
        let again = scene.on_a(bytes)?;
        ensure!(again.as_raw() == address, "{bytes} bytes: another place");
        drop(again);
        // A little less is cut from the same memory, once it has gone back among its neighbours.
        let less = scene.on_a(bytes - 300)?;
        let taken = (less.as_raw(), bytes - 300);
        let stats = scene.arena.stats();
        ensure!(stats.hits == 1, "{bytes} bytes: {stats}");
        ensure!(
            bytes < 2 * MIB || stats.driver_calls > calls || overlap(taken, (address, bytes)),
            "{bytes} bytes: {stats}"
        );
    }
    Ok(())
}

/// Copies across two mappings want a current context (R148), which no user has to think of.
#[apply(case)]
fn a_block_may_lie_across_pieces(env: &Environment) -> Result<()> {
    let scene = Scene::new(env, ReusePolicy::DRIVER_DEFAULT)?;
    drop(scene.on_a(MIB)?);
    let bytes = 2 * scene.arena.stats().reserved as usize;
    let mut block = scene.on_a(bytes)?;
    let stats = scene.arena.stats();
    ensure!(
        (stats.grown, stats.reserved) == (2, bytes as u64),
        "not in two pieces: {stats}"
    );
    let pattern: Vec<u8> = (0..bytes).map(|at| (at / 3 % 251) as u8).collect();
    let mut other = scene.on_a(bytes)?;
    let (seen, copied) = std::thread::scope(|scope| {
        // A new thread has no current context.
        let work = scope.spawn(|| -> Result<_> {
            block.copy_from(&pattern)?;
            other.copy_from_device(&block)?;
            Ok((block.to_vec()?, other.to_vec()?))
        });
        work.join()
            .map_err(|_| anyhow::anyhow!("the thread panicked"))?
    })?;
    ensure!(seen == pattern, "the block holds something else");
    ensure!(copied == pattern, "the copy holds something else");
    Ok(())
}

#[apply(case)]
fn what_is_busy_is_not_given_to_others(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    for bytes in [1000, 8 * MIB] {
        let scene = Scene::new(env, ReusePolicy::ALLOW_OPPORTUNISTIC)?;
        let _held = hold(&scene.a)?;
        let first = scene.on_a(bytes)?;
        let place = (first.as_raw(), bytes);
        drop(first);
        let other = scene.on_b(bytes)?;
        ensure!(
            !overlap(place, (other.as_raw(), bytes)),
            "given to another stream"
        );
        let stats = scene.arena.stats();
        ensure!(stats.waits == 0, "{stats}");
        ensure!(other.stream().is_done()?, "the other stream waits");
    }
    Ok(())
}

#[apply(case)]
fn a_stream_waits_rather_than_that_the_arena_grows(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let scene = Scene::new(env, ReusePolicy::ALLOW_INTERNAL_DEPENDENCIES)?;
    let held = hold(&scene.a)?;
    let first = scene.on_a(32 * MIB)?;
    let place = (first.as_raw(), 32 * MIB);
    drop(first);
    let mut other = scene.on_b(20 * MIB)?;
    let stats = scene.arena.stats();
    ensure!((stats.waits > 0, stats.grown) == (true, 1), "{stats}");
    ensure!(stats.taken_over == 1, "{stats}");
    ensure!(
        overlap(place, (other.as_raw(), 20 * MIB)),
        "not what came free"
    );
    other.fill(7)?;
    ensure!(!scene.b.is_done()?, "the other stream does not wait");
    drop(held);
    ensure!(
        other.to_vec()?.iter().all(|byte| *byte == 7),
        "not what was written"
    );
    Ok(())
}

#[apply(case)]
fn without_leave_streams_keep_to_themselves(env: &Environment) -> Result<()> {
    let scene = Scene::new(env, ReusePolicy::DETERMINISTIC)?;
    let place = (scene.on_a(8 * MIB)?.as_raw(), 8 * MIB);
    let other = scene.on_b(8 * MIB)?;
    ensure!(
        !overlap(place, (other.as_raw(), 8 * MIB)),
        "given to another stream"
    );
    let stats = scene.arena.stats();
    ensure!((stats.taken_over, stats.waits) == (0, 0), "{stats}");
    Ok(())
}

/// As in the driver's pools: the host knows that it is done.
#[apply(case)]
fn what_was_waited_for_goes_to_others_under_every_policy(env: &Environment) -> Result<()> {
    for reuse in [
        ReusePolicy::empty(),
        ReusePolicy::DETERMINISTIC,
        ReusePolicy::DRIVER_DEFAULT,
    ] {
        for of_context in [false, true] {
            let scene = Scene::new(env, reuse)?;
            let address = scene.on_a(LARGE)?.as_raw();
            if of_context {
                scene.a.context().synchronize()?;
            } else {
                scene.a.synchronize()?;
            }
            let other = scene.on_b(LARGE)?;
            let stats = scene.arena.stats();
            ensure!(other.as_raw() == address, "{reuse:?}: {stats}");
            ensure!((stats.grown, stats.waits) == (1, 0), "{reuse:?}: {stats}");
        }
    }
    Ok(())
}

#[apply(case)]
fn what_is_done_goes_to_other_streams(env: &Environment) -> Result<()> {
    let scene = Scene::new(env, ReusePolicy::ALLOW_OPPORTUNISTIC)?;
    let address = scene.on_a(LARGE)?.as_raw();
    scene.a.synchronize()?;
    let other = scene.on_b(LARGE)?;
    let stats = scene.arena.stats();
    ensure!(other.as_raw() == address, "another place: {stats}");
    ensure!((stats.grown, stats.waits) == (1, 0), "{stats}");
    Ok(())
}

#[apply(case)]
fn a_burst_of_frees_costs_one_query(env: &Environment) -> Result<()> {
    env.not_on_windows(
        "no thread counts as alone there, for want of membarrier, so nothing is asked early",
    )?;
    let builder = Arena::builder(&env.device()?).initial_bytes(1 << 30);
    let arena = builder.build()?;
    let resource = Resource::from(arena.clone());
    let (a, b) = (env.stream()?, env.stream()?);
    // Streams are known by what they have allocated.
    drop(resource.alloc::<u8>(&b, MIB)?);
    let blocks = (0..32).map(|_| resource.alloc::<u8>(&a, 8 * MIB));
    let blocks = blocks.collect::<cuda_mem::Result<Vec<_>>>()?;
    let before = arena.stats();
    drop(blocks);
    let freed = arena.stats();
    ensure!(
        freed.driver_calls == before.driver_calls,
        "frees asked the driver: {before}, then {freed}"
    );
    let whole = resource.alloc::<u8>(&b, 1 << 29)?;
    let after = arena.stats();
    let calls = after.driver_calls - freed.driver_calls;
    ensure!((1..=2).contains(&calls), "{calls} calls: {after}");
    ensure!(after.grown == before.grown, "it grew: {after}");
    drop(whole);
    Ok(())
}

#[apply(case)]
fn blocks_may_come_back_on_other_streams(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let scene = Scene::new(env, ReusePolicy::ALLOW_OPPORTUNISTIC)?;
    for bytes in [1000, 8 * MIB] {
        let buffer = scene.on_a(bytes)?;
        let place = (buffer.as_raw(), bytes);
        let held = hold(&scene.b)?;
        buffer.free_on(&scene.b).map_err(|failed| failed.error)?;
        ensure!(scene.arena.stats().live == 0, "{}", scene.arena.stats());
        let meanwhile = scene.on_a(bytes)?;
        ensure!(
            !overlap(place, (meanwhile.as_raw(), bytes)),
            "{bytes} bytes: the other stream may still use it"
        );
        drop(meanwhile);
        drop(held);
        scene.b.synchronize()?;
        scene.a.synchronize()?;
        scene.arena.trim_to(0)?;
        let stats = scene.arena.stats();
        ensure!(
            stats.reserved == 0,
            "{bytes} bytes: it did not come back: {stats}"
        );
    }
    Ok(())
}

#[apply(case)]
fn a_stream_that_ended_leaves_its_memory_to_the_next(env: &Environment) -> Result<()> {
    let scene = Scene::new(env, ReusePolicy::DRIVER_DEFAULT)?;
    for _ in 0..20 {
        let stream = env.stream()?;
        for bytes in [500, 5000, 3 * MIB] {
            let mut buffer = scene.resource.alloc::<u8>(&stream, bytes)?;
            buffer.fill(3)?;
        }
    }
    let stats = scene.arena.stats();
    ensure!(stats.streams <= 2, "{} caches", stats.streams);
    ensure!(stats.grown <= 2, "{stats}");
    Ok(())
}

#[apply(case)]
fn an_arena_is_no_larger_than_it_may_be(env: &Environment) -> Result<()> {
    let scene = scene(env, ReusePolicy::DRIVER_DEFAULT, 16 << 20)?;
    let first = scene.on_a(12 * MIB)?;
    let Err(error) = scene.resource.alloc::<u8>(&scene.a, 8 * MIB) else {
        anyhow::bail!("more than the arena may hold");
    };
    ensure!(error.kind() == ErrorKind::OutOfMemory, "{error}");
    let memory = error.out_of_memory().cloned().unwrap_or_default();
    ensure!(memory.asked == 8 << 20, "{memory:?}");
    ensure!(memory.pool_used == Some(12 << 20), "{memory:?}");
    ensure!(
        memory.pool_reserved.is_some_and(|bytes| bytes <= 16 << 20),
        "{memory:?}"
    );
    drop(first);
    drop(scene.on_b(8 * MIB)?);
    ensure!(
        scene.arena.stats().reserved_peak <= 16 << 20,
        "{}",
        scene.arena.stats()
    );
    Ok(())
}

#[apply(case)]
fn trimming_gives_back_what_is_done(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let scene = Scene::new(env, ReusePolicy::DRIVER_DEFAULT)?;
    let held = hold(&scene.a)?;
    for bytes in [700, 100 << 10, 64 * MIB] {
        drop(scene.on_a(bytes)?);
    }
    let before = scene.arena.stats().reserved;
    scene.arena.trim_to(0)?;
    ensure!(
        scene.arena.stats().reserved == before,
        "memory went from under a stream that may use it: {}",
        scene.arena.stats()
    );
    drop(held);
    scene.a.synchronize()?;
    scene.arena.trim_to(0)?;
    ensure!(scene.arena.stats().reserved == 0, "{}", scene.arena.stats());
    let mut again = scene.on_a(MIB)?;
    again.fill(9)?;
    ensure!(
        again.to_vec()?.iter().all(|byte| *byte == 9),
        "not what was written"
    );
    Ok(())
}

#[apply(case)]
fn a_full_arena_gives_back_before_it_fails(env: &Environment) -> Result<()> {
    let scene = scene(env, ReusePolicy::DRIVER_DEFAULT, 48 << 20)?;
    let blocks: Result<Vec<_>> = (0..4).map(|_| scene.on_a(10 * MIB)).collect();
    let [first, second, third, fourth] =
        <[_; 4]>::try_from(blocks?).map_err(|_| anyhow::anyhow!("four blocks"))?;
    drop((first, third));
    scene.a.synchronize()?;
    // There is room, but nowhere so much in a row.
    let large = scene.on_a(22 * MIB)?;
    let stats = scene.arena.stats();
    ensure!(
        stats.released + stats.moved > 0 && stats.reserved_peak <= 48 << 20,
        "{stats:?}"
    );
    drop((second, fourth, large));
    Ok(())
}

#[apply(case)]
fn the_arena_ends_when_its_last_block_does(env: &Environment) -> Result<()> {
    let Scene {
        arena, resource, a, ..
    } = Scene::new(env, ReusePolicy::DRIVER_DEFAULT)?;
    let mut buffer = resource.alloc::<u32>(&a, 1 << 20)?;
    drop((arena, resource));
    buffer.fill(5)?;
    ensure!(
        buffer.to_vec()?.iter().all(|word| *word == 5),
        "not what was written"
    );
    Ok(())
}

#[apply(case)]
fn numbers_add_up(env: &Environment) -> Result<()> {
    let scene = Scene::new(env, ReusePolicy::DRIVER_DEFAULT)?;
    let sizes = [1, 256, 257, 70_000, MIB, 5 * MIB];
    let blocks: Result<Vec<_>> = sizes.into_iter().map(|bytes| scene.on_a(bytes)).collect();
    let blocks = blocks?;
    let rounded: usize = sizes.iter().map(|bytes| bytes.next_multiple_of(256)).sum();
    let stats = scene.arena.stats();
    ensure!(
        stats.live == rounded as u64,
        "{stats}, not {rounded} bytes live"
    );
    ensure!(stats.live_blocks == sizes.len() as u64, "{stats}");
    ensure!(stats.free() == stats.reserved - stats.live, "{stats}");
    let space = scene.arena.free_space();
    ensure!(space.bytes == stats.free(), "{space:?} of {stats}");
    ensure!((0.0..=1.0).contains(&space.wholeness()), "{space:?}");
    drop(blocks);
    let stats = scene.arena.stats();
    ensure!((stats.live, stats.live_blocks) == (0, 0), "{stats}");
    ensure!(
        stats.hits + stats.fits + stats.grown >= sizes.len() as u64,
        "{stats}"
    );
    let space = scene.arena.free_space();
    ensure!(
        space.bytes == stats.reserved && space.cached > 0,
        "{space:?} of {stats}"
    );
    Ok(())
}

#[apply(case)]
fn misuse_is_an_error(env: &Environment) -> Result<()> {
    let scene = Scene::new(env, ReusePolicy::DRIVER_DEFAULT)?;
    let other = Scene::new(env, ReusePolicy::DRIVER_DEFAULT)?;
    let layout = Layout::from_size_align(4096, 256)?;
    let address = other.arena.allocate(layout, &scene.a)?;
    // SAFETY: nothing uses the memory; the arena is to see that it is not its own.
    let refused = unsafe { scene.arena.deallocate(address, layout, &scene.a) };
    let Err(error) = refused else {
        anyhow::bail!("took memory of another arena");
    };
    ensure!(
        error.kind() == ErrorKind::InvalidValue && error.had_no_effect(),
        "{error}"
    );
    // SAFETY: allocated there as this layout.
    unsafe { other.arena.deallocate(address, layout, &scene.a) }?;
    let aligned = Layout::from_size_align(4096, 4096)?;
    ensure!(
        scene.arena.allocate(aligned, &scene.a).is_err(),
        "more alignment than there is"
    );
    let huge = Layout::from_size_align(1 << 50, 256)?;
    let Err(error) = scene.arena.allocate(huge, &scene.a) else {
        anyhow::bail!("a pebibyte");
    };
    ensure!(error.kind() == ErrorKind::OutOfMemory, "{error}");
    ensure!(scene.arena.stats().live == 0, "{}", scene.arena.stats());
    Ok(())
}
