//! Streams and arenas that end, also where the other side does not expect it.

use std::alloc::Layout;
use std::ffi::c_void;
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use cuda_mem::sys::CUresult;
use cuda_mem::{Arena, MemoryResource, Resource, Stream, drop_counts};

use crate::hold::hold;
use crate::lab::Lab;
use crate::run::output_within;

const MIB: usize = 1 << 20;

/// Set in the process whose destructors may fail.
const FAILS: &str = "CUDA_MEM_TEST_DROP_FAILS";

/// Runs the test once more in a process where exactly one destructor fails; the test program says so at its
/// end.
fn with_one_failed_drop(name: &str, lab: &Lab, body: fn(&Lab) -> Result<()>) -> Result<()> {
    if std::env::var_os(FAILS).is_some() {
        return body(lab);
    }
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["--exact", name, "--nocapture"])
        .env(FAILS, "1")
        .env("CUDA_MEM_TEST_BACKEND", lab.backend.name());
    let output = output_within(&mut command, Duration::from_secs(60))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        text.contains("1 passed") && errors.contains("1 destructors failed"),
        "in its own process:\n{text}{errors}"
    );
    Ok(())
}

/// Holds `stream` from the work that is in it now, without waiting until it gets there.
fn hold_behind(stream: &Stream) -> Result<Sender<()>> {
    unsafe extern "C" fn wait(open: *mut c_void) {
        // SAFETY: the pointer is the box leaked below, and the driver calls this once.
        let open = unsafe { Box::from_raw(open.cast::<Receiver<()>>()) };
        // Ends with an error when the sender is dropped: that is the signal.
        let _ = open.recv();
    }
    let (open, wait_open) = channel();
    let launch = stream.device().driver().table().cuLaunchHostFunc;
    let launch = launch.context("the driver has no cuLaunchHostFunc")?;
    let wait_open = Box::into_raw(Box::new(wait_open));
    // SAFETY: the stream is live, and `wait` calls no driver function, as host functions must not.
    let code = unsafe { launch(stream.as_raw(), Some(wait), wait_open.cast()) };
    ensure!(code == CUresult::CUDA_SUCCESS, "cuLaunchHostFunc: {code}");
    Ok(open)
}

pub(super) fn overlap(one: (u64, usize), other: (u64, usize)) -> bool {
    one.0 < other.0 + other.1 as u64 && other.0 < one.0 + one.1 as u64
}

/// Drops it on another thread.
fn drop_elsewhere<T: Send>(thing: T) -> Result<()> {
    std::thread::scope(|scope| scope.spawn(move || drop(thing)).join())
        .map_err(|_| anyhow!("the other thread panicked"))
}

pub(super) fn a_lane_whose_end_is_unknown_goes_to_nobody(lab: &Lab) -> Result<()> {
    let name = "ends::a_lane_whose_end_is_unknown_goes_to_nobody";
    // The arena cannot know either when it may give its memory back.
    with_one_failed_drop(name, lab, |lab| {
        let context = lab.context()?;
        let arena = Arena::builder(&lab.device()?).build()?;
        let resource = Resource::from(arena.clone());
        let _current = context.bind()?;
        let own = context.per_thread_stream();
        let other = lab.stream()?;
        let first_hold = hold(&own)?;
        drop(resource.alloc::<u8>(&own, 8 * MIB)?);
        // Sets a mark in the thread's stream.
        let waits = resource.alloc::<u8>(&other, 6 * MIB)?;
        let last = resource.alloc::<u8>(&own, 1000)?;
        let place = (last.as_raw(), 1000);
        let second_hold = hold_behind(&own)?;
        drop(last);
        // Nobody can set a mark behind the second hold there.
        drop_elsewhere(own)?;
        let next = lab.stream()?;
        let got = resource.alloc::<u8>(&next, 1000)?;
        drop(first_hold);
        next.synchronize()?;
        let early = overlap(place, (got.as_raw(), 1000));
        drop(second_hold);
        context.synchronize()?;
        drop((waits, got));
        ensure!(!early, "given to a stream that did not wait");
        Ok(())
    })
}

pub(super) fn an_arena_dropped_elsewhere_leaves_memory_in_use_alone(lab: &Lab) -> Result<()> {
    let name = "ends::an_arena_dropped_elsewhere_leaves_memory_in_use_alone";
    with_one_failed_drop(name, lab, |lab| {
        let context = lab.context()?;
        let arena = Arena::builder(&lab.device()?).build()?;
        let _current = context.bind()?;
        let own = context.per_thread_stream();
        let mut buffer = Resource::from(arena.clone()).alloc::<u8>(&own, 4 * MIB)?;
        let held = hold(&own)?;
        // It runs when the arena is gone, and is an error where there is no memory any more.
        buffer.fill(3)?;
        drop(buffer);
        let unmapped = || Ok::<_, anyhow::Error>(lab.control()?.calls("cuMemUnmap"));
        let before = unmapped().ok();
        // Another thread cannot ask how far this one's stream is.
        drop_elsewhere(arena)?;
        ensure!(before == unmapped().ok(), "unmapped while it is in use");
        drop(held);
        own.synchronize()?;
        Ok(())
    })
}

pub(super) fn streams_may_end_while_their_arena_ends(lab: &Lab) -> Result<()> {
    let layout = Layout::from_size_align(1000, 256)?;
    for round in 0..60 {
        let arena = Arena::builder(&lab.device()?).build()?;
        let streams: Result<Vec<_>> = (0..6).map(|_| lab.stream()).collect();
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
    let context = lab.context()?;
    for _ in 0..100 {
        // What was not done at first is looked at again, but not each time.
        context.synchronize()?;
        if drop_counts().waiting == 0 {
            break;
        }
    }
    let counts = drop_counts();
    ensure!(
        (counts.failures, counts.waiting) == (0, 0),
        "after all have ended: {counts:?}"
    );
    if let Ok(control) = lab.control() {
        ensure!(control.report_count() == 0, "{:#?}", control.reports());
        let live = control.live();
        let left = (live.mappings, live.reservations);
        ensure!(left == (0, 0), "left {left:?}");
    }
    Ok(())
}

/// The arena itself needs no context: an event that it kept would hold one.
pub(super) fn an_arena_keeps_no_context_of_streams_that_ended(lab: &Lab) -> Result<()> {
    let device = lab.device()?;
    let arena = Arena::builder(&device).build()?;
    let stream = lab.stream()?;
    let held = hold(&stream)?;
    drop(Resource::from(arena.clone()).alloc::<u8>(&stream, 1000)?);
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
