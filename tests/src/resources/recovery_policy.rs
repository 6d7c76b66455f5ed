//! What is done when memory has run out.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use cuda_mem::base::Remedy;
use cuda_mem::memory::{
    AlignedAdaptor, DirectResource, FailureCallbackAdaptor, LimitAdaptor, LoggingAdaptor,
    PrefetchAdaptor, RecoveryAdaptor, RecoveryPolicy, StatisticsAdaptor, TrackingAdaptor,
};
use cuda_mem::{
    DeviceBuffer, Error, ErrorKind, MemoryPool, MemoryResource as _, Resource, ReusePolicy,
};

use crate::environment::Environment;
use crate::hold::hold;

#[apply(case)]
fn every_remedy_is_tried_in_order(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let (pool, stream) = (env.pool()?, env.stream()?);
    let policy = RecoveryPolicy::new()
        .retry()
        .flush_caches()
        .wait_for_stream()
        .wait_for_device()
        .trim_pool(&pool)
        .trim_graph_memory()
        .callback(|_| true);
    ensure!(!policy.is_empty() && RecoveryPolicy::new().is_empty());
    let resource = Resource::new(RecoveryAdaptor::new(pool, policy));
    let Err(error) = resource.alloc::<u8>(&stream, 1 << 50) else {
        bail!("a pebibyte was allocated");
    };
    let Some(memory) = error.out_of_memory() else {
        bail!("no numbers: {error}");
    };
    let remedies: Vec<Remedy> = memory.tried.iter().map(|tried| tried.remedy).collect();
    let all = [
        Remedy::Retry,
        Remedy::FlushCaches,
        Remedy::WaitForStream,
        Remedy::WaitForDevice,
        Remedy::TrimPool,
        Remedy::TrimGraphMemory,
        Remedy::Callback,
    ];
    ensure!(remedies == all, "{error}");
    for tried in &memory.tried {
        let is_too_old = tried.remedy == Remedy::TrimGraphMemory && env.need(11, 4).is_err();
        ensure!(tried.error.is_some() == is_too_old, "{error}");
    }
    let text = error.to_string();
    ensure!(text.contains("waiting for the stream"), "{text}");
    ensure!(memory.asked == 1 << 50 && memory.device_total.is_some());
    drop(resource.alloc::<u8>(&stream, 1000)?);
    Ok(())
}

/// Each remedy does what it says: the request is served as soon as it did.
#[apply(case)]
fn flushing_and_trimming_give_back(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let _pressure = env.exclusive();
    let (pool, stream) = (env.pool()?, env.stream()?);
    let stack = Resource::from(pool.clone());
    let stack = Resource::new(LimitAdaptor::new(stack, 1 << 40));
    let stack = Resource::new(AlignedAdaptor::new(TrackingAdaptor::new(stack), 512)?);
    let stack = Resource::new(StatisticsAdaptor::new(Box::new(PrefetchAdaptor::new(
        stack,
    ))));
    let stack = Resource::new(LoggingAdaptor::new(stack, std::io::sink()));
    let stack = Resource::new(FailureCallbackAdaptor::new(stack, |_, _| false));
    ensure!(
        stack.pool() == Some(&*pool),
        "the pool is seen through the stack"
    );
    let elsewhere = Resource::new(DirectResource::new(env.device()?));
    ensure!(elsewhere.pool().is_none());
    for (policy, resource) in [
        (RecoveryPolicy::new().flush_caches(), &stack),
        (RecoveryPolicy::new().trim_pool(&pool), &elsewhere),
    ] {
        drop(stack.alloc::<u8>(&stream, 10 << 20)?);
        stream.synchronize()?;
        ensure!(pool.stats()?.reserved.current > 0, "nothing to give back");
        let mut asked = 0;
        policy.recover(resource, &stream, || {
            asked += 1;
            if pool.stats()?.reserved.current == 0 {
                return Ok(());
            }
            Err(Error::new(ErrorKind::OutOfMemory, "the pool holds it"))
        })?;
        ensure!(asked == 2, "{asked} requests for {policy:?}");
    }
    Ok(())
}

