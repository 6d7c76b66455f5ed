//! Blocks of a slow resource below an arena: the last one is not lost.
//!
//! A direct resource waits for the whole device when it frees, so nobody may hold a stream meanwhile.

use std::alloc::Layout;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context as _, Result, anyhow, ensure};
use cuda_mem::memory::{DirectResource, MemoryProperties};
use cuda_mem::{Arena, Device, Error, ErrorKind, MemoryResource, Resource, Stream};

use super::upstream::wait_until;
use crate::environment::Environment;

const MIB: usize = 1 << 20;

/// Slow: another thread goes on before it hands out a block. Refusing: it hands out nothing and takes nothing back.
#[derive(Debug)]
struct Slow {
    direct: DirectResource,
    is_slow: AtomicBool,
    refuses: AtomicBool,
    asked: AtomicBool,
    go: AtomicBool,
    live: AtomicU64,
}

impl Slow {
    fn new(device: Device) -> Arc<Self> {
        Arc::new(Self {
            direct: DirectResource::new(device),
            is_slow: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            go: AtomicBool::new(false),
            live: AtomicU64::new(0),
        })
    }
}

// SAFETY: memory is the direct resource's.
unsafe impl MemoryResource for Slow {
    fn allocate(&self, layout: Layout, stream: &Stream) -> cuda_mem::Result<u64> {
        if self.refuses.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::NotPermitted, "not now"));
        }
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
        if self.refuses.load(Ordering::SeqCst) {
            self.asked.store(true, Ordering::SeqCst);
            wait_until(&self.go);
            return Err(Error::new(ErrorKind::NotPermitted, "not now"));
        }
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
    let below = Slow::new(env.device()?);
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

/// As above, where the last one stays. Meanwhile a request fails, finds no block, and lets the stream go.
#[apply(case)]
fn the_last_block_is_not_lost_though_it_is_refused(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let below = Slow::new(env.device()?);
    let arena = Arena::over(Arc::clone(&below));
    let (stream, other) = (env.stream()?, env.stream()?);
    drop(arena.alloc::<u8>(&stream, 8 * MIB)?);
    stream.synchronize()?;
    below.refuses.store(true, Ordering::SeqCst);
    let (trimmed, failed) = std::thread::scope(|scope| {
        let trims = scope.spawn(|| arena.trim_to(0));
        wait_until(&below.asked);
        let failed = arena.alloc::<u8>(&other, 8 * MIB).map(drop);
        below.go.store(true, Ordering::SeqCst);
        (trims.join(), failed)
    });
    let trimmed = trimmed.map_err(|_| anyhow!("a thread panicked"))?;
    ensure!(
        trimmed.is_err() && failed.is_err(),
        "{trimmed:?}, {failed:?}"
    );
    below.refuses.store(false, Ordering::SeqCst);
    arena.trim_to(0)?;
    let (live, stats) = (below.live.load(Ordering::SeqCst), arena.stats());
    ensure!(live == 0, "the arena kept {live} blocks: {stats}");
    ensure!(stats.reserved == 0, "{stats}");
    Ok(())
}

/// Takes blocks of a direct resource, and trims an arena before it takes one back: so does a resource that has its memory
/// from that arena.
#[derive(Debug)]
pub(super) struct Trims {
    direct: DirectResource,
    above: Arena,
}

impl Trims {
    pub(super) fn new(device: Device, above: &Arena) -> Self {
        Self {
            direct: DirectResource::new(device),
            above: above.clone(),
        }
    }
}

// SAFETY: memory is the direct resource's.
unsafe impl MemoryResource for Trims {
    fn allocate(&self, layout: Layout, stream: &Stream) -> cuda_mem::Result<u64> {
        self.direct.allocate(layout, stream)
    }

    unsafe fn deallocate(&self, at: u64, layout: Layout, stream: &Stream) -> cuda_mem::Result<()> {
        self.above.trim_to(0)?;
        // SAFETY: the caller's.
        unsafe { self.direct.deallocate(at, layout, stream) }
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.direct.memory_properties()
    }
}

