//! Memory whose release waits until no resource is asked: a request that needs it is made again.
//!
//! The queue of such releases belongs to the process, so these bodies run alone.

use std::alloc::Layout;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use cuda_mem::base::Remedy;
use cuda_mem::memory::{
    FailureCallbackAdaptor, LimitAdaptor, MemoryProperties, RecoveryAdaptor, RecoveryPolicy,
};
use cuda_mem::{Arena, Error, ErrorKind, MemoryPool, MemoryResource, Resource, Stream};

use crate::environment::Environment;
use crate::foreign;
use crate::hold::hold;

const MIB: usize = 1 << 20;

/// The mode of a capture that lets its thread do everything else.
const RELAXED: u32 = 2;

fn limited(env: &Environment) -> Result<(Arc<LimitAdaptor<cuda_mem::MemoryPool>>, Resource)> {
    let limited = Arc::new(LimitAdaptor::new(env.pool()?, 200 * MIB as u64));
    Ok((limited.clone(), Resource::from(limited)))
}

/// An arena that holds memory of `upstream`, and uses none of it.
fn cached(upstream: &Resource, stream: &Stream, bytes: usize) -> Result<Arena> {
    let arena = Arena::builder_over(upstream.clone()).build()?;
    drop(arena.alloc::<u8>(stream, bytes)?);
    stream.synchronize()?;
    Ok(arena)
}

#[apply(case_alone)]
fn arenas_that_callbacks_drop_serve_the_request(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    // All in one request, or one at a time.
    for is_eager in [true, false] {
        let (limit, upstream) = limited(env)?;
        let arenas: Result<Vec<_>> = (0..3)
            .map(|_| cached(&upstream, &stream, 50 * MIB))
            .collect();
        let arenas = Mutex::new(arenas?);
        let before = limit.allocated();
        ensure!(before >= 150 * MIB as u64, "{before}");
        let drop_one = move || {
            let mut arenas = arenas.lock().unwrap_or_else(PoisonError::into_inner);
            arenas.pop().is_some()
        };
        let resource = if is_eager {
            let adaptor = FailureCallbackAdaptor::new(upstream, move |_, _| drop_one());
            Resource::new(adaptor)
        } else {
            let policy = RecoveryPolicy::new().callback(move |_| drop_one());
            Resource::new(RecoveryAdaptor::new(upstream, policy))
        };
        let buffer = resource.alloc::<u8>(&stream, 190 * MIB)?;
        drop(buffer);
        ensure!(resource.alloc::<u8>(&stream, 201 * MIB).is_err());
        ensure!(limit.allocated() == 0, "{}", limit.allocated());
    }
    Ok(())
}

#[apply(case_alone)]
fn what_a_remedy_waited_for_serves_the_request(env: &Environment) -> Result<()> {
    let (own, user, stream) = (env.stream()?, env.stream()?, env.stream()?);
    for remedy in [Remedy::WaitForDevice, Remedy::WaitForStream] {
        let (limit, upstream) = limited(env)?;
        let busy = if remedy == Remedy::WaitForDevice {
            &user
        } else {
            &stream
        };
        let arena = cached(&upstream, &own, 150 * MIB)?;
        let buffer = arena.alloc::<u8>(&own, 150 * MIB)?;
        busy.wait_for(&own)?;
        let held = Mutex::new(Some(hold(busy)?));
        buffer.free_after([busy])?;
        drop(arena);
        let before = limit.allocated();
        ensure!(before >= 150 * MIB as u64, "the arena waits: {before}");
        let policy = RecoveryPolicy::new().callback(move |_| {
            drop(held.lock().unwrap_or_else(PoisonError::into_inner).take());
            true
        });
        let policy = match remedy {
            Remedy::WaitForDevice => policy.wait_for_device(),
            _ => policy.wait_for_stream(),
        };
        let resource = Resource::new(RecoveryAdaptor::new(upstream, policy));
        drop(resource.alloc::<u8>(&stream, 100 * MIB)?);
    }
    Ok(())
}

