//! Streams and arenas that end, also where the other side does not expect it.

use std::alloc::Layout;
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use cuda_mem::base::drop_counts;
use cuda_mem::interop::CaptureMode;
use cuda_mem::memory::DirectResource;
use cuda_mem::{Arena, DeviceBuffer, ErrorKind, MemoryResource, Resource};

use crate::environment::Environment;
use crate::foreign::synchronize;
use crate::hold::{hold, hold_for};

const MIB: usize = 1 << 20;

/// Only to end a test that fails.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn overlap(one: (u64, usize), other: (u64, usize)) -> bool {
    one.0 < other.0 + other.1 as u64 && other.0 < one.0 + one.1 as u64
}

/// Drops it on another thread.
fn drop_elsewhere<T: Send>(thing: T) -> Result<()> {
    std::thread::scope(|scope| scope.spawn(move || drop(thing)).join())
        .map_err(|_| anyhow!("the other thread panicked"))
}

/// Nothing waits to be released any more, and no release has failed.
fn all_is_released(env: &Environment) -> Result<()> {
    let counts = drop_counts();
    ensure!((counts.failures, counts.waiting) == (0, 0), "{counts:?}");
    if let Ok(control) = env.control() {
        ensure!(control.report_count() == 0, "{:#?}", control.reports());
        let live = control.live();
        let left = (live.mappings, live.reservations);
        ensure!(left == (0, 0), "left {left:?}");
    }
    Ok(())
}

#[apply(case_alone)]
fn a_cache_whose_end_is_unknown_goes_to_nobody(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let arena = Arena::builder(&env.device()?).build()?;
    let resource = Resource::from(arena.clone());
    let current = context.bind()?;
    let own = context.per_thread_stream();
    let other = env.stream()?;
    let first_hold = hold(&own)?;
    drop(resource.alloc::<u8>(&own, 40 * MIB)?);
    // Sets a mark in the thread's stream. A smaller request would make the arena grow.
    let waits = resource.alloc::<u8>(&other, 36 * MIB)?;
    ensure!(arena.stats().waits == 1, "no mark: {}", arena.stats());
    let last = resource.alloc::<u8>(&own, 1000)?;
    let place = (last.as_raw(), 1000);
    let second_hold = hold_for(&own, PATIENCE)?;
    drop(last);
    // Nobody can set a mark behind the second hold there.
    drop_elsewhere(own)?;
    let next = env.stream()?;
    let got = resource.alloc::<u8>(&next, 1000)?;
    drop(first_hold);
    next.synchronize()?;
    let early = overlap(place, (got.as_raw(), 1000));
    drop(second_hold);
    ensure!(!early, "given to a stream that did not wait");
    drop((waits, got));
    // That shows that all is done.
    context.synchronize()?;
    arena.trim_to(0)?;
    ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    drop((resource, arena, current));
    all_is_released(env)
}

#[apply(case_alone)]
fn an_arena_dropped_elsewhere_leaves_memory_in_use_alone(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let arena = Arena::builder(&env.device()?).build()?;
    let current = context.bind()?;
    let own = context.per_thread_stream();
    let mut buffer = arena.alloc::<u8>(&own, 4 * MIB)?;
    let held = hold(&own)?;
    // It runs when the arena is gone, and is an error where there is no memory any more.
    buffer.fill(3)?;
    drop(buffer);
    let unmapped = || Ok::<_, anyhow::Error>(env.control()?.calls("cuMemUnmap"));
    let before = unmapped().ok();
    // Another thread cannot ask how far this one's stream is.
    drop_elsewhere(arena)?;
    ensure!(before == unmapped().ok(), "unmapped while it is in use");
    ensure!(drop_counts().waiting == 1, "{:?}", drop_counts());
    drop(held);
    // This thread can ask.
    own.synchronize()?;
    drop(current);
    all_is_released(env)
}

/// Alone, because it captures.
#[apply(case_alone)]
fn an_arena_dropped_in_a_capture_gives_its_memory_back(env: &Environment) -> Result<()> {
    for ends_first in [false, true] {
        let stream = env.stream()?;
        let arena = Arena::builder(&env.device()?).build()?;
        drop(arena.alloc_zeroed::<u8>(&stream, 64 * MIB)?);
        let mut arena = Some(arena);
        let (_, counts) = stream.capture(CaptureMode::Relaxed, |_| {
            arena.take();
            Ok(drop_counts())
        })?;
        ensure!(
            (counts.failures, counts.waiting) == (0, 1),
            "its stream was captured: {counts:?}"
        );
        if ends_first {
            drop(stream);
            env.context()?.synchronize()?;
        } else {
            stream.synchronize()?;
        }
        all_is_released(env)?;
    }
    Ok(())
}

/// So large is each buffer that goes between threads.
const SENT: usize = 8 * MIB;

/// A thread makes buffers of its own stream, which are dropped on this one after the context was synchronised.
fn send_buffers(
    env: &Environment,
    rounds: usize,
    make: &mut dyn FnMut() -> Result<DeviceBuffer<u8>>,
) -> Result<()> {
    let context = env.context()?;
    for _ in 0..rounds {
        let buffer = make()?;
        context.synchronize()?;
        drop(buffer);
    }
    Ok(())
}

