//! What each adaptor adds to its upstream.

use std::alloc::Layout;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use cuda_mem::ledger::Recorder;
use cuda_mem::memory::{
    AlignedAdaptor, DeviceVec, FailureCallbackAdaptor, LimitAdaptor, LoggingAdaptor,
    ManagedResource, PrefetchAdaptor, RecordingAdaptor, StatisticsAdaptor, TrackingAdaptor,
};
use cuda_mem::{Arena, Error, ErrorKind, MemoryResource as _, Resource};

use crate::environment::Environment;
use crate::forks;
use crate::writers::{Full, Page};

#[apply(case)]
fn a_limit_holds_for_all_threads_together(env: &Environment) -> Result<()> {
    let limited = Arc::new(LimitAdaptor::new(env.pool()?, 10_000));
    let resource = Resource::from(limited.clone());
    let had = AtomicU64::new(0);
    let everybody = Barrier::new(4);
    thread::scope(|scope| {
        let work = || -> Result<()> {
            let stream = env.stream();
            let mut live = Vec::new();
            let end = loop {
                // Whatever fails, everybody comes to the barrier.
                let Ok(stream) = &stream else {
                    break Error::new(ErrorKind::Other, "no stream");
                };
                match resource.alloc::<u8>(stream, 1000) {
                    Ok(buffer) => live.push(buffer),
                    Err(error) => break error,
                }
            };
            had.fetch_add(live.len() as u64, Ordering::Relaxed);
            // Kept until all have had theirs.
            everybody.wait();
            ensure!(end.kind() == ErrorKind::OutOfMemory, "{end}");
            Ok(())
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| {
            let done = thread.join();
            done.unwrap_or_else(|_| bail!("a thread panicked"))
        })
    })?;
    ensure!(had.into_inner() == 10);
    ensure!(limited.allocated() == 0, "everything was given back");
    Ok(())
}

#[apply(case)]
fn a_limit_says_what_is_taken(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let resource = Resource::new(LimitAdaptor::new(env.pool()?, 1000));
    let live = resource.alloc::<u8>(&stream, 600)?;
    let Err(error) = resource.alloc::<u8>(&stream, 401) else {
        bail!("more than the limit was allocated");
    };
    ensure!(error.kind() == ErrorKind::OutOfMemory);
    ensure!(error.code().is_none(), "the driver was not asked");
    ensure!(error.out_of_memory().map(|memory| memory.asked) == Some(401));
    let text = error.to_string();
    ensure!(
        text.contains("1000 B") && text.contains("600 B are allocated"),
        "{text}"
    );
    drop(resource.alloc::<u8>(&stream, 400)?);
    drop(live);
    // What upstream refuses takes nothing.
    let wide = Arc::new(LimitAdaptor::new(env.pool()?, u64::MAX));
    ensure!(
        Resource::from(wide.clone())
            .alloc::<u8>(&stream, 1 << 50)
            .is_err()
    );
    ensure!(wide.allocated() == 0);
    Ok(())
}

#[apply(case)]
fn statistics_count_bytes_and_allocations(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let counted = Arc::new(StatisticsAdaptor::new(env.pool()?));
    let resource = Resource::from(counted.clone());
    let a = resource.alloc::<u8>(&stream, 100)?;
    let b = resource.alloc::<u8>(&stream, 50)?;
    drop(a);
    drop(resource.alloc::<u8>(&stream, 0)?);
    ensure!(resource.alloc::<u8>(&stream, 1 << 50).is_err());
    let now = counted.statistics();
    let bytes = (now.bytes.current, now.bytes.peak, now.bytes.total);
    ensure!(bytes == (50, 150, 150), "{now}");
    let allocations = (
        now.allocations.current,
        now.allocations.peak,
        now.allocations.total,
    );
    ensure!(allocations == (1, 2, 2), "{now}");
    counted.reset_peaks();
    ensure!(counted.statistics().bytes.peak == 50);
    drop(b);
    ensure!(counted.statistics().bytes.current == 0);
    Ok(())
}

