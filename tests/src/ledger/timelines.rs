//! Timelines: the file has what the log has, in the order that viewers want.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::ledger::{Recorder, Recording, TraceAction};
use cuda_mem::memory::RecordingAdaptor;
use cuda_mem::{Arena, MemoryPool, MemoryResource as _, Resource};
use serde_json::Value;

use super::recorder::of;
use super::snapshots::run;
use crate::environment::Environment;
use crate::hold::hold;

/// What a viewer makes of a timeline.
#[derive(Debug, Default)]
struct Timeline {
    /// The last value of each counter, and the highest.
    counters: BTreeMap<String, (u64, u64)>,
    /// Slices that have ended, by name.
    slices: BTreeMap<String, usize>,
    /// Names of slices that have begun, by process and id; the outermost first.
    open: HashMap<(u64, String), Vec<String>>,
    instants: BTreeMap<String, usize>,
    /// Names by process and thread.
    names: BTreeMap<(u64, Option<u64>), String>,
    /// The last time on each track.
    times: BTreeMap<String, f64>,
}

impl Timeline {
    fn of(recording: &Recording) -> Result<Self> {
        let mut file = Vec::new();
        recording.write_timeline(&mut file)?;
        let file: Value = serde_json::from_slice(&file)?;
        ensure!(file["displayTimeUnit"] == "ns");
        let mut timeline = Self::default();
        for event in file["traceEvents"].as_array().context("no events")? {
            let added = timeline.add(event);
            added.with_context(|| event.to_string())?;
        }
        Ok(timeline)
    }

    fn add(&mut self, event: &Value) -> Result<()> {
        let text = |key: &str| event[key].as_str().map(str::to_owned);
        let (phase, name) = (text("ph").context("ph")?, text("name").context("name")?);
        let process = event["pid"].as_u64().context("pid")?;
        if phase == "M" {
            let of = (process, event["tid"].as_u64());
            let given = event["args"]["name"].as_str().context("no name")?;
            let before = self.names.insert(of, given.to_owned());
            ensure!(before.is_none(), "named twice");
            return Ok(());
        }
        let time = event["ts"].as_f64().context("ts")?;
        ensure!(self.names.contains_key(&(process, None)), "no name");
        let track = format!("{process} {phase} {name} {:?}", text("id"));
        let before = self.times.insert(track, time);
        ensure!(
            before.is_none_or(|before| before <= time),
            "at {before:?} before"
        );
        match phase.as_str() {
            "C" => {
                let bytes = event["args"]["bytes"].as_u64().context("bytes")?;
                let (last, high) = self.counters.entry(name).or_default();
                (*last, *high) = (bytes, (*high).max(bytes));
            }
            "b" => {
                ensure!(text("cat").is_some());
                let id = text("id").context("no id")?;
                self.open.entry((process, id)).or_default().push(name);
            }
            "e" => {
                let id = text("id").context("no id")?;
                let open = self.open.get_mut(&(process, id)).context("not begun")?;
                ensure!(open.pop().as_ref() == Some(&name), "another has begun");
                *self.slices.entry(name).or_default() += 1;
            }
            "i" => {
                let thread = event["tid"].as_u64();
                ensure!(event["s"] == "t" && self.names.contains_key(&(process, thread)));
                *self.instants.entry(name).or_default() += 1;
            }
            _ => bail!("an unknown phase"),
        }
        Ok(())
    }

    fn last(&self, counter: &str) -> u64 {
        self.counters.get(counter).map_or(0, |(last, _)| *last)
    }

    /// Blocks that have not ended.
    fn alive(&self) -> usize {
        self.open.values().filter(|names| !names.is_empty()).count()
    }
}

/// The most bytes asked for at any time, computed from the log.
fn most_asked(recording: &Recording) -> u64 {
    let (mut now, mut most) = (0_u64, 0);
    for entry in recording.entries() {
        match entry.action {
            TraceAction::Allocate => now += entry.bytes,
            TraceAction::Free | TraceAction::FreeRequested => now -= entry.bytes,
            _ => {}
        }
        most = most.max(now);
    }
    most
}

