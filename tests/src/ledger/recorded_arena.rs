//! What a recorder sees of an arena: every block, in memory that the arena had then.

use std::alloc::Layout;
use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::ledger::{Recorder, Recording, TraceAction, TraceEntry};
use cuda_mem::{Arena, DeviceBuffer, MemoryResource as _, Resource};

use super::recorder::of;
use crate::draws::Draws;
use crate::environment::Environment;
use crate::hold::hold;

const MIB: usize = 1 << 20;

/// The state of an arena after the events of a recording.
#[derive(Debug, Default)]
struct Replayed {
    /// Sizes by address.
    live: BTreeMap<u64, u64>,
    pending: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, u64>,
    calls: u64,
}

/// Adds a range that must overlap no other.
fn add(ranges: &mut BTreeMap<u64, u64>, entry: &TraceEntry) -> Result<()> {
    let (start, end) = (entry.address, entry.address + entry.bytes);
    let before = ranges.range(..end).next_back();
    ensure!(
        before.is_none_or(|(address, bytes)| address + bytes <= start),
        "{entry:?} overlaps {before:?}"
    );
    ranges.insert(start, entry.bytes);
    Ok(())
}

fn remove(ranges: &mut BTreeMap<u64, u64>, entry: &TraceEntry) -> Result<()> {
    let removed = ranges.remove(&entry.address);
    ensure!(removed == Some(entry.bytes), "{entry:?} ends {removed:?}");
    Ok(())
}

impl Replayed {
    fn of(recording: &Recording) -> Result<Self> {
        let mut replayed = Self::default();
        for (nth, entry) in recording.entries().iter().enumerate() {
            let added = replayed.add(entry);
            added.with_context(|| format!("entry {nth}: {entry:?}"))?;
        }
        Ok(replayed)
    }