#[apply(case)]
fn scopes_count_their_own_thread_and_nest(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let counted = Arc::new(StatisticsAdaptor::new(env.pool()?));
    let other = Arc::new(StatisticsAdaptor::new(env.pool()?));
    let (resource, unseen) = (
        Resource::from(counted.clone()),
        Resource::from(other.clone()),
    );
    let before = resource.alloc::<u8>(&stream, 1)?;
    let outer = counted.scope();
    let first = resource.alloc::<u8>(&stream, 10)?;
    let inner = counted.scope();
    let second = resource.alloc::<u8>(&stream, 20)?;
    drop(unseen.alloc::<u8>(&stream, 500)?);
    thread::scope(|scope| {
        let elsewhere = scope.spawn(|| resource.alloc::<u8>(&stream, 1000).map(drop));
        elsewhere.join().map_err(|_| anyhow::anyhow!("it panicked"))
    })??;
    drop(first);
    let counts = inner.statistics();
    ensure!(
        (counts.bytes.current, counts.bytes.peak, counts.bytes.total) == (10, 20, 20),
        "{counts}"
    );
    drop(inner);
    drop(second);
    drop(before);
    let counts = outer.statistics();
    ensure!(
        (counts.bytes.current, counts.bytes.peak, counts.bytes.total) == (-1, 30, 30),
        "{counts}"
    );
    ensure!(counts.allocations.current == -1 && counts.allocations.total == 2);
    // Ends out of order, and nothing is counted any more.
    let (one, two) = (counted.scope(), counted.scope());
    drop(one);
    drop(resource.alloc::<u8>(&stream, 5)?);
    ensure!(two.statistics().bytes.total == 5);
    drop(two);
    ensure!(counted.statistics().bytes.total == 1036);
    Ok(())
}

#[apply(case)]
fn what_is_alive_is_known_with_its_line(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let tracked = Arc::new(TrackingAdaptor::new(env.pool()?));
    // Under another adaptor and a trait object: the line is that of the program all the same.
    let resource = Resource::new(LimitAdaptor::new(Resource::from(tracked.clone()), 1 << 40));
    let (buffer, line) = (resource.alloc::<u8>(&stream, 100)?, line!());
    let (vec, vec_line) = (DeviceVec::<u16>::zeroed_in(&resource, &stream, 7)?, line!());
    let mut live = tracked.live();
    live.sort_by_key(|allocation| allocation.origin.line());
    ensure!(live.len() == 2 && tracked.live_count() == 2);
    ensure!((live[0].address, live[0].bytes) == (buffer.as_raw(), 100));
    ensure!(live[0].origin.line() == line && live[0].origin.file() == file!());
    ensure!((live[1].address, live[1].bytes) == (vec.as_raw(), 14));
    ensure!(live[1].origin.line() == vec_line);
    ensure!(live[0].backtrace.is_none());
    let text = live[0].to_string();
    ensure!(
        text.contains("100 B") && text.contains("adaptors.rs"),
        "{text}"
    );
    drop((buffer, vec));
    ensure!(tracked.live().is_empty() && tracked.unknown_count() == 0);
    Ok(())
}

#[apply(case)]
fn backtraces_are_taken_on_request(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let tracked = Arc::new(TrackingAdaptor::new(env.pool()?).with_backtraces());
    let _buffer = Resource::from(tracked.clone()).alloc::<u8>(&stream, 1)?;
    let live = tracked.live();
    ensure!(live.len() == 1 && live[0].backtrace.is_some());
    Ok(())
}

