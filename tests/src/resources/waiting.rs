//! Waiting for memory of other threads: limits that wait, and the remedy that asks again after a pause.

use std::alloc::Layout;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::base::Remedy;
use cuda_mem::interop::CaptureMode;
use cuda_mem::memory::{
    FailureCallbackAdaptor, LimitAdaptor, MemoryProperties, RecoveryAdaptor, RecoveryPolicy,
    StatisticsAdaptor,
};
use cuda_mem::{Error, ErrorKind, MemoryPool, MemoryResource, Resource, Stream};

use super::failing::{Failing, Failure};
use crate::environment::Environment;
use crate::forks;

/// Longer than any test: a thread that waits this long was not woken.
const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(20);

type Limited = Arc<LimitAdaptor<MemoryPool>>;

fn limited(env: &Environment, timeout: Duration) -> Result<(Limited, Resource)> {
    let limited = LimitAdaptor::new(env.pool()?, 1000).with_wait_timeout(timeout);
    let limited = Arc::new(limited);
    Ok((limited.clone(), Resource::from(limited)))
}

/// Until a condition holds, or for long.
fn until(what: &str, condition: impl Fn() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !condition() {
        ensure!(begun.elapsed() < LONG, "not seen: {what}");
        thread::yield_now();
    }
    Ok(())
}

fn join<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    thread.join().unwrap_or_else(|_| bail!("a thread panicked"))
}

fn require_out_of_memory<T>(answer: cuda_mem::Result<T>) -> Result<Error> {
    let Err(error) = answer else {
        bail!("it was served");
    };
    ensure!(error.kind() == ErrorKind::OutOfMemory, "{error}");
    Ok(error)
}

#[apply(case)]
fn four_threads_share_a_limit(env: &Environment) -> Result<()> {
    let (limited, resource) = limited(env, LONG)?;
    let counted = Arc::new(StatisticsAdaptor::new(resource));
    let resource = Resource::from(counted.clone());
    let work = |bytes: usize| -> Result<()> {
        let stream = env.stream()?;
        for _ in 0..100 {
            resource.alloc::<u8>(&stream, bytes)?.free()?;
        }
        Ok(())
    };
    let work = &work;
    thread::scope(|scope| {
        let threads = [300, 600, 700, 1000].map(|bytes| scope.spawn(move || work(bytes)));
        threads.into_iter().try_for_each(join)
    })?;
    let statistics = counted.statistics();
    ensure!(statistics.allocations.total == 400, "{statistics}");
    ensure!(statistics.bytes.peak <= 1000, "{statistics}");
    ensure!(limited.allocated() == 0 && limited.waiting() == 0);
    Ok(())
}

#[apply(case)]
fn a_freed_part_goes_to_the_first(env: &Environment) -> Result<()> {
    let (limited, resource) = limited(env, LONG)?;
    let stream = env.stream()?;
    let (first, second) = (
        resource.alloc::<u8>(&stream, 500)?,
        resource.alloc::<u8>(&stream, 500)?,
    );
    thread::scope(|scope| {
        let ask = |bytes: usize| {
            let resource = &resource;
            scope.spawn(move || Ok(resource.alloc::<u8>(&env.stream()?, bytes)?))
        };
        let large = ask(1000);
        until("the large request", || limited.waiting() == 1)?;
        let small = ask(100);
        until("the small request", || limited.waiting() == 2)?;
        first.free()?;
        ensure!(
            limited.waiting() == 2,
            "the small one would fit, and is second"
        );
        second.free()?;
        let large = join(large)?;
        ensure!(limited.waiting() == 1 && limited.allocated() == 1000);
        large.free()?;
        drop(join(small)?);
        Ok(())
    })
}

#[apply(case)]
fn waiting_ends_with_who_holds_what(env: &Environment) -> Result<()> {
    let (limited, resource) = limited(env, SHORT)?;
    ensure!(limited.wait_timeout() == Some(SHORT));
    let stream = env.stream()?;
    let mine = resource.alloc::<u8>(&stream, 300)?;
    let theirs = thread::scope(|scope| {
        let thread = scope.spawn(|| Ok(resource.alloc::<u8>(&stream, 600)?));
        join(thread)
    })?;
    let begun = Instant::now();
    let error = require_out_of_memory(resource.alloc::<u8>(&stream, 101))?;
    ensure!(begun.elapsed() >= SHORT, "{:?}", begun.elapsed());
    let text = error.to_string();
    for part in [
        "the limit is 1000 B, of which 900 B are allocated (600 B by thread ",
        ", 300 B by this thread (",
        " after waiting for ",
        "asked for 101 B",
    ] {
        ensure!(text.contains(part), "{text}");
    }
    ensure!(limited.waiting() == 0 && limited.allocated() == 900);
    drop((mine, theirs));
    drop(resource.alloc::<u8>(&stream, 1000)?);
    // No time at all is no waiting.
    let limited = LimitAdaptor::new(env.pool()?, 10).with_wait_timeout(Duration::ZERO);
    let resource = Resource::new(limited);
    let held = resource.alloc::<u8>(&stream, 10)?;
    require_out_of_memory(resource.alloc::<u8>(&stream, 1))?;
    drop(held);
    Ok(())
}

