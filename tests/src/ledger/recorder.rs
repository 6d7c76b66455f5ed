//! The recorder: what it keeps, what it drops, what it writes.

use std::io::{self, Write};

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::ledger::{Origin, Recorder, Recording, TraceAction, TraceEntry};
use cuda_mem::memory::RecordingAdaptor;
use cuda_mem::sys::CUresult;
use cuda_mem::{ErrorKind, MemoryPool, Resource};

use crate::environment::Environment;
use crate::forks;
use crate::writers::{Full, Page};

/// The entries of an action.
pub(super) fn of(recording: &Recording, action: TraceAction) -> Vec<&TraceEntry> {
    let entries = recording.entries().iter();
    entries.filter(|entry| entry.action == action).collect()
}

#[apply(case)]
fn a_pool_records_requests_with_stream_thread_and_line(env: &Environment) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    let recorder = Recorder::ring(1000);
    let pool = MemoryPool::builder(&device).record(&recorder).build()?;
    let line = line!() + 1;
    let mut buffer = pool.alloc_from::<u8>(&stream, &[7; 1000])?;
    buffer.fill(8)?;
    ensure!(buffer.to_vec()? == [8; 1000]);
    let address = buffer.as_raw();
    buffer.free().map_err(|failed| failed.error)?;
    ensure!(pool.alloc::<u8>(&stream, 1 << 50).is_err());
    drop(pool.alloc::<u8>(&stream, 0)?);
    pool.trim_to(1 << 20)?;
    let recording = recorder.recording();

    let allocated = of(&recording, TraceAction::Allocate);
    let [allocated] = allocated[..] else {
        bail!("{recording:?}");
    };
    let number = stream.as_raw().addr() as u64;
    let request = (allocated.address, allocated.bytes, allocated.stream);
    ensure!(request == (address, 1000, number), "{allocated:?}");
    let Some(Origin::Line(origin)) = &allocated.origin else {
        bail!("{allocated:?}");
    };
    ensure!(
        (origin.file(), origin.line()) == (file!(), line),
        "{origin}"
    );
    let freed = of(&recording, TraceAction::Free);
    ensure!(freed.len() == 1 && freed[0].address == address, "{freed:?}");
    ensure!(freed[0].thread == allocated.thread && freed[0].time >= allocated.time);
    let failed = of(&recording, TraceAction::AllocateFailure);
    ensure!(
        failed.len() == 1 && failed[0].bytes == 1 << 50,
        "{failed:?}"
    );
    let trims = of(&recording, TraceAction::Trim);
    ensure!(trims.len() == 1 && trims[0].bytes == 1 << 20, "{trims:?}");
    if env.need(11, 3).is_ok() {
        let reserved = of(&recording, TraceAction::Reserved);
        let last = reserved.last().context("the pool held something")?;
        ensure!(last.bytes == pool.stats()?.reserved.current, "{reserved:?}");
    }
    Ok(())
}

#[apply(case)]
fn a_pool_records_what_it_holds_when_that_changes(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let stream = env.stream()?;
    let recorder = Recorder::ring(1000);
    let pool = MemoryPool::builder(&env.device()?)
        .record(&recorder)
        .build()?;
    ensure!(pool.recorder().is_some() && env.pool()?.recorder().is_none());
    let first = pool.alloc::<u8>(&stream, 100)?;
    let second = pool.alloc::<u8>(&stream, 100)?;
    drop((first, second));
    stream.synchronize()?;
    pool.trim_to(0)?;
    let recording = recorder.recording();
    let reserved = of(&recording, TraceAction::Reserved);
    ensure!(reserved.len() == 2, "{reserved:?}");
    ensure!(
        reserved[0].bytes > 0 && reserved[1].bytes == 0,
        "{reserved:?}"
    );
    ensure!(
        of(&recording, TraceAction::Free).len() == 2,
        "{recording:?}"
    );
    Ok(())
}