#[apply(case_alone)]
fn buffers_of_other_threads_own_streams_come_back(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let arena = Arena::builder(&env.device()?).build()?;
    let resource = Resource::from(arena.clone());
    // Each on a thread of its own.
    send_buffers(env, 40, &mut || {
        std::thread::scope(|scope| {
            let make = || Ok(resource.alloc_zeroed(&context.per_thread_stream(), SENT)?);
            let thread = scope.spawn(make);
            thread.join().map_err(|_| anyhow!("panicked"))?
        })
    })?;
    let bounded = |arena: &Arena| {
        let reserved = arena.stats().reserved;
        ensure!(reserved <= 4 * SENT as u64, "{}", arena.stats());
        Ok(())
    };
    bounded(&arena)?;
    // All on one, which goes on.
    std::thread::scope(|scope| {
        let (ask, asked) = channel::<()>();
        let (send, sent) = channel();
        let (resource, context) = (&resource, &context);
        scope.spawn(move || {
            let own = context.per_thread_stream();
            while asked.recv().is_ok() {
                let _ = send.send(resource.alloc_zeroed(&own, SENT));
            }
        });
        send_buffers(env, 40, &mut || {
            ask.send(())?;
            Ok(sent.recv()??)
        })
    })?;
    bounded(&arena)?;
    context.synchronize()?;
    arena.trim_to(0)?;
    ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    // At the end too: what was given back after the last wait comes back after the next.
    let last = std::thread::scope(|scope| {
        let make = || resource.alloc_zeroed::<u8>(&context.per_thread_stream(), SENT);
        scope.spawn(make).join().map_err(|_| anyhow!("panicked"))
    })??;
    drop((last, resource, arena));
    context.synchronize()?;
    all_is_released(env)
}

/// A stream takes over the cache of one that ended behind work. It was waited for before that, which says nothing of
/// the other one's work.
#[apply(case_alone)]
fn a_wait_from_before_a_cache_was_taken_over_shows_nothing(env: &Environment) -> Result<()> {
    let arena = Arena::builder(&env.device()?).build()?;
    let resource = Resource::from(arena.clone());
    let (first, second, third) = (env.stream()?, env.stream()?, env.stream()?);
    let block = resource.alloc::<u8>(&first, 6 * MIB)?;
    let place = (block.as_raw(), 6 * MIB);
    let held = hold(&first)?;
    drop(block);
    second.synchronize()?;
    drop(first);
    // Takes over the cache, and comes after the work.
    drop(resource.alloc::<u8>(&second, 1000)?);
    let mut other = resource.alloc::<u8>(&third, 6 * MIB)?;
    other.fill(7)?;
    if overlap(place, (other.as_raw(), 6 * MIB)) {
        std::thread::sleep(Duration::from_millis(20));
        ensure!(!third.is_done()?, "it does not wait: {}", arena.stats());
    }
    drop(held);
    third.synchronize()?;
    ensure!(other.to_vec()?.iter().all(|byte| *byte == 7));
    Ok(())
}

#[apply(case_alone)]
fn streams_may_end_while_their_arena_ends(env: &Environment) -> Result<()> {
    let layout = Layout::from_size_align(1000, 256)?;
    let mut context = None;
    for round in 0..60 {
        // Their context ends with the first ones. A GPU takes half a second for that.
        if round == 6 {
            context = Some(env.context()?);
        }
        let arena = Arena::builder(&env.device()?).build()?;
        let streams: Result<Vec<_>> = (0..6).map(|_| env.stream()).collect();
        let mut streams = streams?;
        for stream in &streams {
            let address = arena.allocate(layout, stream)?;
            // SAFETY: allocated just now as this layout, and not used.
            unsafe { arena.deallocate(address, layout, stream) }?;
        }
        // The arena goes through them in the other order.
        streams.reverse();
        let go = Arc::new(Barrier::new(2));
        let gone = std::thread::spawn({
            let go = Arc::clone(&go);
            move || {
                go.wait();
                drop(arena);
            }
        });
        go.wait();
        for _ in 0..round {
            std::hint::spin_loop();
        }
        drop(streams);
        gone.join()
            .map_err(|_| anyhow!("the end of the arena panicked"))?;
    }
    let context = context.context("no round had one")?;
    for _ in 0..100 {
        // What was not done at first is looked at again, but not each time.
        context.synchronize()?;
        if drop_counts().waiting == 0 {
            break;
        }
    }
    all_is_released(env)
}

/// The arena itself needs no context: an event that it kept would hold one.
#[apply(case_alone)]
fn an_arena_keeps_no_context_of_streams_that_ended(env: &Environment) -> Result<()> {
    let device = env.device()?;
    let arena = Arena::builder(&device).build()?;
    let stream = env.stream()?;
    let held = hold(&stream)?;
    drop(arena.alloc::<u8>(&stream, 1000)?);
    drop(stream);
    ensure!(device.has_active_context()?, "the mark needs it");
    drop(held);
    // The device gets there a little later.
    let begin = Instant::now();
    while device.has_active_context()? && begin.elapsed() < Duration::from_secs(2) {
        arena.trim_to(0)?;
        std::thread::yield_now();
    }
    ensure!(
        !device.has_active_context()?,
        "no stream is left, and the context lives: {}",
        arena.stats()
    );
    ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    Ok(())
}