/// It would not end, so that it must not begin.
#[apply(case)]
fn what_cannot_be_waited_for_fails_at_once(env: &Environment) -> Result<()> {
    let (limited, resource) = limited(env, LONG)?;
    let stream = env.stream()?;
    let all = resource.alloc::<u8>(&stream, 1000)?;
    let text = require_out_of_memory(resource.alloc::<u8>(&stream, 1001))?.to_string();
    ensure!(
        text.starts_with("the limit is 1000 B, less than the request: asked for 1001 B")
            && text.contains("raise the limit"),
        "{text}"
    );
    let nothing = Layout::from_size_align(0, 256)?;
    ensure!(limited.allocate(nothing, &stream)? == 0);
    // SAFETY: of no bytes, from there.
    unsafe { limited.deallocate(0, nothing, &stream) }?;
    ensure!(limited.allocated() == 1000);
    drop(all);
    // Without waiting it says the same.
    let resource = Resource::new(LimitAdaptor::new(env.pool()?, 1000));
    let text = require_out_of_memory(resource.alloc::<u8>(&stream, 1001))?.to_string();
    ensure!(text.contains("raise the limit"), "{text}");
    Ok(())
}

/// A thread that has waited gets its bytes, and upstream fails or panics: the next thread in the queue is woken.
#[apply(case)]
fn an_upstream_that_fails_makes_way(env: &Environment) -> Result<()> {
    for failure in [Failure::Error, Failure::Panic] {
        let upstream = Arc::new(Failing::new(env.pool()?));
        let limited = LimitAdaptor::new(upstream.clone(), 1000).with_wait_timeout(LONG);
        let limited = Arc::new(limited);
        let resource = Resource::from(limited.clone());
        let stream = env.stream()?;
        let all = resource.alloc::<u8>(&stream, 1000)?;
        upstream.fail_next(failure);
        thread::scope(|scope| {
            let ask = || {
                let resource = &resource;
                scope.spawn(move || Ok(resource.alloc::<u8>(&env.stream()?, 1000)?))
            };
            let first = ask();
            until("the first request", || limited.waiting() == 1)?;
            let second = ask();
            until("the second request", || limited.waiting() == 2)?;
            all.free()?;
            match first.join() {
                Ok(Ok(_)) => bail!("upstream did not fail"),
                Ok(Err(error)) => ensure!(failure == Failure::Error, "{error}"),
                Err(_) => ensure!(failure == Failure::Panic),
            }
            drop(join(second)?);
            Ok(())
        })?;
        ensure!(limited.allocated() == 0 && limited.waiting() == 0);
    }
    Ok(())
}

/// Takes a second block of the same size from the limit above it, and gives it back.
#[derive(Debug)]
struct Greedy {
    pool: MemoryPool,
    above: OnceLock<Weak<LimitAdaptor<Arc<Greedy>>>>,
    refused: Mutex<Option<Error>>,
}

// SAFETY: all memory comes from the pool and goes back there.
unsafe impl MemoryResource for Greedy {
    fn allocate(&self, layout: Layout, stream: &Stream) -> cuda_mem::Result<u64> {
        if layout.size() > 500
            && let Some(above) = self.above.get().and_then(Weak::upgrade)
        {
            let second = above.allocate(layout, stream);
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = second.err();
        }
        self.pool.allocate(layout, stream)
    }

