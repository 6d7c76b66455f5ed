//! Blocks of a resource below an arena: where they end, and that the last one is not lost.
//!
//! A direct resource waits for the whole device when it frees, so nobody may hold a stream meanwhile.

use std::alloc::Layout;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, anyhow, ensure};
use cuda_mem::memory::{DirectResource, MemoryProperties};
use cuda_mem::{Arena, DeviceBuffer, Error, ErrorKind, MemoryResource, Resource, Stream};

use super::upstream::wait_until;
use crate::environment::Environment;

const MIB: usize = 1 << 20;
const GRANULE: u64 = 2 << 20;

/// Hands out one large block from its end, part by part, without a gap.
#[derive(Debug)]
struct Downwards {
    /// Where the parts begin, and how large they are.
    parts: Mutex<Vec<(u64, usize)>>,
    memory: DeviceBuffer<u8>,
    properties: MemoryProperties,
}

impl Downwards {
    fn new(env: &Environment, stream: &Stream) -> Result<Self> {
        let direct = DirectResource::new(env.device()?);
        let properties = direct.memory_properties();
        Ok(Self {
            parts: Mutex::default(),
            memory: Resource::new(direct).alloc::<u8>(stream, 256 * MIB)?,
            properties,
        })
    }

    fn is_in_one(&self, buffer: &DeviceBuffer<u8>) -> bool {
        let (start, end) = (buffer.as_raw(), buffer.as_raw() + buffer.len() as u64);
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts
            .iter()
            .any(|(from, bytes)| *from <= start && end <= from + *bytes as u64)
    }
}

// SAFETY: each address is handed out once, within a block that lives as long as this.
unsafe impl MemoryResource for Downwards {
    fn allocate(&self, layout: Layout, _: &Stream) -> cuda_mem::Result<u64> {
        let whole = self.memory.as_raw() + self.memory.len() as u64;
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let end = parts
            .last()
            .map_or(whole / GRANULE * GRANULE, |part| part.0);
        let start = end - layout.size() as u64;
        if start < self.memory.as_raw() {
            return Err(Error::new(ErrorKind::OutOfMemory, "the block is used up"));
        }
        parts.push((start, layout.size()));
        Ok(start)
    }

    unsafe fn deallocate(&self, _: u64, _: Layout, _: &Stream) -> cuda_mem::Result<()> {
        Ok(())
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.properties
    }
}

/// Each one ends where the one before begins.
#[apply(case)]
fn a_block_lies_in_one_of_blocks_that_come_downwards(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let (stream, other) = (env.stream()?, env.stream()?);
    let below = Arc::new(Downwards::new(env, &stream)?);
    let resource = Resource::from(Arena::over(Arc::clone(&below)));
    // A second stream, so that blocks do not stand in front.
    let _other = resource.alloc::<u8>(&other, 1000)?;
    for sizes in [[8, 8, 14], [3, 8, 9], [13, 2, 15], [1, 7, 20]] {
        let [first, second, large] = sizes.map(|mib| mib * MIB);
        let first = resource.alloc::<u8>(&stream, first)?;
        let second = resource.alloc::<u8>(&stream, second)?;
        // Now they are free, side by side.
        drop((first, second));
        let large = resource.alloc::<u8>(&stream, large)?;
        ensure!(below.is_in_one(&large), "{sizes:?} MiB: across two blocks");
    }
    Ok(())
}

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