/// Alone, because it holds a stream.
#[apply(case_alone)]
fn waiting_waits(env: &Environment) -> Result<()> {
    let (pool, stream, other) = (env.pool()?, env.stream()?, env.stream()?);
    for (policy, busy) in [
        (RecoveryPolicy::new().wait_for_stream(), &stream),
        (RecoveryPolicy::new().wait_for_device(), &other),
    ] {
        let mut held = Some(hold(busy)?);
        let mut letting_go = None;
        policy.recover(&pool, &stream, || {
            // After the first request fails, the stream is let go only a moment later.
            if let Some(held) = held.take() {
                letting_go = Some(thread::spawn(move || {
                    thread::sleep(Duration::from_millis(20));
                    drop(held);
                }));
            }
            if busy.is_done()? {
                return Ok(());
            }
            Err(Error::new(ErrorKind::OutOfMemory, "it is still at work"))
        })?;
        if let Some(thread) = letting_go {
            thread.join().map_err(|_| anyhow::anyhow!("it panicked"))?;
        }
    }
    Ok(())
}

/// With no reuse allowed, what another stream has freed serves only once the host has seen it. Alone,
/// because frees of memory that is no pool's wait for the device, and then the host has seen it.
#[apply(case_alone)]
fn waiting_helps_where_a_free_was_not_seen(env: &Environment) -> Result<()> {
    env.need(12, 2)?;
    let _pressure = env.exclusive();
    let (first, second) = (env.stream()?, env.stream()?);
    let pool = MemoryPool::builder(&env.device()?)
        .max_size(64 << 20)
        .reuse(ReusePolicy::NONE)
        .build()?;
    let fill = |stream| pool.alloc::<u8>(stream, 60 << 20);
    drop(fill(&first)?);
    let policy = RecoveryPolicy::new().retry().flush_caches();
    let unhelped = policy.recover(&pool, &second, || fill(&second));
    ensure!(
        unhelped.is_err_and(|error| error.kind() == ErrorKind::OutOfMemory),
        "there is nothing to wait for"
    );
    let policy = RecoveryPolicy::new().wait_for_device();
    drop(policy.recover(&pool, &second, || fill(&second))?);
    Ok(())
}

/// Alone, because it holds a stream: waiting is never done unless it was asked for.
#[apply(case_alone)]
fn nothing_waits_unless_it_is_asked_to(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    let held = hold(&stream)?;
    let policy = RecoveryPolicy::new()
        .retry()
        .flush_caches()
        .trim_pool(&pool)
        .trim_graph_memory();
    let failed = policy.recover(&pool, &stream, || pool.alloc::<u8>(&stream, 1 << 50));
    ensure!(failed.is_err());
    ensure!(!stream.is_done()?, "the stream is still held");
    drop(held);
    Ok(())
}

#[apply(case)]
fn a_callback_may_free_and_may_give_up(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let limited = Resource::new(LimitAdaptor::new(env.pool()?, 1000));
    let cache: Arc<Mutex<Vec<DeviceBuffer<u8>>>> = Arc::default();
    let (asked, kept) = (Arc::new(AtomicU32::new(0)), Arc::clone(&cache));
    let count = Arc::clone(&asked);
    let policy = RecoveryPolicy::new()
        .callback(move |error: &Error| {
            count.fetch_add(1, Ordering::Relaxed);
            assert_eq!(error.kind(), ErrorKind::OutOfMemory);
            let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.pop().is_some()
        })
        .retry();
    let resource = Resource::new(RecoveryAdaptor::new(limited.clone(), policy));
    let store = |buffer| {
        let mut cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
        cache.push(buffer);
    };
    store(limited.alloc::<u8>(&stream, 600)?);
    let buffer = resource.alloc::<u8>(&stream, 600)?;
    ensure!(asked.load(Ordering::Relaxed) == 1);
    // Nothing left to free: the callback ends the climb.
    let Err(error) = resource.alloc::<u8>(&stream, 600) else {
        bail!("more than the limit was allocated");
    };
    let tried = error.out_of_memory().map(|memory| memory.tried.len());
    ensure!(tried == Some(1), "{error}");
    drop(buffer);
    drop(resource.alloc::<u8>(&stream, 600)?);
    Ok(())
}