    unsafe fn deallocate(
        &self,
        address: u64,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem::Result<()> {
        // SAFETY: the caller's.
        unsafe { self.pool.deallocate(address, layout, stream) }
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.pool.memory_properties()
    }
}

#[apply(case)]
fn a_call_from_below_does_not_wait(env: &Environment) -> Result<()> {
    let greedy = Arc::new(Greedy {
        pool: env.pool()?,
        above: OnceLock::new(),
        refused: Mutex::default(),
    });
    let limited = LimitAdaptor::new(greedy.clone(), 1000).with_wait_timeout(LONG);
    let limited = Arc::new(limited);
    greedy
        .above
        .set(Arc::downgrade(&limited))
        .map_err(|_| anyhow::anyhow!("set twice"))?;
    drop(Resource::from(limited.clone()).alloc::<u8>(&env.stream()?, 600)?);
    let refused = greedy
        .refused
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    let text = refused.context("it was not refused")?.to_string();
    ensure!(
        text.contains("it did not wait, because this thread is in a call of the limit's upstream"),
        "{text}"
    );
    ensure!(limited.allocated() == 0);
    Ok(())
}

/// Alone, because it captures.
#[apply(case_alone)]
fn a_thread_that_captures_does_not_wait(env: &Environment) -> Result<()> {
    let (limited, resource) = limited(env, LONG)?;
    let (captured, stream) = (env.stream()?, env.stream()?);
    let policy = RecoveryPolicy::new().wait_for_others(LONG);
    let recovering = Resource::new(RecoveryAdaptor::new(
        LimitAdaptor::new(env.pool()?, 1000),
        policy,
    ));
    let most = resource.alloc::<u8>(&stream, 900)?;
    let others = recovering.alloc::<u8>(&stream, 1000)?;
    stream.synchronize()?;
    let mut refused = None;
    captured.capture(CaptureMode::Relaxed, |_| {
        // What fits is served.
        drop(resource.alloc::<u8>(&stream, 100)?);
        refused = Some((
            resource.alloc::<u8>(&stream, 101).map(drop),
            recovering.alloc::<u8>(&stream, 1).map(drop),
        ));
        Ok(())
    })?;
    let (limit, policy) = refused.context("it was recorded")?;
    let text = require_out_of_memory(limit)?.to_string();
    ensure!(
        text.contains("it did not wait, because this thread records a stream into a graph"),
        "{text}"
    );
    let error = require_out_of_memory(policy)?;
    let tried = error.out_of_memory().context("no numbers")?.tried.clone();
    ensure!(tried.len() == 1 && tried[0].remedy == Remedy::WaitForOthers);
    ensure!(tried[0].error == Some(ErrorKind::Capturing), "{error}");
    drop((most, others));
    ensure!(limited.allocated() == 0);
    Ok(())
}

/// Alone, because a fork copies only the thread that forks: the threads that wait are the parent's.
#[apply(case_alone)]
fn nothing_waits_in_a_fork(env: &Environment) -> Result<()> {
    let (limited, resource) = limited(env, LONG)?;
    let stream = env.stream()?;
    let all = resource.alloc::<u8>(&stream, 1000)?;
    thread::scope(|scope| {
        let waiting = scope.spawn(|| Ok(resource.alloc::<u8>(&env.stream()?, 1000)?));
        until("the request", || limited.waiting() == 1)?;
        // SAFETY: the child asks the adaptor, which must not wait there, and ends with _exit.
        let child = unsafe { forks::fork() }?;
        if child == 0 {
            let refused = resource.alloc::<u8>(&stream, 10);
            let fine = refused.is_err_and(|error| error.kind() == ErrorKind::Forked);
            drop(all);
            forks::end_child(fine);
        }
        let ended = forks::ends_well(child);
        all.free()?;
        drop(join(waiting)?);
        ended
    })
}

/// The memory comes back only after two requests were refused.
#[apply(case)]
fn others_are_waited_for_with_pauses(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let limited = Resource::new(LimitAdaptor::new(env.pool()?, 1000));
    let all = limited.alloc::<u8>(&stream, 1000)?;
    let (refused, wait_refused) = channel();
    let counting = FailureCallbackAdaptor::new(limited, move |_, _: &Error| {
        let _ = refused.send(());
        false
    });
    let policy = RecoveryPolicy::new().wait_for_others(LONG);
    let resource = Resource::new(RecoveryAdaptor::new(counting, policy));
    thread::scope(|scope| {
        let asking = scope.spawn(|| Ok(resource.alloc::<u8>(&env.stream()?, 1000)?));
        for _ in 0..3 {
            wait_refused.recv_timeout(LONG)?;
        }
        all.free()?;
        drop(join(asking)?);
        Ok(())
    })
}

#[apply(case)]
fn waiting_for_others_ends(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    let asked = AtomicU32::new(0);
    let refuse = || -> cuda_mem::Result<()> {
        asked.fetch_add(1, Ordering::Relaxed);
        Err(Error::new(ErrorKind::OutOfMemory, "as the test wants"))
    };
    let begun = Instant::now();
    let policy = RecoveryPolicy::new().retry().wait_for_others(SHORT).retry();
    let error = require_out_of_memory(policy.recover(&pool, &stream, refuse))?;
    ensure!(begun.elapsed() >= SHORT, "{:?}", begun.elapsed());
    let tried = &error.out_of_memory().context("no numbers")?.tried;
    let remedies: Vec<Remedy> = tried.iter().map(|tried| tried.remedy).collect();
    ensure!(remedies == [Remedy::Retry, Remedy::WaitForOthers, Remedy::Retry]);
    ensure!(tried.iter().all(|tried| tried.error.is_none()), "{error}");
    let text = error.to_string();
    ensure!(
        text.contains("then waiting for other threads, then again"),
        "{text}"
    );
    // The first request, one of each retry, and at least one of the pauses.
    ensure!(asked.swap(0, Ordering::Relaxed) >= 4);
    // No time at all is one request.
    let policy = RecoveryPolicy::new().wait_for_others(Duration::ZERO);
    require_out_of_memory(policy.recover(&pool, &stream, refuse))?;
    ensure!(asked.into_inner() == 2);
    // Another error ends it.
    let policy = RecoveryPolicy::new().wait_for_others(Duration::MAX);
    let mut first = true;
    let ended: cuda_mem::Result<()> = policy.recover(&pool, &stream, || {
        let kind = if std::mem::take(&mut first) {
            ErrorKind::OutOfMemory
        } else {
            ErrorKind::NotSupported
        };
        Err(Error::new(kind, "as the test wants"))
    });
    ensure!(ended.is_err_and(|error| error.kind() == ErrorKind::NotSupported));
    Ok(())
}
