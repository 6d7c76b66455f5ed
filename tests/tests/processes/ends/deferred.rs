//! Scenes in which something ends while its release has to wait.

use std::alloc::Layout;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use cuda_mem::base::drop_counts;
use cuda_mem::memory::MemoryProperties;
use cuda_mem::placement::{AccessPattern, Lifetime, PlacedBuffer, PlacementRequest, Topology};
use cuda_mem::{Arena, MemoryPool, MemoryResource, Resource, Stream};
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::hold::hold;

/// Longer than work that was let go takes to end.
const PATIENCE: Duration = Duration::from_secs(15);

/// A buffer in a pool that the context of the stream keeps.
fn place_in_shared_pool(stream: &Stream) -> Result<PlacedBuffer<u8>> {
    let machine = Topology::gather(&[stream.device()])?;
    let request = PlacementRequest::bytes(1 << 20)
        .access(AccessPattern::Streaming)
        .lifetime(Lifetime::Short);
    let placed = request.place(&machine)?;
    Ok(placed.allocate(stream)?)
}

/// Everything of one handle of the context is dropped while a stream is busy: an arena over a pool, and a
/// placement in a pool of the host that the context keeps. Another handle's stream is idle.
pub(super) fn end_beside_an_idle_stream(env: &Environment) -> Result<()> {
    let device = env.device()?;
    let idle = device.primary_context()?.stream()?;
    let held = {
        let context = device.primary_context()?;
        let busy = context.stream()?;
        let placed = place_in_shared_pool(&busy)?;
        let arena = Arena::over(MemoryPool::builder(&device).build()?);
        let buffer = arena.alloc_zeroed::<u8>(&busy, 1 << 20)?;
        let held = hold(&busy)?;
        drop((placed, buffer, arena));
        held
    };
    drop(held);
    let began = Instant::now();
    // Each looks at what waits; some of it is done only a little later.
    while drop_counts().waiting > 0 && began.elapsed() < PATIENCE {
        idle.synchronize()?;
    }
    let counts = drop_counts();
    println!(
        "synchronised, {} wait, {} failures",
        counts.waiting, counts.failures
    );
    Ok(())
}

/// As above, and the pool that the context keeps is still in use when the context ends: a buffer of it lives on a
/// stream of another handle. The context ends where the arena gives its memory back, and its pool has to wait in turn.
pub(super) fn end_with_a_pool_in_use(env: &Environment) -> Result<()> {
    let device = env.device()?;
    let idle = device.primary_context()?.stream()?;
    let upstream = MemoryPool::builder(&device).build()?;
    let (held, buffer) = {
        let context = device.primary_context()?;
        let busy = context.stream()?;
        let placed = place_in_shared_pool(&busy)?;
        let pool = placed.pool().context("no pool is shared")?;
        // It holds neither the pool nor that handle of the context.
        let buffer = pool.alloc_zeroed::<u8>(&idle, 1000)?;
        let arena = Arena::over(upstream.clone());
        let block = arena.alloc_zeroed::<u8>(&busy, 1 << 20)?;
        let held = hold(&busy)?;
        drop((placed, block, arena));
        (held, buffer)
    };
    drop(held);
    let began = Instant::now();
    while upstream.stats()?.used.current > 0 && began.elapsed() < PATIENCE {
        idle.synchronize()?;
    }
    // The pool stays as long as its buffer.
    let waiting = drop_counts().waiting;
    drop(buffer);
    while drop_counts().waiting > 0 && began.elapsed() < PATIENCE {
        idle.synchronize()?;
    }
    let counts = drop_counts();
    println!(
        "synchronised, {waiting} and then {} wait, {} failures",
        counts.waiting, counts.failures
    );
    Ok(())
}

/// A resource with a lock of its own, which is held while it lets go of the last handle of an arena over it.
struct Locked {
    upstream: MemoryPool,
    state: Mutex<Option<Arena>>,
}

impl std::fmt::Debug for Locked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Locked")
    }
}

// SAFETY: memory comes from the pool and goes back there.
unsafe impl MemoryResource for Locked {
    fn allocate(&self, layout: Layout, stream: &Stream) -> cuda_mem::Result<u64> {
        let _state = self.state.lock();
        self.upstream.allocate(layout, stream)
    }

    unsafe fn deallocate(
        &self,
        address: u64,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem::Result<()> {
        let mut state = self.state.lock();
        if let Ok(arena) = &mut state {
            drop(arena.take());
        }
        // SAFETY: the caller's.
        unsafe { self.upstream.deallocate(address, layout, stream) }
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.upstream.memory_properties()
    }
}

pub(super) fn end_inside_deallocate(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let locked = Arc::new(Locked {
        upstream: env.pool()?,
        state: Mutex::default(),
    });
    let resource = Resource::from(locked.clone());
    let arena = Arena::over(resource.clone());
    drop(arena.alloc_zeroed::<u8>(&stream, 1000)?);
    let buffer = resource.alloc_zeroed::<u8>(&stream, 1000)?;
    stream.synchronize()?;
    if let Ok(mut state) = locked.state.lock() {
        *state = Some(arena);
    }
    // Ends the arena, whose memory is the resource's, while the resource holds its lock.
    drop(buffer);
    stream.synchronize()?;
    let counts = drop_counts();
    println!(
        "given back, {} wait, {} failures",
        counts.waiting, counts.failures
    );
    Ok(())
}

/// The work in the main thread's own stream never ends.
pub(super) fn leave_with_a_busy_stream(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let _current = context.bind()?;
    // With its last handle the context would end, and wait for the work.
    std::mem::forget(context.clone());
    std::mem::forget(hold(&context.per_thread_stream())?);
    println!("leaving");
    Ok(())
}