/// Nobody waits for that stream: the queue of releases looks at it.
#[apply(case_alone)]
fn an_arena_dropped_in_a_capture_looks_at_its_stream_later(env: &Environment) -> Result<()> {
    let (stream, other) = (env.stream()?, env.stream()?);
    let arena = Arena::builder(&env.device()?).build()?;
    drop(arena.alloc_zeroed::<u8>(&stream, 8 * MIB)?);
    let mut arena = Some(arena);
    let (_, counts) = stream.capture(CaptureMode::Relaxed, |_| {
        arena.take();
        Ok(drop_counts())
    })?;
    ensure!(
        (counts.failures, counts.waiting) == (0, 1),
        "its stream was captured: {counts:?}"
    );
    other.wait_for(&stream)?;
    for _ in 0..100 {
        // What was not done at first is looked at again, but not each time.
        other.synchronize()?;
        if drop_counts().waiting == 0 {
            break;
        }
    }
    all_is_released(env)
}

/// As `an_arena_keeps_no_context_of_streams_that_ended`, of a stream that was busy before and is done at its end.
#[apply(case_alone)]
fn a_mark_that_was_reached_keeps_no_context(env: &Environment) -> Result<()> {
    let device = env.device()?;
    let arena = Arena::builder(&device).build()?;
    let resource = Resource::from(arena.clone());
    let (own, other) = (env.stream()?, env.stream()?);
    let held = hold(&own)?;
    drop(resource.alloc::<u8>(&own, 40 * MIB)?);
    // Sets a mark. A smaller request would make the arena grow.
    drop(resource.alloc::<u8>(&other, 36 * MIB)?);
    ensure!(arena.stats().waits == 1, "no mark: {}", arena.stats());
    drop(held);
    other.synchronize()?;
    own.synchronize()?;
    drop((own, other));
    ensure!(
        !device.has_active_context()?,
        "no stream is left, and the context lives: {}",
        arena.stats()
    );
    Ok(())
}

/// An arena over a resource makes a stream of its own before it grows. Once because of its limit, and once because the
/// device has not as much.
#[apply(case_alone)]
fn an_arena_that_could_not_grow_keeps_no_context(env: &Environment) -> Result<()> {
    let device = env.device()?;
    let total = device.total_memory()?;
    for (most, bytes) in [(1 << 20, 4 << 20), (u64::MAX, 2 * total)] {
        let arena = Arena::builder_over(DirectResource::new(device)).max_bytes(most);
        let arena = arena.build()?;
        let stream = env.stream()?;
        let refused = arena.alloc::<u8>(&stream, usize::try_from(bytes)?);
        ensure!(
            refused.is_err_and(|error| error.kind() == ErrorKind::OutOfMemory),
            "{bytes} bytes of at most {most}"
        );
        drop(stream);
        ensure!(
            !device.has_active_context()?,
            "at most {most} bytes: nothing is allocated, and the context lives"
        );
    }
    Ok(())
}

/// An arena for each request, in a program that waits only through another library.
#[apply(case_alone)]
fn building_an_arena_ends_those_that_waited(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for round in 0..50 {
        let arena = Arena::builder(&env.device()?).build()?;
        let buffer = arena.alloc::<u8>(&stream, 1000)?;
        let held = hold(&stream)?;
        drop((buffer, arena));
        drop(held);
        synchronize(&stream)?;
        // The first few tries are made at each chance.
        let waiting = drop_counts().waiting;
        ensure!(waiting <= 2, "round {round}: {waiting} arenas wait");
    }
    Ok(())
}

/// What they freed serves others, although a handle of each thread's own stream lives on.
#[cfg(target_os = "linux")]
#[apply(case)]
fn threads_that_end_leave_no_memory_behind(env: &Environment) -> Result<()> {
    const LARGE: usize = 64 * MIB;
    let _calm = env.shared();
    let (arena, context) = (Arena::builder(&env.device()?).build()?, env.context()?);
    let mut kept = Vec::new();
    for _ in 0..10 {
        let thread = || -> Result<_> {
            let own = context.per_thread_stream();
            // Other handles come and go.
            (0..8).for_each(|_| drop(context.per_thread_stream()));
            drop(arena.alloc_zeroed::<u8>(&own, LARGE)?);
            Ok(arena.alloc_zeroed::<u8>(&own, 1000)?)
        };
        let result = std::thread::scope(|scope| scope.spawn(thread).join());
        kept.push(result.map_err(|_| anyhow!("the thread panicked"))??);
    }
    let reserved = arena.stats().reserved;
    drop(kept);
    ensure!(reserved <= 4 * LARGE as u64, "{}", arena.stats());
    Ok(())
}
