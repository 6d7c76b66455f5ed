//! Files in PyTorch's form: viewers go back from the snapshot through the trace, and every block lies in a segment then.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::arena::SleepContents;
use cuda_mem::ledger::{BlockState, MemorySnapshot, Recorder, Recording};
use cuda_mem::{Arena, MemoryPool, MemoryResource as _, Resource};
use serde_json::Value;

use super::snapshots::{require_same, run};
use crate::environment::Environment;
use crate::hold::hold;
use crate::writers::Full;

/// What a viewer has, going back in time.
#[derive(Debug, Default)]
struct Viewer {
    segments: BTreeMap<i64, i64>,
    /// Sizes and whether the free is pending, by address.
    blocks: BTreeMap<i64, (i64, bool)>,
}

fn number(value: &Value, key: &str) -> Result<i64> {
    let number = value[key].as_i64();
    number.with_context(|| format!("{key} of {value}"))
}

impl Viewer {
    /// The state of the snapshot. Blocks fill their segments, as PyTorch's tools require.
    fn at_end(file: &Value) -> Result<Self> {
        let mut viewer = Self::default();
        for segment in file["segments"].as_array().context("no segments")? {
            let address = number(segment, "address")?;
            let mut at = address;
            let mut allocated = 0;
            for block in segment["blocks"].as_array().context("no blocks")? {
                let size = number(block, "size")?;
                ensure!(number(block, "address")? == at && size > 0, "{segment}");
                ensure!(number(block, "requested_size")? <= size, "{block}");
                let state = block["state"].as_str().unwrap_or_default();
                match state {
                    "inactive" => {}
                    "active_allocated" | "active_pending_free" => {
                        viewer
                            .blocks
                            .insert(at, (size, state != "active_allocated"));
                    }
                    _ => bail!("{block}"),
                }
                allocated += if state == "active_allocated" { size } else { 0 };
                at += size;
            }
            ensure!(at - address == number(segment, "total_size")?, "{segment}");
            ensure!(number(segment, "allocated_size")? == allocated, "{segment}");
            viewer.segments.insert(address, at);
        }
        viewer.require_blocks_in_segments()?;
        Ok(viewer)
    }

    fn require_blocks_in_segments(&self) -> Result<()> {
        for address in self.blocks.keys() {
            let segment = self.segments.range(..=address).next_back();
            ensure!(
                segment.is_some_and(|(_, end)| address < end),
                "the block at {address:#x} is in no segment: {self:x?}"
            );
        }
        Ok(())
    }

    /// Undoes an event.
    fn undo(&mut self, event: &Value) -> Result<()> {
        let size = number(event, "size")?;
        let action = event["action"].as_str().unwrap_or_default();
        ensure!(event["frames"].is_array() && number(event, "time_us")? > 0);
        if action == "oom" {
            number(event, "device_free")?;
            return Ok(());
        }
        let start = number(event, "addr")?;
        let end = start + size;
        match action {
            "alloc" => {
                let (bytes, is_pending) = self.blocks.remove(&start).context("not allocated")?;
                ensure!(!is_pending && bytes >= size, "{bytes} bytes");
            }
            "free_requested" => {
                let block = self.blocks.get_mut(&start).context("not freed")?;
                ensure!(std::mem::replace(&mut block.1, false), "not pending");
            }
            "free_completed" => {
                let next = self.blocks.range(start..end).next();
                ensure!(next.is_none(), "it overlaps {next:?}");
                self.blocks.insert(start, (size, true));
            }
            "segment_map" => {
                let around = self.segments.range(..=start).next_back();
                let (from, to) = around.map(|(from, to)| (*from, *to)).unwrap_or_default();
                ensure!(from <= start && end <= to, "it was not mapped");
                self.segments.remove(&from);
                if from < start {
                    self.segments.insert(from, start);
                }
                if end < to {
                    self.segments.insert(end, to);
                }
            }
            "segment_unmap" => {
                let next = self.segments.range(..end).next_back();
                ensure!(
                    next.is_none_or(|(_, to)| *to <= start),
                    "{next:?} is mapped"
                );
                // Viewers join segments that touch.
                let after = self.segments.remove(&end).unwrap_or(end);
                let before = self.segments.range(..start).next_back();
                let before = before
                    .filter(|(_, to)| **to == start)
                    .map(|(from, _)| *from);
                self.segments.insert(before.unwrap_or(start), after);
            }
            "snapshot" => {}
            _ => bail!("an action that PyTorch does not have"),
        }
        self.require_blocks_in_segments()
    }
}