#[apply(case)]
fn a_timeline_has_what_the_log_has(env: &Environment) -> Result<()> {
    let recorder = Recorder::ring(1 << 20);
    let arena = Arena::builder(&env.device()?).record(&recorder).build()?;
    let streams = [env.stream()?, env.stream()?];
    let mut kept = Vec::new();
    for seed in 0..3 {
        kept = run(&arena, &streams, seed, 500)?;
        arena.trim_to(8 << 20)?;
    }
    ensure!(arena.alloc::<u8>(&streams[0], 1 << 45).is_err());
    let recording = recorder.recording();
    let (timeline, stats) = (Timeline::of(&recording)?, arena.stats());
    let count = |action| of(&recording, action).len();
    ensure!(timeline.alive() == kept.len(), "{:?}", timeline.open);
    let ended: usize = timeline.slices.values().sum();
    let pending = count(TraceAction::FreeRequested);
    ensure!(ended == count(TraceAction::Allocate) - kept.len() + pending);
    ensure!(timeline.slices.get("pending free").copied().unwrap_or(0) == pending);
    let asked: usize = kept.iter().map(cuda_mem::DeviceBuffer::len).sum();
    let expected = [asked as u64, stats.live, stats.reserved];
    let counters = ["asked", "used", "reserved"].map(|counter| timeline.last(counter));
    ensure!(counters == expected, "{counters:?}, not {expected:?}");
    ensure!(timeline.counters["asked"].1 == most_asked(&recording));
    ensure!(
        timeline.counters["reserved"].1 == stats.reserved_peak,
        "{stats}"
    );
    for action in [TraceAction::AllocateFailure, TraceAction::Trim] {
        let instants = timeline.instants.get(action.name()).copied().unwrap_or(0);
        ensure!(
            instants == count(action) && instants > 0,
            "{:?}",
            timeline.instants
        );
    }
    let names: Vec<&String> = timeline.names.values().collect();
    for stream in &streams {
        let name = format!("stream {:#x}", stream.as_raw().addr());
        ensure!(names.contains(&&name), "{names:?}");
    }
    Ok(())
}

/// The upstream's blocks become the arena's memory.
#[apply(case)]
fn an_arena_and_its_upstream_may_share_a_recorder(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let device = env.device()?;
    let streams = [env.stream()?, env.stream()?];
    for is_over_pool in [true, false] {
        let recorder = Recorder::ring(1 << 20);
        let pool = MemoryPool::builder(&device).record(&recorder).build()?;
        let upstream = if is_over_pool {
            Resource::from(pool.clone())
        } else {
            Resource::new(RecordingAdaptor::new(env.pool()?, &recorder))
        };
        let arena = Arena::builder_over(upstream).record(&recorder).build()?;
        let mut kept = Vec::new();
        for seed in 0..3 {
            kept = run(&arena, &streams, seed, 500)?;
            arena.trim_to(8 << 20)?;
        }
        let (timeline, stats) = (Timeline::of(&recorder.recording())?, arena.stats());
        ensure!(timeline.alive() == kept.len(), "{:?}", timeline.open);
        let reserved = if is_over_pool {
            pool.stats()?.reserved.current
        } else {
            stats.reserved
        };
        let asked: usize = kept.iter().map(cuda_mem::DeviceBuffer::len).sum();
        let expected = [asked as u64, stats.live, reserved];
        let counters = ["asked", "used", "reserved"].map(|counter| timeline.last(counter));
        ensure!(counters == expected, "{counters:?}, not {expected:?}");
        drop(kept);
        arena.trim_to(0)?;
        let timeline = Timeline::of(&recorder.recording())?;
        ensure!(timeline.alive() == 0, "{:?}", timeline.open);
        let counters = ["asked", "used"].map(|counter| timeline.last(counter));
        ensure!(counters == [0, 0], "{counters:?}");
    }
    Ok(())
}