#[apply(case)]
fn a_log_ends_with_the_request_that_failed(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let page = Page::default();
    let resource = Resource::new(LoggingAdaptor::new(env.pool()?, page.clone()));
    let buffer = resource.alloc::<u8>(&stream, 1000)?;
    let address = buffer.as_raw();
    drop(buffer);
    ensure!(page.lines().is_empty(), "lines are collected");
    ensure!(resource.alloc::<u8>(&stream, 1 << 50).is_err());
    let lines = page.lines();
    ensure!(lines.len() == 4, "{lines:?}");
    ensure!(lines[0] == "Thread,Time,Action,Pointer,Size,Stream");
    let rest = |line: &str, from: usize| line.splitn(from + 1, ',').nth(from).map(str::to_owned);
    let stream = stream.as_raw().addr();
    let expected = [
        format!("allocate,{address:#x},1000,{stream:#x}"),
        format!("free,{address:#x},1000,{stream:#x}"),
        format!("allocate failure,0x0,{},{stream:#x}", 1_u64 << 50),
    ];
    for (line, expected) in lines[1..].iter().zip(expected) {
        ensure!(rest(line, 2) == Some(expected), "{line}");
    }
    // What is left is written at the end.
    drop(resource.alloc::<u8>(&env.stream()?, 5)?);
    drop(resource);
    ensure!(page.lines().len() == 6);
    Ok(())
}

#[apply(case)]
fn a_log_that_cannot_be_written_stops_nothing(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let logged = Arc::new(LoggingAdaptor::new(env.pool()?, Full));
    let resource = Resource::from(logged.clone());
    for _ in 0..2000 {
        drop(resource.alloc::<u8>(&stream, 10)?);
    }
    let Err(error) = logged.flush() else {
        bail!("a write that failed was not told");
    };
    ensure!(error.kind() == ErrorKind::System, "{error}");
    Ok(())
}

/// Alone, because it counts the calls, and what other tests drop may make the request be made again.
#[apply(case_alone)]
fn a_callback_is_asked_until_it_gives_up(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    let callback = move |bytes: u64, error: &cuda_mem::Error| {
        let mut asked = noted.lock().unwrap_or_else(PoisonError::into_inner);
        asked.push((bytes, error.kind()));
        asked.len() < 3
    };
    let resource = Resource::new(FailureCallbackAdaptor::new(env.pool()?, callback));
    drop(resource.alloc::<u8>(&stream, 10)?);
    ensure!(resource.alloc::<u8>(&stream, 1 << 50).is_err());
    let asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
    ensure!(
        *asked == [(1 << 50, ErrorKind::OutOfMemory); 3],
        "{asked:?}"
    );
    Ok(())
}

#[apply(case)]
fn alignments_are_kept_and_the_memory_comes_back(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let counted = Arc::new(StatisticsAdaptor::new(env.pool()?));
    for (alignment, threshold) in [(1, 0), (256, 0), (512, 0), (4096, 0), (1 << 21, 1000)] {
        let aligned = AlignedAdaptor::new(Resource::from(counted.clone()), alignment)?;
        let resource = Resource::new(aligned.with_threshold_bytes(threshold));
        let mut live = Vec::new();
        for bytes in [1, 10, 999, 1000, 5000, 100_000] {
            let mut buffer = resource.alloc::<u8>(&stream, bytes)?;
            buffer.fill(bytes.to_le_bytes()[0])?;
            if bytes >= threshold {
                ensure!(buffer.as_raw() % alignment as u64 == 0);
            }
            live.push(buffer);
        }
        for buffer in live {
            let value = buffer.len().to_le_bytes()[0];
            ensure!(buffer.to_vec()?.iter().all(|byte| *byte == value));
        }
        let left = counted.statistics().bytes.current;
        ensure!(left == 0, "{alignment}: {left} bytes did not come back");
    }
    for wrong in [0, 3, 4097] {
        let Err(error) = AlignedAdaptor::new(env.pool()?, wrong) else {
            bail!("{wrong} was taken for an alignment");
        };
        ensure!(error.kind() == ErrorKind::InvalidValue);
    }
    Ok(())
}

