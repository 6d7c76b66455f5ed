//! Resources that a program writes itself: what the crate does with their errors, panics and locks.

use std::alloc::Layout;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, bail, ensure};
use cuda_mem::interop::CaptureMode;
use cuda_mem::memory::{
    AlignedAdaptor, LimitAdaptor, LoggingAdaptor, MemoryProperties, StatisticsAdaptor,
    TrackingAdaptor,
};
use cuda_mem::{DeviceBuffer, Error, ErrorKind, MemoryPool, MemoryResource, Resource, Stream};

use crate::environment::Environment;
use crate::foreign::{begin, end_well};
use crate::forks;
use crate::writers::Page;

/// Passes on to a pool, under a lock of its own, and does as it is told when memory comes back.
#[derive(Debug)]
struct Own {
    pool: MemoryPool,
    lock: Mutex<()>,
    refuses: AtomicBool,
    panics: AtomicBool,
    requests: AtomicU32,
    returns: AtomicU32,
}

impl Own {
    fn new(env: &Environment) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            pool: env.pool()?,
            lock: Mutex::default(),
            refuses: AtomicBool::new(false),
            panics: AtomicBool::new(false),
            requests: AtomicU32::new(0),
            returns: AtomicU32::new(0),
        }))
    }
}

// SAFETY: all memory comes from the pool and goes back there.
unsafe impl MemoryResource for Own {
    fn allocate(&self, layout: Layout, stream: &Stream) -> cuda_mem::Result<u64> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let _locked = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.pool.allocate(layout, stream)
    }

    unsafe fn deallocate(
        &self,
        address: u64,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem::Result<()> {
        self.returns.fetch_add(1, Ordering::Relaxed);
        if self.refuses.load(Ordering::Relaxed) {
            return Err(Error::new(ErrorKind::NotSupported, "not now"));
        }
        let _locked = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the caller's.
        unsafe { self.pool.deallocate(address, layout, stream) }?;
        if self.panics.load(Ordering::Relaxed) {
            // A panic that prints nothing.
            resume_unwind(Box::new("as it was told"));
        }
        Ok(())
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.pool.memory_properties()
    }
}

#[apply(case)]
fn a_refused_free_changes_nothing_and_may_be_tried_again(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let own = Own::new(env)?;
    let limited = Arc::new(LimitAdaptor::new(own.clone(), 1 << 30));
    let counted = Arc::new(StatisticsAdaptor::new(limited.clone()));
    let tracked = Arc::new(TrackingAdaptor::new(counted.clone()));
    let page = Page::default();
    let logged = Arc::new(LoggingAdaptor::new(tracked.clone(), page.clone()));
    let aligned = AlignedAdaptor::new(logged.clone(), 1 << 21)?;
    let resource = Resource::new(aligned);

    // Something before it, so that upstream's address is no multiple of the alignment.
    let first = own.pool.alloc::<u8>(&stream, 1000)?;
    let buffer = resource.alloc::<u8>(&stream, 1000)?;
    let bytes = limited.allocated();
    ensure!(bytes > 1000 && buffer.as_raw() % (1 << 21) == 0);
    own.refuses.store(true, Ordering::Relaxed);
    let Err(failed) = buffer.free() else {
        bail!("it was freed although that was refused");
    };
    ensure!(failed.error.kind() == ErrorKind::NotSupported, "{failed}");
    let Some(buffer) = failed.object else {
        bail!("the buffer did not come back");
    };
    ensure!(limited.allocated() == bytes);
    ensure!(counted.statistics().bytes.current == bytes.cast_signed());
    ensure!(tracked.live_count() == 1 && tracked.unknown_count() == 0);
    own.refuses.store(false, Ordering::Relaxed);
    buffer.free()?;
    ensure!(limited.allocated() == 0 && tracked.live_count() == 0);
    ensure!(
        tracked.unknown_count() == 0,
        "it went back by another address"
    );
    ensure!(counted.statistics().bytes.current == 0);
    logged.flush()?;
    let text = page.text();
    let actions: Vec<&str> = text
        .lines()
        .skip(1)
        .filter_map(|line| line.split(',').nth(2))
        .collect();
    ensure!(
        actions == ["allocate", "free", "allocate", "free"],
        "{text}"
    );
    drop(first);
    Ok(())
}

#[apply(case)]
fn a_resource_is_not_asked_to_take_back_nothing(env: &Environment) -> Result<()> {
    let (stream, own) = (env.stream()?, Own::new(env)?);
    let resource = Resource::from(own.clone());
    // Whatever it is given back is an error.
    own.refuses.store(true, Ordering::Relaxed);
    resource.alloc::<u8>(&stream, 0)?.free()?;
    resource.alloc::<[u8; 0]>(&stream, 1000)?.free()?;
    Ok(())
}

