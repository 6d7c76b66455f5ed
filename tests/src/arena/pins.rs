//! Pins, while memory is on its way back.

use std::alloc::Layout;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use cuda_mem::memory::MemoryProperties;
use cuda_mem::{Arena, ErrorKind, MemoryPool, MemoryResource, Resource, Stream};

use crate::environment::Environment;
use crate::forks;

const MIB: usize = 1 << 20;

/// A pool that tries to pin memory of the arena over it when that gives a block back.
struct Pinning {
    pool: MemoryPool,
    /// The arena, and addresses of its memory.
    over: Mutex<Option<(Arena, [u64; 2])>>,
    tried: AtomicU64,
    pinned: AtomicU64,
}

impl fmt::Debug for Pinning {
    /// Without the arena, which names what is below it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pinning({:?})", self.pool)
    }
}

// SAFETY: as of the pool.
unsafe impl MemoryResource for Pinning {
    fn allocate(&self, layout: Layout, stream: &Stream) -> cuda_mem::Result<u64> {
        self.pool.allocate(layout, stream)
    }

    unsafe fn deallocate(
        &self,
        address: u64,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem::Result<()> {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((arena, places)) = &*over {
            for place in places {
                let pinned = arena.pin(*place, 1);
                self.tried.fetch_add(1, Ordering::SeqCst);
                let count = u64::from(pinned.is_ok());
                self.pinned.fetch_add(count, Ordering::SeqCst);
            }
        }
        drop(over);
        // SAFETY: the caller's.
        unsafe { self.pool.deallocate(address, layout, stream) }
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.pool.memory_properties()
    }
}

/// The trim has chosen both blocks before the first one goes.
#[apply(case)]
fn memory_that_is_to_go_back_cannot_be_pinned_any_more(env: &Environment) -> Result<()> {
    let below = Arc::new(Pinning {
        pool: env.pool()?,
        over: Mutex::default(),
        tried: AtomicU64::new(0),
        pinned: AtomicU64::new(0),
    });
    let arena = Arena::over(Arc::clone(&below));
    let resource = Resource::from(arena.clone());
    let stream = env.stream()?;
    let first = resource.alloc::<u8>(&stream, 20 * MIB)?;
    let second = resource.alloc::<u8>(&stream, 20 * MIB)?;
    let places = [first.as_raw(), second.as_raw()];
    let [one, other] = places.map(|place| arena.piece_at(place));
    ensure!(one.is_some() && other.is_some() && one != other, "{one:?}");
    drop((first, second));
    stream.synchronize()?;
    let tell = |over| {
        *below.over.lock().unwrap_or_else(PoisonError::into_inner) = over;
    };
    tell(Some((arena.clone(), places)));
    let trimmed = arena.trim_to(0);
    // The two would keep each other.
    tell(None);
    trimmed?;
    let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
    let counts = (count(&below.tried), count(&below.pinned));
    ensure!(counts == (4, 0), "tried, pinned: {counts:?}");
    ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    Ok(())
}

/// A fork copies only the thread that forks. The lock that another one has at that moment is never free in the child.
#[apply(case_alone)]
fn a_forked_child_leaves_pins_alone(env: &Environment) -> Result<()> {
    forks::need()?;
    let arena = Arena::builder(&env.device()?).build()?;
    let stream = env.stream()?;
    let block = arena.alloc::<u8>(&stream, MIB)?;
    let place = block.as_raw();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let pinning = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                drop(arena.pin(place, 1)?);
            }
            Ok::<(), cuda_mem::Error>(())
        });
        // Enough to meet the lock.
        let forked = (0..40).try_for_each(|_| {
            let pin = arena.pin(place, 1)?;
            // SAFETY: the child uses only what refuses to act in a fork, and ends with _exit.
            let child = unsafe { forks::fork() }?;
            if child == 0 {
                let refused = arena.pin(place, 1).map(drop);
                let is_nowhere = arena.piece_at(place).is_none();
                drop(pin);
                let is_refused = refused.is_err_and(|error| error.kind() == ErrorKind::Forked);
                forks::end_child(is_refused && is_nowhere);
            }
            forks::ends_within(child, Duration::from_secs(20))
        });
        is_over.store(true, Ordering::Relaxed);
        let pinned = pinning.join().map_err(|_| anyhow!("the thread panicked"))?;
        pinned?;
        forked
    })?;
    drop(block);
    stream.synchronize()?;
    // No pin is left in the parent.
    arena.trim_to(0)?;
    ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    Ok(())
}