/// Checks a file, and returns how many events of each action it has.
fn require_shown(
    snapshot: &MemorySnapshot,
    recording: &Recording,
) -> Result<BTreeMap<String, usize>> {
    let mut file = Vec::new();
    snapshot.write_json(Some(recording), &mut file)?;
    let mut pickle = Vec::new();
    snapshot.write_pickle(Some(recording), &mut pickle)?;
    ensure!(pickle.starts_with(&[0x80, 3]) && pickle.ends_with(b"."));
    let file: Value = serde_json::from_slice(&file)?;
    let mut viewer = Viewer::at_end(&file)?;
    let traces = file["device_traces"].as_array().context("no traces")?;
    let trace = traces
        .last()
        .and_then(Value::as_array)
        .context("no trace")?;
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let mut before = i64::MAX;
    for (nth, event) in trace.iter().enumerate().rev() {
        let undone = viewer.undo(event);
        undone.with_context(|| format!("event {nth} of {}: {event}", trace.len()))?;
        let time = number(event, "time_us")?;
        ensure!(time <= before, "{event}");
        before = time;
        let action = event["action"].as_str().unwrap_or_default().to_owned();
        *counts.entry(action).or_default() += 1;
    }
    if recording.dropped() == 0 && snapshot.time.is_some() {
        ensure!(
            viewer.blocks.is_empty(),
            "before the first event: {viewer:?}"
        );
    }
    Ok(counts)
}

/// As [`require_shown`], and the blocks of the file are those of the snapshot.
fn require_same_blocks(snapshot: &MemorySnapshot, recording: &Recording) -> Result<()> {
    require_shown(snapshot, recording)?;
    let mut file = Vec::new();
    snapshot.write_json(Some(recording), &mut file)?;
    let file: Value = serde_json::from_slice(&file)?;
    let viewer = Viewer::at_end(&file)?;
    let active = snapshot
        .blocks()
        .filter(|block| block.state != BlockState::Free);
    let active = active.map(|block| {
        let is_pending = block.state == BlockState::PendingFree;
        (block.address as i64, (block.bytes as i64, is_pending))
    });
    let active: BTreeMap<i64, (i64, bool)> = active.collect();
    ensure!(viewer.blocks == active, "{viewer:?}");
    Ok(())
}

#[apply(case)]
fn viewers_can_go_back_through_all_events(env: &Environment) -> Result<()> {
    for is_over_pool in [false, true] {
        let recorder = Recorder::ring(1 << 20);
        let builder = if is_over_pool {
            // One recorder for both: the pool's blocks become the arena's memory.
            let pool = MemoryPool::builder(&env.device()?).record(&recorder);
            Arena::builder_over(Resource::from(pool.build()?))
        } else {
            Arena::builder(&env.device()?)
        };
        let arena = builder.record(&recorder).build()?;
        let streams = [env.stream()?, env.stream()?];
        let mut kept = Vec::new();
        for seed in 0..3 {
            kept = run(&arena, &streams, seed, 500)?;
            arena.trim_to(8 << 20)?;
        }
        ensure!(arena.alloc::<u8>(&streams[0], 1 << 45).is_err());
        let snapshot = require_same(&arena)?;
        let recording = recorder.recording();
        require_same_blocks(&snapshot, &recording)?;
        let counts = require_shown(&snapshot, &recording)?;
        let count = |action: &str| counts.get(action).copied().unwrap_or_default();
        ensure!(count("alloc") >= 1500 && count("oom") >= 1, "{counts:?}");
        ensure!(
            count("segment_map") > 1 && count("segment_unmap") > 0,
            "{counts:?}"
        );
        ensure!(
            count("free_requested") == count("free_completed"),
            "{counts:?}"
        );
        ensure!(count("snapshot") == 1, "{counts:?}");
        // What happens later is not in the file.
        drop(kept);
        require_same_blocks(&snapshot, &recorder.recording())?;
    }
    Ok(())
}

#[apply(case)]
fn viewers_can_go_back_in_a_ring_that_is_full(env: &Environment) -> Result<()> {
    for least in [300, 1000, 3000] {
        let recorder = Recorder::ring(least);
        let arena = Arena::builder(&env.device()?).record(&recorder).build()?;
        let streams = [env.stream()?, env.stream()?];
        for seed in 0..3 {
            let kept = run(&arena, &streams, seed, 1500)?;
            let snapshot = require_same(&arena)?;
            require_same_blocks(&snapshot, &recorder.recording())?;
            drop(kept);
            arena.trim_to(2 << 20)?;
        }
        ensure!(recorder.dropped() > 0);
        require_same_blocks(&require_same(&arena)?, &recorder.recording())?;
    }
    Ok(())
}