/// The memory was given back before the panic, so it must not be given back again.
#[apply(case)]
fn a_panic_is_an_error_and_nothing_is_freed_twice(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let own = Own::new(env)?;
    let buffer = Resource::from(own.clone()).alloc::<u8>(&stream, 1000)?;
    own.panics.store(true, Ordering::Relaxed);
    let Err(failed) = buffer.free() else {
        bail!("the panic was passed over");
    };
    ensure!(failed.error.kind() == ErrorKind::Other, "{failed}");
    ensure!(failed.object.is_none(), "it is lost, not given back again");
    own.panics.store(false, Ordering::Relaxed);
    let again = Resource::from(own.clone()).alloc_from(&stream, &[1_u8, 2, 3])?;
    ensure!(again.to_vec()? == [1, 2, 3]);
    if env.need(11, 3).is_ok() {
        ensure!(own.pool.stats()?.used.current == 3);
    }
    drop(again);
    // Adaptors count such memory as gone.
    let limited = Arc::new(LimitAdaptor::new(own.clone(), 1000));
    let counted = Arc::new(StatisticsAdaptor::new(limited.clone()));
    let tracked = Arc::new(TrackingAdaptor::new(counted.clone()));
    let buffer = Resource::from(tracked.clone()).alloc::<u8>(&stream, 1000)?;
    own.panics.store(true, Ordering::Relaxed);
    ensure!(buffer.free().is_err());
    own.panics.store(false, Ordering::Relaxed);
    ensure!(limited.allocated() == 0 && tracked.live_count() == 0);
    ensure!(counted.statistics().bytes.current == 0);
    Ok(())
}

/// Alone, because it captures. What waits for the end of a capture is not given back from inside a call
/// of the resource, which holds its lock there.
#[apply(case_alone)]
fn a_resource_with_a_lock_is_not_called_from_itself(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let own = Own::new(env)?;
    let resource = Resource::from(own.clone());
    let (held_back, later) = (
        resource.alloc::<u8>(&stream, 1000)?,
        resource.alloc::<u8>(&stream, 1000)?,
    );
    stream.synchronize()?;
    stream.capture(CaptureMode::Relaxed, |_| {
        drop(held_back);
        Ok(())
    })?;
    later.free()?;
    drop(resource.alloc::<u8>(&stream, 10)?);
    stream.synchronize()?;
    if env.need(11, 3).is_ok() {
        ensure!(own.pool.stats()?.used.current == 0);
    }
    Ok(())
}

/// The mode of a capture that lets its thread do everything else.
const RELAXED: u32 = 2;

/// Keeps a buffer, and drops it under its lock in every call.
#[derive(Debug)]
struct Caching {
    pool: MemoryPool,
    cached: Mutex<Option<DeviceBuffer<u8>>>,
    /// It was called from inside a call of itself. With a lock that waits, that would be a deadlock.
    is_reentered: AtomicBool,
}

impl Caching {
    fn drop_cached(&self) -> cuda_mem::Result<MutexGuard<'_, Option<DeviceBuffer<u8>>>> {
        match self.cached.try_lock() {
            Ok(mut cached) => {
                drop(cached.take());
                Ok(cached)
            }
            Err(_) => {
                self.is_reentered.store(true, Ordering::Relaxed);
                Err(Error::new(ErrorKind::Other, "called from itself"))
            }
        }
    }
}

// SAFETY: all memory comes from the pool and goes back there.
unsafe impl MemoryResource for Caching {
    fn allocate(&self, layout: Layout, stream: &Stream) -> cuda_mem::Result<u64> {
        let _locked = self.drop_cached()?;
        self.pool.allocate(layout, stream)
    }