#[apply(case_of_sim)]
fn memory_that_a_recorded_pool_cannot_free_is_recorded_as_before(env: &Environment) -> Result<()> {
    let (stream, control) = (env.stream()?, env.control()?);
    let recorder = Recorder::ring(1000);
    let pool = MemoryPool::builder(&env.device()?)
        .record(&recorder)
        .build()?;
    let buffer = pool.alloc::<u8>(&stream, 100)?;
    for nth in 1..=2 {
        // The free is tried again.
        control.fail_without_effect("cuMemFreeAsync", nth, CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let failed = buffer.free().expect_err("the simulator was told to");
    let recording = recorder.recording();
    let allocated = of(&recording, TraceAction::Allocate);
    ensure!(allocated.len() == 2, "{recording:?}");
    let ends = [allocated[0], allocated[1]].map(|it| (it.address, it.bytes, it.stream));
    ensure!(ends[0] == ends[1], "{recording:?}");
    ensure!(pool.snapshot()?.blocks().count() == 1, "it is live");
    drop(failed);
    ensure!(pool.snapshot()?.blocks().count() == 0);
    Ok(())
}

#[apply(case)]
fn what_the_ring_has_no_space_for_is_counted(env: &Environment) -> Result<()> {
    const PAIRS: usize = 10_000;
    const LEAST: usize = 1000;
    let stream = env.stream()?;
    let recorder = Recorder::ring(LEAST);
    let resource = Resource::new(RecordingAdaptor::new(env.pool()?, &recorder));
    for nth in 0..PAIRS {
        drop(resource.alloc::<u8>(&stream, 1 + nth)?);
    }
    let recording = recorder.recording();
    let entries = recording.entries();
    ensure!(
        (LEAST..LEAST + 1000).contains(&entries.len()),
        "{} entries",
        entries.len()
    );
    let all = entries.len() as u64 + recording.dropped();
    ensure!(all == 2 * PAIRS as u64, "{all} of {}", 2 * PAIRS);
    ensure!(recorder.dropped() == recording.dropped());
    // The newest ones, without a gap.
    let newest = entries.iter().rev().zip((0..2 * PAIRS).rev());
    for (entry, nth) in newest {
        ensure!(entry.bytes == 1 + nth as u64 / 2, "{entry:?}");
    }
    let mut log = Vec::new();
    recording.write_csv(&mut log)?;
    let log = String::from_utf8(log)?;
    let first = log.lines().nth(1).unwrap_or_default();
    let expected = format!(",dropped,0x0,{},0x0,", recording.dropped());
    ensure!(first.ends_with(&expected), "{first}");
    Ok(())
}

/// Several threads, one of which records much less: older events of it are no gap.
#[apply(case)]
fn a_ring_of_several_threads_has_no_gap(env: &Environment) -> Result<()> {
    const PAIRS: usize = 5000;
    let recorder = Recorder::ring(2000);
    let resource = Resource::new(RecordingAdaptor::new(env.pool()?, &recorder));
    let slow = env.stream()?;
    drop(resource.alloc::<u8>(&slow, 1)?);
    let streams = [env.stream()?, env.stream()?, env.stream()?];
    std::thread::scope(|scope| {
        for stream in &streams {
            scope.spawn(|| {
                for nth in 0..PAIRS {
                    drop(resource.alloc::<u8>(stream, 1 + nth).expect("memory"));
                }
            });
        }
    });
    let recording = recorder.recording();
    let all = recording.entries().len() as u64 + recording.dropped();
    ensure!(all == 2 + 6 * PAIRS as u64, "{all}");
    ensure!(
        recording
            .entries()
            .is_sorted_by_key(|entry: &TraceEntry| entry.time)
    );
    ensure!(
        recording.entries().iter().all(|entry| entry.bytes > 1),
        "the first pair is older than what was dropped"
    );
    for stream in &streams {
        let number = stream.as_raw().addr() as u64;
        let of_stream = recording.entries().iter();
        let mut of_stream = of_stream.filter(|entry| entry.stream == number).peekable();
        while let Some(entry) = of_stream.next() {
            let next = of_stream.peek().map_or(entry.bytes, |next| next.bytes);
            ensure!(next - entry.bytes <= 1, "{entry:?}, then {next} bytes");
        }
    }
    Ok(())
}

#[apply(case)]
fn a_log_has_every_event_in_order_of_time(env: &Environment) -> Result<()> {
    const PAIRS: usize = 1000;
    let page = Page::default();
    let recorder = Recorder::to_writer(page.clone());
    let resource = Resource::new(RecordingAdaptor::new(env.pool()?, &recorder));
    let streams = [env.stream()?, env.stream()?];
    std::thread::scope(|scope| {
        for stream in &streams {
            scope.spawn(|| {
                for nth in 0..PAIRS {
                    drop(resource.alloc::<u8>(stream, 1 + nth).expect("memory"));
                }
            });
        }
    });
    recorder.flush()?;
    ensure!(recorder.dropped() == 0);
    ensure!(recorder.recording().entries().is_empty());
    let text = page.text();
    let mut lines = text.lines();
    ensure!(lines.next() == Some("Thread,Time,Action,Pointer,Size,Stream,Origin"));
    let times: Vec<&str> = lines
        .map(|line| line.split(',').nth(1).unwrap_or_default())
        .collect();
    ensure!(times.len() == 4 * PAIRS, "{} lines", times.len());
    // At midnight they begin anew, once at most.
    let steps_back = times.windows(2).filter(|pair| pair[0] > pair[1]).count();
    ensure!(steps_back <= 1, "{steps_back} steps back");
    let allocated = text.lines().filter(|line| line.contains(",allocate,"));
    ensure!(allocated.count() == 2 * PAIRS);
    ensure!(text.contains(&format!(",{}:", file!())), "no origin");
    Ok(())
}

#[apply(case)]
fn what_was_recorded_is_written_as_rmm_does(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let recorder = Recorder::ring(1000);
    let pool = MemoryPool::builder(&env.device()?)
        .record(&recorder)
        .build()?;
    let kept = pool.alloc::<u8>(&stream, 1000)?;
    drop(pool.alloc::<u8>(&stream, 2000)?);
    let mut log = Vec::new();
    recorder.recording().write_rmm_csv(&mut log)?;
    let path = tempfile::NamedTempFile::with_suffix(".csv")?;
    std::fs::write(&path, &log)?;
    let trace = cuda_mem_trace::Trace::read(path.path())?;
    ensure!(
        (trace.ops.len(), trace.peak_bytes, trace.streams) == (3, 3000, 1),
        "{trace:?}"
    );
    drop(kept);
    Ok(())
}

#[apply(case)]
fn a_writer_that_fails_or_panics_stops_nothing(env: &Environment) -> Result<()> {
    struct Broken;
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            panic!("a writer that panics")
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let stream = env.stream()?;
    for recorder in [Recorder::to_writer(Full), Recorder::to_writer(Broken)] {
        let resource = Resource::new(RecordingAdaptor::new(env.pool()?, &recorder));
        for _ in 0..2000 {
            drop(resource.alloc::<u8>(&stream, 10)?);
        }
        let Err(error) = recorder.flush() else {
            bail!("a write that failed was not told");
        };
        ensure!(error.kind() == ErrorKind::System, "{error}");
        ensure!(recorder.dropped() == 4000, "{}", recorder.dropped());
        recorder.flush()?;
    }
    Ok(())
}

#[apply(case)]
fn frames_come_from_the_program(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let recorder = Recorder::ring(1000).with_frames(|frames| {
        // Nothing for some, and a panic must not reach the program.
        match std::thread::current().name() {
            Some("none") => {}
            Some("panics") => panic!("a source of frames that panics"),
            _ => frames.push_str("model.py:3 forward;train.py:10"),
        }
    });
    let resource = Resource::new(RecordingAdaptor::new(env.pool()?, &recorder));
    let allocate = |name: &str| -> Result<String> {
        let thread = std::thread::Builder::new().name(name.to_owned());
        std::thread::scope(|scope| {
            let allocated = thread.spawn_scoped(scope, || -> Result<()> {
                drop(resource.alloc::<u8>(&stream, 10)?);
                Ok(())
            })?;
            allocated.join().expect("no thread panics")
        })?;
        let recording = recorder.recording();
        let last = of(&recording, TraceAction::Allocate).pop();
        let origin = last.and_then(|entry| entry.origin.clone());
        Ok(origin.map(|origin| origin.to_string()).unwrap_or_default())
    };
    for _ in 0..2 {
        ensure!(allocate("model")? == "model.py:3 forward;train.py:10");
    }
    for other in ["none", "panics"] {
        let origin = allocate(other)?;
        ensure!(origin.is_empty(), "{origin}");
    }
    Ok(())
}

/// Alone, because a fork copies only the thread that forks.
#[apply(case_alone)]
fn a_fork_records_nothing(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let page = Page::default();
    let written = Recorder::to_writer(page.clone());
    let ring = Recorder::ring(1000);
    let resource = RecordingAdaptor::new(env.pool()?, &written);
    let resource = Resource::new(RecordingAdaptor::new(resource, &ring));
    drop(resource.alloc::<u8>(&stream, 10)?);
    // SAFETY: the child makes a few calls, which are refused there, and ends with _exit.
    let child = unsafe { forks::fork() }?;
    if child == 0 {
        let refused = resource.alloc::<u8>(&stream, 10).is_err();
        let is_empty = ring.recording().entries().is_empty() && page.text().is_empty();
        let flushed = written.flush();
        let forked = flushed.is_err_and(|error| error.kind() == ErrorKind::Forked);
        let ok = refused && is_empty && forked && page.text().is_empty();
        forks::end_child(ok);
    }
    forks::ends_well(child)?;
    ensure!(ring.recording().entries().len() == 2);
    written.flush()?;
    ensure!(page.text().lines().count() == 3, "{}", page.text());
    Ok(())
}
