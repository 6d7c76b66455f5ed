//! Blocks of a slow resource below an arena: the last one is not lost.
//!
//! A direct resource waits for the whole device when it frees, so nobody may hold a stream meanwhile.

use std::alloc::Layout;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Result, anyhow, ensure};
use cuda_mem::memory::{DirectResource, MemoryProperties};
use cuda_mem::{Arena, MemoryResource, Resource, Stream};

use super::upstream::wait_until;
use crate::environment::Environment;

const MIB: usize = 1 << 20;

/// When it is told to, it lets another thread go on before it hands out a block.
#[derive(Debug)]
struct Slow {
    direct: DirectResource,
    is_slow: AtomicBool,
    asked: AtomicBool,
    go: AtomicBool,
    live: AtomicU64,
}

// SAFETY: memory is the direct resource's.
unsafe impl MemoryResource for Slow {
    fn allocate(&self, layout: Layout, stream: &Stream) -> cuda_mem::Result<u64> {
        if self.is_slow.load(Ordering::SeqCst) {
            self.asked.store(true, Ordering::SeqCst);
            wait_until(&self.go);
        }
        let address = self.direct.allocate(layout, stream)?;
        self.live.fetch_add(1, Ordering::SeqCst);
        Ok(address)
    }

    unsafe fn deallocate(
        &self,
        address: u64,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem::Result<()> {
        // SAFETY: the caller's.
        unsafe { self.direct.deallocate(address, layout, stream) }?;
        self.live.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.direct.memory_properties()
    }
}

/// The arena keeps the stream of its blocks, in which they go back, while it has any.
#[apply(case)]
fn a_block_that_comes_as_the_last_one_goes_is_not_lost(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let below = Arc::new(Slow {
        direct: DirectResource::new(env.device()?),
        is_slow: AtomicBool::new(false),
        asked: AtomicBool::new(false),
        go: AtomicBool::new(false),
        live: AtomicU64::new(0),
    });
    let live = || below.live.load(Ordering::SeqCst);
    let arena = Arena::over(Arc::clone(&below));
    let resource = Resource::from(arena.clone());
    let (stream, other) = (env.stream()?, env.stream()?);
    let first = resource.alloc::<u8>(&stream, 8 * MIB)?;
    below.is_slow.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let grows = scope.spawn(|| resource.alloc::<u8>(&other, 8 * MIB));
        wait_until(&below.asked);
        drop(first);
        stream.synchronize()?;
        arena.trim_to(0)?;
        ensure!(live() == 0, "{} blocks, {}", live(), arena.stats());
        below.go.store(true, Ordering::SeqCst);
        drop(grows.join().map_err(|_| anyhow!("a thread panicked"))??);
        Ok(())
    })?;
    ensure!(live() == 1, "{} blocks, {}", live(), arena.stats());
    other.synchronize()?;
    arena.trim_to(0)?;
    let stats = arena.stats();
    ensure!(live() == 0, "the arena kept {} blocks: {stats}", live());
    ensure!(stats.reserved == 0, "{stats}");
    Ok(())
}