    unsafe fn deallocate(
        &self,
        address: u64,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem::Result<()> {
        let _locked = self.drop_cached()?;
        // SAFETY: the caller's.
        unsafe { self.pool.deallocate(address, layout, stream) }
    }

    unsafe fn deallocate_after(
        &self,
        address: u64,
        layout: Layout,
        stream: &Stream,
        others: &[&Stream],
    ) -> cuda_mem::Result<()> {
        let _locked = self.drop_cached()?;
        // SAFETY: the caller's.
        unsafe { self.pool.deallocate_after(address, layout, stream, others) }
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.pool.memory_properties()
    }

    fn trim_to(&self, _: u64) -> cuda_mem::Result<()> {
        self.drop_cached().map(drop)
    }
}

/// Alone, because it captures. As above, where the program calls the resource's methods itself.
#[apply(case_alone)]
fn a_resource_with_a_lock_is_not_called_from_itself_when_called_directly(
    env: &Environment,
) -> Result<()> {
    env.need(11, 4)?;
    let stream = env.stream()?;
    let own = Arc::new(Caching {
        pool: env.pool()?,
        cached: Mutex::default(),
        is_reentered: AtomicBool::new(false),
    });
    let resource = Resource::from(own.clone());
    let layout = Layout::from_size_align(1000, 256)?;
    let addresses = [
        resource.allocate(layout, &stream)?,
        resource.allocate(layout, &stream)?,
    ];
    // SAFETY: of this resource, stream and layout; nothing uses it, and it is given back once.
    let deallocate = || unsafe { resource.deallocate(addresses[0], layout, &stream) };
    let other = env.stream()?;
    // SAFETY: as above.
    let deallocate_after =
        || unsafe { resource.deallocate_after(addresses[1], layout, &stream, &[&other]) };
    let calls: [(&str, &dyn Fn() -> cuda_mem::Result<()>); 4] = [
        ("trim_to", &|| resource.trim_to(0)),
        ("allocate", &|| {
            let address = resource.allocate(layout, &stream)?;
            // SAFETY: as above.
            unsafe { own.pool.deallocate(address, layout, &stream) }
        }),
        ("deallocate", &deallocate),
        ("deallocate_after", &deallocate_after),
    ];
    for (name, call) in calls {
        let held_back = resource.alloc::<u8>(&stream, 1000)?;
        let cached = own.pool.alloc(&stream, 1000)?;
        // The end of a capture of this crate would free the memory.
        begin(&stream, RELAXED)?;
        drop(held_back);
        end_well(&stream)?;
        *own.cached.lock().unwrap_or_else(PoisonError::into_inner) = Some(cached);
        call()?;
        ensure!(!own.is_reentered.load(Ordering::Relaxed), "by {name}");
        stream.synchronize()?;
    }
    ensure!(own.pool.stats()?.used.current == 0);
    Ok(())
}

/// Alone, because a fork copies only the thread that forks. What waits to be written is the parent's, and
/// locks may be held for ever.
#[apply(case_alone)]
fn a_forked_child_leaves_adaptors_alone(env: &Environment) -> Result<()> {
    let path = std::env::temp_dir().join(format!("cuda-mem-log-{}.csv", std::process::id()));
    let stream = env.stream()?;
    let logged = Arc::new(LoggingAdaptor::to_file(env.pool()?, &path)?);
    let tracked = Arc::new(TrackingAdaptor::new(logged.clone()));
    let counted = Arc::new(StatisticsAdaptor::new(tracked.clone()));
    let resource = Resource::from(counted.clone());
    let buffer = resource.alloc::<u8>(&stream, 1000)?;
    // SAFETY: the child asks adaptors, which must not wait or write there, and ends with _exit.
    let child = unsafe { forks::fork() }?;
    if child == 0 {
        let refused = |error: Error| error.kind() == ErrorKind::Forked;
        let fine = resource.alloc::<u8>(&stream, 10).is_err_and(refused)
            && logged.flush().is_err_and(refused)
            && counted.statistics().bytes.current == 0
            && tracked.live().is_empty();
        drop((buffer, resource, counted, tracked, logged));
        forks::end_child(fine);
    }
    forks::ends_well(child)?;
    drop(buffer);
    logged.flush()?;
    let text = std::fs::read_to_string(&path)?;
    std::fs::remove_file(&path)?;
    ensure!(
        text.lines().count() == 3,
        "header, allocation, free: {text}"
    );
    ensure!(counted.statistics().allocations.total == 1);
    Ok(())
}

/// Alone, because a fork copies only the thread that forks. The memory is the parent's, and so is the resource.
#[apply(case_alone)]
fn a_forked_child_calls_no_resource(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let own = Own::new(env)?;
    let resource = Resource::from(own.clone());
    let (buffer, other) = (
        resource.alloc::<u8>(&stream, 1000)?,
        resource.alloc::<u8>(&stream, 1000)?,
    );
    // SAFETY: the child asks for memory and gives some back, which must do nothing there, and ends with _exit.
    let child = unsafe { forks::fork() }?;
    if child == 0 {
        let refused = |error: &Error| error.kind() == ErrorKind::Forked;
        let asked = resource.alloc::<u8>(&stream, 1000).map(drop);
        let freed = other.free_after([&stream]).map_err(|failed| failed.error);
        drop(buffer);
        forks::end_child(
            asked.is_err_and(|error| refused(&error))
                && freed.is_err_and(|error| refused(&error))
                && own.requests.load(Ordering::Relaxed) == 2
                && own.returns.load(Ordering::Relaxed) == 0,
        );
    }
    forks::ends_well(child)?;
    drop((buffer, other));
    ensure!(own.returns.load(Ordering::Relaxed) == 2);
    Ok(())
}