/// What one arena lacks is taken from another one when no locks are held that its resource may want.
#[apply(case_of_full_card)]
fn an_arena_without_memory_calls_resources_of_the_program_without_locks(
    env: &Environment,
) -> Result<()> {
    const GIB: usize = 1 << 30;
    let (device, stream) = (env.device()?, env.stream()?);
    let arena = Arena::builder(&device).build()?;
    let resource = Resource::from(arena.clone());
    let over = Arena::over(Trims::new(device, &arena));
    drop(over.alloc::<u8>(&stream, GIB)?);
    let plain = Arena::over(DirectResource::new(device));
    drop(plain.alloc::<u8>(&stream, GIB)?);
    stream.synchronize()?;
    let mut blocks = Vec::new();
    let error = loop {
        match resource.alloc::<u8>(&stream, GIB) {
            Ok(block) => blocks.push(block),
            Err(error) => break error,
        }
    };
    ensure!(error.kind() == ErrorKind::OutOfMemory, "{error}");
    ensure!(over.stats().reserved == 0, "{}", over.stats());
    ensure!(plain.stats().reserved == 0, "{}", plain.stats());
    Ok(())
}

/// Hands out blocks that begin beside a granule, and does not take some of them back at once.
#[derive(Debug)]
struct Reluctant {
    below: DirectResource,
    /// The next frees, from the lowest bit: those that are set are refused.
    refusals: AtomicU64,
    live: AtomicU64,
}

impl Reluctant {
    fn new(device: Device) -> Self {
        Self {
            below: DirectResource::new(device),
            refusals: AtomicU64::new(1),
            live: AtomicU64::new(0),
        }
    }
}

const BESIDE: usize = 512;

/// The block below, which has room for one that begins beside a granule.
fn wider(layout: Layout) -> cuda_mem::Result<Layout> {
    Layout::from_size_align(layout.size() + BESIDE, layout.align())
        .map_err(|_| Error::new(ErrorKind::InvalidValue, "it is too large"))
}

// SAFETY: a block lies in one of the direct resource, behind its first bytes.
unsafe impl MemoryResource for Reluctant {
    fn allocate(&self, layout: Layout, stream: &Stream) -> cuda_mem::Result<u64> {
        let address = self.below.allocate(wider(layout)?, stream)?;
        self.live.fetch_add(1, Ordering::SeqCst);
        Ok(address + BESIDE as u64)
    }

    unsafe fn deallocate(&self, at: u64, layout: Layout, stream: &Stream) -> cuda_mem::Result<()> {
        // One thread at a time frees here.
        let refusals = self.refusals.load(Ordering::SeqCst);
        self.refusals.store(refusals >> 1, Ordering::SeqCst);
        if refusals & 1 == 1 {
            return Err(Error::new(ErrorKind::Capturing, "not now"));
        }
        // SAFETY: the caller's.
        unsafe {
            self.below
                .deallocate(at - BESIDE as u64, wider(layout)?, stream)
        }?;
        self.live.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.below.memory_properties()
    }
}

#[apply(case)]
fn a_block_that_is_not_taken_back_at_once_is_not_lost(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let stream = env.stream()?;
    type End = fn(Arena, &Stream) -> Result<()>;
    let ends: [(&str, End); 3] = [
        ("another request", |arena, stream| {
            drop(arena.alloc::<u8>(stream, MIB)?);
            stream.synchronize()?;
            Ok(arena.trim_to(0)?)
        }),
        ("a trim", |arena, _| Ok(arena.trim_to(0)?)),
        ("its end", |arena, _| {
            drop(arena);
            Ok(())
        }),
    ];
    for ((what, end), times) in ends.into_iter().flat_map(|end| [(end, 1), (end, 2)]) {
        let below = Arc::new(Reluctant::new(env.device()?));
        let arena = Arena::over(Arc::clone(&below));
        let live = || below.live.load(Ordering::SeqCst);
        for time in 0..times {
            // The second request first gives back the block of the first one, and with it the arena's stream.
            below.refusals.store(1 << time, Ordering::SeqCst);
            let error = arena.alloc::<u8>(&stream, MIB).err().context("it fits")?;
            ensure!(error.kind() == ErrorKind::Capturing, "{error}");
            ensure!(live() == 1, "{} blocks", live());
        }
        end(arena, &stream)?;
        ensure!(live() == 0, "{what} leaves {} blocks of {times}", live());
    }
    Ok(())
}

/// The arena has nothing of the resource any more, and so no reason to keep a context.
#[apply(case_alone)]
fn a_block_that_was_taken_back_later_keeps_no_context(env: &Environment) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    let arena = Arena::over(Reluctant::new(device));
    ensure!(
        arena.alloc::<u8>(&stream, MIB).is_err(),
        "it was given back"
    );
    arena.trim_to(0)?;
    drop(stream);
    ensure!(
        !device.has_active_context()?,
        "nothing is allocated, and the context lives: {}",
        arena.stats()
    );
    Ok(())
}