#[apply(case)]
fn pending_and_sleeping_blocks_are_shown(env: &Environment) -> Result<()> {
    let recorder = Recorder::ring(10_000);
    let arena = Arena::builder(&env.device()?).record(&recorder).build()?;
    let (own, user) = (env.stream()?, env.stream()?);
    let kept = arena.alloc::<u8>(&own, 5000)?;
    let block = arena.alloc::<u8>(&own, 1000)?;
    user.wait_for(&own)?;
    let held = hold(&user)?;
    block.free_after([&user])?;
    let counts = require_shown(&arena.snapshot(), &recorder.recording())?;
    ensure!(
        counts["free_requested"] == 1 && !counts.contains_key("free_completed"),
        "{counts:?}"
    );
    require_same_blocks(&arena.snapshot(), &recorder.recording())?;
    drop(held);
    user.synchronize()?;
    // SAFETY: nothing uses the memory until the arena is awake.
    unsafe { arena.sleep(SleepContents::Discard) }?;
    require_same_blocks(&arena.snapshot(), &recorder.recording())?;
    let meanwhile = arena.alloc::<u8>(&own, 70_000)?;
    require_same_blocks(&arena.snapshot(), &recorder.recording())?;
    arena.wake()?;
    require_same_blocks(&arena.snapshot(), &recorder.recording())?;
    drop((kept, meanwhile));
    arena.trim_to(0)?;
    require_same_blocks(&arena.snapshot(), &recorder.recording())
}

#[apply(case)]
fn blocks_of_pools_are_segments(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    for least in [100_000, 500] {
        let recorder = Recorder::ring(least);
        let device = env.device()?;
        let pool = MemoryPool::builder(&device).record(&recorder).build()?;
        // Another one shares the recorder.
        let other = MemoryPool::builder(&device).record(&recorder).build()?;
        let streams = [env.stream()?, env.stream()?];
        let mut kept = Vec::new();
        for nth in 0..2000 {
            let pool = if nth % 3 == 0 { &other } else { &pool };
            kept.push(pool.alloc::<u8>(&streams[nth % 2], 1 + nth * 7 % 5000)?);
            if kept.len() > 30 {
                kept.swap_remove(nth * 13 % 30);
            }
        }
        let snapshot = pool.snapshot()?;
        require_shown(&snapshot, &recorder.recording())?;
        drop(kept);
        require_shown(&pool.snapshot()?, &recorder.recording())?;
    }
    Ok(())
}

#[apply(case)]
fn viewers_can_go_back_while_threads_allocate(env: &Environment) -> Result<()> {
    let recorder = Recorder::ring(4_000);
    let arena = Arena::builder(&env.device()?).record(&recorder).build()?;
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..3)
            .map(|seed| {
                let (arena, is_over) = (&arena, &is_over);
                scope.spawn(move || -> Result<()> {
                    let streams = [env.stream()?, env.stream()?];
                    for round in 0.. {
                        if is_over.load(relaxed) {
                            break;
                        }
                        drop(run(arena, &streams, seed + 3 * round, 200)?);
                        if seed == 0 {
                            arena.trim_to(4 << 20)?;
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        let shown = (0..10).try_for_each(|_| {
            let snapshot = arena.snapshot();
            require_shown(&snapshot, &recorder.recording()).map(drop)
        });
        is_over.store(true, relaxed);
        for thread in threads {
            thread.join().expect("no thread panics")?;
        }
        shown
    })
}

#[apply(case)]
fn a_snapshot_without_a_recorder_is_a_file_too(env: &Environment) -> Result<()> {
    let arena = Arena::builder(&env.device()?).build()?;
    let streams = [env.stream()?, env.stream()?];
    let kept = run(&arena, &streams, 1, 100)?;
    let mut file = Vec::new();
    let snapshot = arena.snapshot();
    snapshot.write_json(None, &mut file)?;
    let file: Value = serde_json::from_slice(&file)?;
    let active = snapshot
        .blocks()
        .filter(|block| block.state != BlockState::Free);
    let viewer = Viewer::at_end(&file)?;
    ensure!(viewer.blocks.len() == active.count(), "{viewer:?}");
    drop(kept);
    // One that fails says so.
    let kinds = [
        arena.snapshot().write_pickle(None, Full),
        arena.snapshot().write_json(None, Full),
        Recorder::ring(10).recording().write_timeline(Full),
    ];
    for result in kinds {
        let kind = result.map_err(|error| error.kind());
        ensure!(kind == Err(std::io::ErrorKind::StorageFull), "{kind:?}");
    }
    Ok(())
}