/// Its free was asked for before the first event.
#[apply(case)]
fn a_block_that_is_pending_from_the_beginning_is_shown_so(env: &Environment) -> Result<()> {
    let recorder = Recorder::ring(300);
    let arena = Arena::builder(&env.device()?).record(&recorder).build()?;
    let (own, user) = (env.stream()?, env.stream()?);
    let block = arena.alloc::<u8>(&own, 1 << 20)?;
    user.wait_for(&own)?;
    let held = hold(&user)?;
    block.free_after([&user])?;
    for _ in 0..2000 {
        drop(arena.alloc::<u8>(&own, 1000)?);
    }
    drop(held);
    user.synchronize()?;
    arena.trim_to(0)?;
    let recording = recorder.recording();
    ensure!(of(&recording, TraceAction::FreeRequested).is_empty());
    let completed = of(&recording, TraceAction::FreeCompleted);
    ensure!(completed.len() == 1, "{completed:?}");
    ensure!(completed[0].stream == own.as_raw().addr() as u64);
    let timeline = Timeline::of(&recording)?;
    ensure!(timeline.alive() == 0, "{timeline:?}");
    ensure!(
        timeline.slices.get("pending free") == Some(&1),
        "{:?}",
        timeline.slices
    );
    let counters = &timeline.counters;
    ensure!(counters["asked"].1 < 1 << 20, "{counters:?}");
    ensure!(counters["used"].1 >= 1 << 20, "{counters:?}");
    Ok(())
}

#[apply(case)]
fn a_free_that_is_pending_is_a_slice_within_the_block(env: &Environment) -> Result<()> {
    let recorder = Recorder::ring(1000);
    let arena = Arena::builder(&env.device()?).record(&recorder).build()?;
    let (own, user) = (env.stream()?, env.stream()?);
    let block = arena.alloc::<u8>(&own, 1000)?;
    user.wait_for(&own)?;
    let held = hold(&user)?;
    block.free_after([&user])?;
    let timeline = Timeline::of(&recorder.recording())?;
    let open: Vec<&Vec<String>> = timeline.open.values().collect();
    ensure!(open.len() == 1 && open[0].len() == 2, "{open:?}");
    ensure!(
        open[0][0].starts_with(file!()) && open[0][1] == "pending free",
        "{open:?}"
    );
    ensure!((timeline.last("asked"), timeline.last("used")) == (0, 1024));
    drop(held);
    user.synchronize()?;
    arena.trim_to(0)?;
    let timeline = Timeline::of(&recorder.recording())?;
    ensure!(
        timeline.alive() == 0 && timeline.last("used") == 0,
        "{timeline:?}"
    );
    Ok(())
}

#[apply(case)]
fn a_timeline_of_a_full_ring_begins_with_older_blocks(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let recorder = Recorder::ring(300);
    let pool = MemoryPool::builder(&env.device()?)
        .record(&recorder)
        .build()?;
    let stream = env.stream()?;
    let old = pool.alloc::<u8>(&stream, 5000)?;
    for nth in 0..2000 {
        drop(pool.alloc::<u8>(&stream, 1 + nth)?);
    }
    drop(old);
    let recording = recorder.recording();
    ensure!(recording.dropped() > 0);
    let timeline = Timeline::of(&recording)?;
    ensure!(
        timeline.alive() == 0 && timeline.last("asked") == 0,
        "{timeline:?}"
    );
    ensure!(
        timeline.slices.get("block") >= Some(&1),
        "{:?}",
        timeline.slices
    );
    ensure!(
        timeline.counters["asked"].1 >= 5000,
        "{:?}",
        timeline.counters
    );
    let reserved = of(&recording, TraceAction::Reserved)
        .last()
        .map(|entry| entry.bytes);
    ensure!(timeline.last("reserved") == reserved.unwrap_or(0));
    Ok(())
}