    fn add(&mut self, entry: &TraceEntry) -> Result<()> {
        match entry.action {
            TraceAction::Allocate => {
                ensure!(self.has_memory_at(entry), "outside of the arena's memory");
                ensure!(entry.origin.is_some());
                add(&mut self.live, entry)?;
            }
            TraceAction::Free => remove(&mut self.live, entry)?,
            TraceAction::FreeRequested => {
                remove(&mut self.live, entry)?;
                add(&mut self.pending, entry)?;
            }
            TraceAction::FreeCompleted => remove(&mut self.pending, entry)?,
            TraceAction::Map => add(&mut self.mapped, entry)?,
            TraceAction::Unmap => {
                let blocks = self.live.range(entry.address..entry.address + entry.bytes);
                ensure!(blocks.count() == 0, "with live blocks");
                remove(&mut self.mapped, entry)?;
            }
            TraceAction::DriverCalls => {
                // Two threads may record their numbers in either order.
                self.calls = self.calls.max(entry.bytes);
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether all bytes of a block are mapped.
    fn has_memory_at(&self, block: &TraceEntry) -> bool {
        let (mut from, end) = (block.address, block.address + block.bytes);
        while from < end {
            let Some((address, bytes)) = self.mapped.range(..=from).next_back() else {
                return false;
            };
            if address + bytes <= from {
                return false;
            }
            from = address + bytes;
        }
        true
    }

    fn reserved(&self) -> u64 {
        self.mapped.values().sum()
    }
}

/// A random program: sizes of all kinds, frees on other streams, trims.
pub(super) fn run(
    arena: &Arena,
    env: &Environment,
    seed: u64,
    count: usize,
) -> Result<Vec<DeviceBuffer<u8>>> {
    let mut draws = Draws::new(seed);
    let streams = [env.stream()?, env.stream()?];
    let mut kept: Vec<DeviceBuffer<u8>> = Vec::new();
    for nth in 0..count {
        let stream = &streams[(draws.next() % 2) as usize];
        let bytes = match draws.next() % 10 {
            0 => 1 + draws.next() % (4 << 20),
            1 | 2 => 1 + draws.next() % 200_000,
            _ => 1 + draws.next() % 3000,
        };
        kept.push(arena.alloc(stream, bytes as usize)?);
        if kept.len() > 40 {
            let chosen = (draws.next() % (kept.len() as u64)) as usize;
            let freed = kept.swap_remove(chosen);
            if draws.next().is_multiple_of(4) {
                freed.free_after(&streams)?;
            } else {
                drop(freed);
            }
        }
        if nth % 300 == 299 {
            kept.truncate(20);
            streams.iter().try_for_each(cuda_mem::Stream::synchronize)?;
            arena.trim_to(8 << 20)?;
        }
    }
    Ok(kept)
}

pub(super) fn require_same(arena: &Arena, recorder: &Recorder) -> Result<()> {
    let recording = recorder.recording();
    ensure!(recording.dropped() == 0, "{}", recording.dropped());
    let replayed = Replayed::of(&recording)?;
    let stats = arena.stats();
    let rounded: u64 = replayed
        .live
        .values()
        .map(|bytes| bytes.next_multiple_of(256))
        .sum();
    ensure!(
        (rounded, replayed.live.len() as u64) == (stats.live, stats.live_blocks),
        "{stats}, but {rounded} bytes in {} blocks",
        replayed.live.len()
    );
    ensure!(
        replayed.reserved() == stats.reserved,
        "{stats}, but {}",
        replayed.reserved()
    );
    Ok(())
}

#[apply(case)]
fn every_block_is_recorded_within_the_arenas_memory(env: &Environment) -> Result<()> {
    for is_over_pool in [false, true] {
        let recorder = Recorder::ring(1 << 20);
        let builder = if is_over_pool {
            Arena::builder_over(Resource::from(env.pool()?))
        } else {
            Arena::builder(&env.device()?)
        };
        let arena = builder.record(&recorder).build()?;
        let has_noted_all = || -> Result<()> {
            let calls = arena.stats().driver_calls;
            let noted = Replayed::of(&recorder.recording())?.calls;
            ensure!(noted == calls, "{noted} of {calls} calls");
            Ok(())
        };
        // A request that finds nothing tells what it cost, and so does each free.
        let stream = env.stream()?;
        let first = arena.alloc::<u8>(&stream, 1000)?;
        has_noted_all()?;
        drop(first);
        let kept = run(&arena, env, 1, 3000)?;
        require_same(&arena, &recorder)?;
        drop(kept);
        drop(arena.alloc::<u8>(&stream, 1000)?);
        has_noted_all()?;
        require_same(&arena, &recorder)?;
        drop(arena);
        let after = Replayed::of(&recorder.recording())?;
        ensure!(after.live.is_empty(), "{after:?}");
    }
    Ok(())
}

/// The order of the recording is that of the events, between threads too: no block is recorded in memory that another
/// thread has not freed yet.
#[apply(case)]
fn threads_are_recorded_in_the_order_of_events(env: &Environment) -> Result<()> {
    const THREADS: u64 = 4;
    let recorder = Recorder::ring(1 << 20);
    let arena = Arena::builder(&env.device()?).record(&recorder).build()?;
    let kept = std::thread::scope(|scope| {
        let arena = &arena;
        let threads: Vec<_> = (0..THREADS)
            .map(|seed| scope.spawn(move || run(arena, env, seed, 1500)))
            .collect();
        let ends = threads.into_iter().map(|thread| thread.join());
        ends.map(|end| end.expect("no thread panics"))
            .collect::<Result<Vec<_>>>()
    })?;
    require_same(&arena, &recorder)?;
    drop(kept);
    Ok(())
}

#[apply(case)]
fn a_block_of_several_streams_is_pending_until_they_are_done(env: &Environment) -> Result<()> {
    let recorder = Recorder::ring(1000);
    let arena = Arena::builder(&env.device()?).record(&recorder).build()?;
    let (own, user) = (env.stream()?, env.stream()?);
    let block = arena.alloc::<u8>(&own, 1000)?;
    let address = block.as_raw();
    user.wait_for(&own)?;
    let held = hold(&user)?;
    block.free_after([&user])?;
    let recording = recorder.recording();
    let requested = of(&recording, TraceAction::FreeRequested);
    ensure!(
        requested.len() == 1 && (requested[0].address, requested[0].bytes) == (address, 1000),
        "{requested:?}"
    );
    ensure!(of(&recording, TraceAction::FreeCompleted).is_empty());
    drop(held);
    user.synchronize()?;
    arena.trim_to(u64::MAX)?;
    arena.trim_to(0)?;
    let recording = recorder.recording();
    let completed = of(&recording, TraceAction::FreeCompleted);
    ensure!(
        completed.len() == 1 && completed[0].address == address,
        "{recording:?}"
    );
    require_same(&arena, &recorder)
}

#[apply(case)]
fn moves_of_memory_are_recorded(env: &Environment) -> Result<()> {
    const PIECE: usize = 32 * MIB;
    let recorder = Recorder::ring(10_000);
    let arena = Arena::builder(&env.device()?)
        .slack(1.0)
        .record(&recorder)
        .build()?;
    let stream = env.stream()?;
    let mut row = Vec::new();
    for _ in 0..9 {
        row.push(arena.alloc::<u8>(&stream, PIECE)?);
    }
    let kept: Vec<_> = row.into_iter().skip(1).step_by(2).collect();
    stream.synchronize()?;
    let before = recorder.recording().entries().len();
    let large = arena.alloc::<u8>(&stream, 5 * PIECE)?;
    ensure!(arena.stats().moved > 0, "{}", arena.stats());
    let recording = recorder.recording();
    let entries = &recording.entries()[before..];
    let pairs = entries.windows(2);
    let moves = pairs.filter(|pair| {
        let actions = (pair[0].action, pair[1].action);
        actions == (TraceAction::Unmap, TraceAction::Map)
            && (pair[0].time, pair[0].thread) == (pair[1].time, pair[1].thread)
            && pair[0].bytes == pair[1].bytes
    });
    ensure!(moves.count() as u64 == arena.stats().moved, "{entries:?}");
    require_same(&arena, &recorder)?;
    drop((kept, large));
    Ok(())
}

#[apply(case)]
fn sleep_and_wake_are_recorded(env: &Environment) -> Result<()> {
    let recorder = Recorder::ring(10_000);
    let arena = Arena::builder(&env.device()?).record(&recorder).build()?;
    let stream = env.stream()?;
    let block = arena.alloc_from::<u8>(&stream, &[7; 1000])?;
    // SAFETY: nothing uses the block until the arena is awake.
    unsafe { arena.sleep(cuda_mem::arena::SleepContents::Keep) }?;
    let asleep = Replayed::of_mapped(&recorder.recording());
    ensure!(asleep == 0, "{asleep} bytes");
    arena.wake()?;
    ensure!(block.to_vec()? == [7; 1000]);
    let awake = Replayed::of_mapped(&recorder.recording());
    ensure!(awake == arena.stats().reserved, "{awake}");
    Ok(())
}

impl Replayed {
    /// Bytes mapped, of an arena that may have slept: blocks then have no memory for a while.
    fn of_mapped(recording: &Recording) -> u64 {
        recording
            .entries()
            .iter()
            .fold(0, |bytes, entry| match entry.action {
                TraceAction::Map => bytes + entry.bytes,
                TraceAction::Unmap => bytes - entry.bytes,
                _ => bytes,
            })
    }
}

/// A free of what is no block is recorded as a free, and nothing appears in its place.
#[apply(case)]
fn a_wrong_free_makes_no_block(env: &Environment) -> Result<()> {
    let recorder = Recorder::ring(1000);
    let arena = Arena::builder(&env.device()?).record(&recorder).build()?;
    let stream = env.stream()?;
    let layout = Layout::from_size_align(1000, 256)?;
    let address = arena.allocate(layout, &stream)?;
    let other = arena.allocate(layout, &stream)?;
    // SAFETY: allocated above, and never used.
    unsafe { arena.deallocate(address, layout, &stream) }?;
    // An address within the arena's memory would be found to be wrong later.
    // SAFETY: the arena refuses what is no block.
    ensure!(unsafe { arena.deallocate(1 << 40, layout, &stream) }.is_err());
    let recording = recorder.recording();
    let allocated = of(&recording, TraceAction::Allocate);
    ensure!(allocated.len() == 2, "{allocated:?}");
    ensure!(of(&recording, TraceAction::Free).len() == 2);
    // SAFETY: as above.
    unsafe { arena.deallocate(other, layout, &stream) }?;
    Ok(())
}

#[apply(case)]
fn requests_that_fail_are_recorded(env: &Environment) -> Result<()> {
    let recorder = Recorder::ring(1000);
    let arena = Arena::builder(&env.device()?)
        .max_bytes(8 << 20)
        .record(&recorder)
        .build()?;
    let stream = env.stream()?;
    let layout = Layout::from_size_align(64 << 20, 256)?;
    ensure!(arena.allocate(layout, &stream).is_err());
    let recording = recorder.recording();
    let failed = of(&recording, TraceAction::AllocateFailure);
    ensure!(
        failed.len() == 1 && failed[0].bytes == 64 << 20 && failed[0].origin.is_some(),
        "{recording:?}"
    );
    Ok(())
}

/// The stream that frees the blocks is looked at for the first time when 128 of them wait, and no request follows.
#[apply(case)]
fn frees_tell_what_they_cost_and_each_number_once(env: &Environment) -> Result<()> {
    let recorder = Recorder::ring(1000);
    let arena = Arena::builder(&env.device()?).record(&recorder).build()?;
    let (own, other) = (env.stream()?, env.stream()?);
    let layout = Layout::from_size_align(1000, 256)?;
    let blocks = (0..130).map(|_| arena.allocate(layout, &own));
    let blocks = blocks.collect::<cuda_mem::Result<Vec<_>>>()?;
    let before = arena.stats().driver_calls;
    for address in blocks {
        // SAFETY: allocated as this layout, and no work uses it.
        unsafe { arena.deallocate(address, layout, &other) }?;
    }
    let calls = arena.stats().driver_calls;
    ensure!(calls > before, "{before}, and the frees made no call");
    let recording = recorder.recording();
    let noted = Replayed::of(&recording)?.calls;
    ensure!(noted == calls, "{noted} of {calls} calls");
    let told = of(&recording, TraceAction::DriverCalls);
    let mut pairs = told.windows(2);
    ensure!(
        pairs.all(|pair| pair[0].bytes < pair[1].bytes),
        "a number came twice: {told:?}"
    );
    Ok(())
}