#[apply(case)]
fn managed_memory_is_moved_and_other_memory_is_not(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let managed = PrefetchAdaptor::new(ManagedResource::new(env.driver));
    let mut buffer = Resource::new(managed).alloc::<u32>(&stream, 1 << 20)?;
    buffer.fill(3)?;
    let values = buffer.to_vec()?;
    ensure!(values.iter().all(|value| *value == 3));
    let pool = Resource::new(PrefetchAdaptor::new(env.pool()?));
    drop(pool.alloc::<u8>(&stream, 1000)?);
    if let Ok(control) = env.control() {
        let moved = control.calls("cuMemPrefetchAsync_v2") + control.calls("cuMemPrefetchAsync");
        let can_move = env.device()?.capabilities()?.concurrent_managed_access;
        ensure!((moved > 0) == can_move, "moved {moved} times");
    }
    Ok(())
}

#[apply(case)]
fn a_free_of_no_memory_counts_for_nothing(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let page = Page::default();
    let limited = Arc::new(LimitAdaptor::new(env.pool()?, 1000));
    let waiting = LimitAdaptor::new(limited.clone(), 1000).with_wait_timeout(Duration::ZERO);
    let waiting = Arc::new(waiting);
    let logged = Arc::new(LoggingAdaptor::new(waiting.clone(), page.clone()));
    let layout = Layout::from_size_align(600, 256)?;
    // SAFETY: a free of address 0 does nothing.
    unsafe { logged.deallocate(0, layout, &stream) }?;
    // SAFETY: as above.
    unsafe { logged.deallocate_after(0, layout, &stream, &[&env.stream()?]) }?;
    ensure!((limited.allocated(), waiting.allocated()) == (0, 0));
    logged.flush()?;
    ensure!(page.lines().len() <= 1, "{:?}", page.lines());
    drop(Resource::from(logged).alloc::<u8>(&stream, 1000)?);
    Ok(())
}

/// Says whether its destructor ran: that of a writer that compresses writes.
struct Trailing(Arc<AtomicBool>);

impl Write for Trailing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Trailing {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Alone, because a fork copies only the thread that forks.
#[apply(case_alone)]
fn a_log_ends_in_the_parent_only(env: &Environment) -> Result<()> {
    let has_ended = Arc::<AtomicBool>::default();
    let logged = LoggingAdaptor::new(env.pool()?, Trailing(Arc::clone(&has_ended)));
    // SAFETY: the child drops the adaptor, whose writer belongs to the parent, and ends with _exit.
    let child = unsafe { forks::fork() }?;
    if child == 0 {
        drop(logged);
        forks::end_child(!has_ended.load(Ordering::Relaxed));
    }
    forks::ends_well(child)?;
    drop(logged);
    ensure!(has_ended.load(Ordering::Relaxed));
    Ok(())
}

#[apply(case)]
fn a_thread_has_the_same_number_everywhere(env: &Environment) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    let recorder = Recorder::ring(1000);
    let tracked = Arc::new(TrackingAdaptor::new(env.pool()?));
    let recorded = RecordingAdaptor::new(Resource::from(tracked.clone()), &recorder);
    let resource = Resource::new(recorded);
    thread::scope(|scope| {
        // A thread that is numbered, and has nothing to do with the adaptors.
        let other = scope.spawn(|| -> Result<()> {
            let arena = Arena::builder(&device).build()?;
            drop(arena.alloc::<u8>(&stream, 1)?);
            Ok(())
        });
        other.join().unwrap_or_else(|_| bail!("it panicked"))?;
        let thread = scope.spawn(|| Ok(resource.alloc::<u8>(&stream, 1)?));
        let _live = thread.join().unwrap_or_else(|_| bail!("it panicked"))?;
        let numbers: Vec<u64> = tracked.live().iter().map(|live| live.thread).collect();
        let entries = recorder.recording();
        let entries: Vec<u64> = entries.entries().iter().map(|entry| entry.thread).collect();
        ensure!(numbers == entries, "{numbers:?}, {entries:?}");
        Ok(())
    })
}