/// It can never be served, so nothing is given up for it.
#[apply(case)]
fn requests_beyond_the_whole_limit_are_not_climbed_for(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let limited = Resource::new(LimitAdaptor::new(env.pool()?, 1000));
    let asked = Arc::new(AtomicU32::new(0));
    let count = || {
        let asked = Arc::clone(&asked);
        move || asked.fetch_add(1, Ordering::Relaxed) == 0
    };
    let (of_policy, of_adaptor) = (count(), count());
    let policy = RecoveryPolicy::new()
        .flush_caches()
        .callback(move |_| of_policy());
    let recovering = RecoveryAdaptor::new(limited.clone(), policy);
    let calling = FailureCallbackAdaptor::new(limited, move |_, _| of_adaptor());
    for resource in [Resource::new(recovering), Resource::new(calling)] {
        let Err(error) = resource.alloc::<u8>(&stream, 1001) else {
            bail!("more than the limit was allocated");
        };
        let memory = error.out_of_memory();
        ensure!(
            memory.is_some_and(|memory| memory.tried.is_empty()),
            "{error}"
        );
        ensure!(asked.load(Ordering::Relaxed) == 0, "{error}");
    }
    Ok(())
}

#[apply(case)]
fn other_errors_are_not_climbed_for(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    let policy = RecoveryPolicy::new().callback(|_| panic!("it is not out of memory"));
    let failed: Result<(), Error> = policy.recover(&pool, &stream, || {
        Err(Error::new(ErrorKind::InvalidValue, "no"))
    });
    ensure!(failed.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
    Ok(())
}

#[apply(case_of_full_card)]
fn a_full_card_recovers(env: &Environment) -> Result<()> {
    const GIB: u64 = 1 << 30;
    let (pool, stream) = (env.pool()?, env.stream()?);
    let context = stream.context().clone();
    let mut blocks = Vec::new();
    let is_fuller = |reserve: u64| context.memory_info().map(|info| info.free < reserve);
    while !is_fuller(3 * GIB)? {
        blocks.push(pool.alloc::<u8>(&stream, 1 << 30)?);
    }
    ensure!(
        is_fuller(3 * GIB)?,
        "within 2 GiB of full, give or take a block"
    );
    ensure!(!blocks.is_empty());
    let before = blocks.len();

    let Err(error) = pool.alloc::<u8>(&stream, 4 << 30) else {
        bail!("4 GiB were allocated where less was free");
    };
    println!("{error}");
    let Some(memory) = error.out_of_memory() else {
        bail!("no numbers: {error}");
    };
    ensure!(memory.device_free.is_some_and(|free| free < 4 * GIB));
    if env.need(11, 3).is_ok() {
        ensure!(memory.pool_used == Some(before as u64 * GIB), "{error}");
    }

    // The policy frees a block each time that it is asked, until the request fits.
    let blocks = Arc::new(Mutex::new(blocks));
    let store = Arc::clone(&blocks);
    let mut policy = RecoveryPolicy::new()
        .flush_caches()
        .wait_for_stream()
        .trim_graph_memory();
    for _ in 0..8 {
        let store = Arc::clone(&store);
        policy = policy
            .callback(move |_| {
                let mut store = store.lock().unwrap_or_else(PoisonError::into_inner);
                store.pop().is_some()
            })
            .wait_for_stream();
    }
    let resource = Resource::new(RecoveryAdaptor::new(pool.clone(), policy));
    let large = resource.alloc::<u8>(&stream, 4 << 30)?;
    end_of(&large).fill(7)?;
    let left = blocks.lock().unwrap_or_else(PoisonError::into_inner).len();
    println!("{before} blocks of 1 GiB filled the card, {left} are left beside 4 GiB");
    ensure!(left < before);

    // And on it goes.
    for _ in 0..10 {
        drop(resource.alloc_zeroed::<u8>(&stream, 1 << 20)?);
    }
    ensure!(end_of(&large).to_vec()? == [7; 4]);
    Ok(())
}

/// The last bytes of a large buffer.
fn end_of(buffer: &DeviceBuffer<u8>) -> DeviceBuffer<u8> {
    let start = buffer.as_raw() + buffer.len() as u64 - 4;
    // SAFETY: a part of the buffer, which the caller keeps and does not use meanwhile.
    unsafe { DeviceBuffer::borrow_raw(buffer.stream(), start, 4, ()) }
}