/// A limit that waits is asked only once what can be released is released. Without that, it would wait in vain.
#[apply(case_alone)]
fn a_limit_that_waits_counts_no_memory_that_a_capture_kept(env: &Environment) -> Result<()> {
    let (captured, stream) = (env.stream()?, env.stream()?);
    let limit = LimitAdaptor::new(env.pool()?, 1000).with_wait_timeout(Duration::from_secs(60));
    let limit = Arc::new(limit);
    let calls = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&calls);
    let adaptor = FailureCallbackAdaptor::new(limit.clone(), move |_, _| {
        count.fetch_add(1, Ordering::Relaxed);
        false
    });
    let resource = Resource::new(adaptor);
    let buffer = resource.alloc::<u8>(&captured, 600)?;
    foreign::begin(&captured, RELAXED)?;
    drop(buffer);
    foreign::end_well(&captured)?;
    ensure!(limit.allocated() == 600);
    drop(resource.alloc::<u8>(&stream, 600)?);
    ensure!(calls.load(Ordering::Relaxed) == 0 && limit.allocated() == 0);
    Ok(())
}

/// What has waited once does not wait again, and its error says so.
#[apply(case_alone)]
fn a_request_that_is_made_again_does_not_wait_again(env: &Environment) -> Result<()> {
    const SHORT: Duration = Duration::from_millis(20);
    let stream = env.stream()?;
    let limit = LimitAdaptor::new(env.pool()?, 1000).with_wait_timeout(SHORT);
    let limit = Resource::new(limit);
    let (_, cache) = limited(env)?;
    // They are of another resource, so their end is of no use.
    let arenas: Result<Vec<_>> = (0..3).map(|_| cached(&cache, &stream, MIB)).collect();
    let arenas = Mutex::new(arenas?);
    let calls = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&calls);
    let policy = RecoveryPolicy::new().callback(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        let mut arenas = arenas.lock().unwrap_or_else(PoisonError::into_inner);
        arenas.pop().is_some()
    });
    let resource = Resource::new(RecoveryAdaptor::new(limit, policy));
    let _most = resource.alloc::<u8>(&stream, 900)?;
    let Err(error) = resource.alloc::<u8>(&stream, 101) else {
        bail!("more than the limit was allocated");
    };
    ensure!(error.to_string().contains("after waiting for"), "{error}");
    let tried = error.out_of_memory().map(|memory| memory.tried.len());
    ensure!(tried == Some(1), "{error}");
    // Three times one arena was dropped, and the last time none.
    let calls = calls.load(Ordering::Relaxed);
    ensure!(calls == 4, "{calls} calls");
    Ok(())
}

/// Out of memory while it has an arena, which it drops; then it may not be asked.
#[derive(Debug)]
struct Fickle {
    pool: MemoryPool,
    arena: Mutex<Option<Arena>>,
}

// SAFETY: it hands out nothing.
unsafe impl MemoryResource for Fickle {
    fn allocate(&self, _: Layout, _: &Stream) -> cuda_mem::Result<u64> {
        let dropped = self
            .arena
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let kind = match dropped {
            Some(_) => ErrorKind::OutOfMemory,
            None => ErrorKind::NotPermitted,
        };
        Err(Error::new(kind, "as the test wants"))
    }

    unsafe fn deallocate(&self, _: u64, _: Layout, _: &Stream) -> cuda_mem::Result<()> {
        Ok(())
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.pool.memory_properties()
    }
}

/// The arena's end is put off until after the call, so the request is made again.
#[apply(case_alone)]
fn a_request_that_is_made_again_may_fail_in_another_way(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    let arena = cached(&Resource::from(pool.clone()), &stream, MIB)?;
    let resource = Resource::new(Fickle {
        pool,
        arena: Mutex::new(Some(arena)),
    });
    let Err(error) = resource.alloc::<u8>(&stream, 1000) else {
        bail!("it has no memory");
    };
    ensure!(error.kind() == ErrorKind::NotPermitted, "{error}");
    Ok(())
}
