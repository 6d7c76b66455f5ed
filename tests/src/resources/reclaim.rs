//! What a resource does not use goes to others of the process before memory is out.

use std::alloc::Layout;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::arena::SleepContents;
use cuda_mem::mapped::MappedMemory;
use cuda_mem::memory::{DirectResource, MemoryProperties, StatisticsAdaptor};
use cuda_mem::{Arena, Error, ErrorKind, MemoryResource, Resource, Stream};

use crate::environment::Environment;
use crate::hold::hold;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// Fills an arena with so many bytes, of which one block stays.
fn fill(arena: &Arena, stream: &Stream, bytes: u64) -> Result<cuda_mem::DeviceBuffer<u8>> {
    let resource = Resource::from(arena.clone());
    let kept = resource.alloc::<u8>(stream, 1 << 20)?;
    let blocks: cuda_mem::Result<Vec<_>> = (0..bytes / GIB)
        .map(|_| resource.alloc::<u8>(stream, 1 << 30))
        .collect();
    drop(blocks?);
    stream.synchronize()?;
    ensure!(arena.stats().reserved >= bytes, "{}", arena.stats());
    Ok(kept)
}

#[apply(case_of_full_card)]
fn others_get_what_an_arena_does_not_use(env: &Environment) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    let other = env.stream()?;
    let context = stream.context().clone();
    let pool = env.pool()?;
    let arena = Arena::builder(&device).build()?;
    let second = Resource::from(Arena::builder(&device).build()?);
    let direct = Resource::new(DirectResource::new(device));
    for who in ["pool", "arena", "direct", "mapped", "the stream's pool"] {
        let free = context.memory_info()?.free;
        let most = free / GIB * GIB;
        let kept = fill(&arena, &stream, most - 4 * GIB)?;
        let asked = usize::try_from(most - 8 * GIB)?;
        let left = context.memory_info()?.free;
        ensure!(left < asked as u64, "{left} bytes are free of {free}");
        match who {
            "pool" => drop(pool.alloc::<u8>(&other, asked)?),
            "arena" => drop(second.alloc::<u8>(&other, asked)?),
            "direct" => drop(direct.alloc::<u8>(&other, asked)?),
            "mapped" => drop(MappedMemory::builder(&device).build(asked as u64)?),
            _ => drop(other.alloc::<u8>(asked)?),
        }
        let stats = arena.stats();
        ensure!(stats.reserved < GIB, "{who}: {stats}");
        ensure!(stats.live_blocks == 1, "{who}: {stats}");
        other.synchronize()?;
        pool.trim_to(0)?;
        second.trim_to(0)?;
        drop(kept);
        device.default_pool()?.trim_to(0)?;
    }

    // What is in use stays, and so does all where the shortage is not the device's.
    let free = context.memory_info()?.free;
    let kept = fill(&arena, &stream, 2 * GIB)?;
    let too_much = usize::try_from(free + 4 * GIB)?;
    let Err(error) = pool.alloc::<u8>(&other, too_much) else {
        bail!("{too_much} bytes of {free} free ones");
    };
    ensure!(error.kind() == ErrorKind::OutOfMemory, "{error}");
    ensure!(arena.stats().live_blocks == 1, "{}", arena.stats());
    drop(kept);
    let _kept = fill(&arena, &stream, 2 * GIB)?;
    let before = arena.stats().reserved;
    let small = Arena::builder(&device).max_bytes(4 << 20).build()?;
    let refused = Resource::from(small).alloc::<u8>(&other, 8 << 20);
    ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::OutOfMemory));
    ensure!(arena.stats().reserved == before, "{}", arena.stats());
    Ok(())
}

/// A pool grows in steps (R34), so that a small request can fail with more than its bytes free.
#[apply(case_of_full_card)]
fn a_small_request_gets_what_an_arena_does_not_use(env: &Environment) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    let (context, other) = (env.context()?, env.stream()?);
    let direct = Resource::new(DirectResource::new(device));
    for is_of_stream in [false, true] {
        let arena = Arena::builder(&device).build()?;
        let kept = fill(&arena, &stream, 2 * GIB)?;
        device.default_pool()?.trim_to(0)?;
        let free = context.memory_info()?.free;
        let mut taken = vec![direct.alloc::<u8>(&stream, usize::try_from(free - 20 * MIB)?)?];
        // A large request may leave more: an H200 had 39 MiB.
        let mut left = context.memory_info()?.free;
        while left > 24 * MIB && taken.len() < 64 {
            taken.push(direct.alloc::<u8>(&stream, 2 << 20)?);
            left = context.memory_info()?.free;
        }
        ensure!(left > 2 * MIB && left < 30 * MIB, "{left} bytes are free");
        if is_of_stream {
            drop(other.alloc::<u8>(1 << 20)?);
        } else {
            drop(env.pool()?.alloc::<u8>(&other, 1 << 20)?);
        }
        other.synchronize()?;
        ensure!(arena.stats().live_blocks == 1, "{}", arena.stats());
        drop((taken, kept));
    }
    Ok(())
}

/// An adaptor of this crate calls no code of the program, so nothing forbids the arena above it to give memory back.
#[apply(case_of_full_card)]
fn others_get_what_an_arena_over_an_adaptor_does_not_use(env: &Environment) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    let other = env.stream()?;
    let context = stream.context().clone();
    let counted = StatisticsAdaptor::new(DirectResource::new(device));
    let arena = Arena::builder_over(Resource::new(counted)).build()?;
    let direct = Resource::new(DirectResource::new(device));
    let most = context.memory_info()?.free / GIB * GIB;
    let kept = fill(&arena, &stream, most - 4 * GIB)?;
    let asked = usize::try_from(most - 8 * GIB)?;
    let left = context.memory_info()?.free;
    ensure!(left < asked as u64, "{left} bytes are free of {most}");
    drop(direct.alloc::<u8>(&other, asked)?);
    let stats = arena.stats();
    ensure!(stats.reserved < 2 * GIB, "{stats}");
    drop(kept);
    Ok(())
}

/// What the device does may need the other thread.
#[apply(case_of_full_card)]
fn an_arena_serves_others_while_a_request_waits_for_the_device(env: &Environment) -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(20);
    let (device, stream, busy) = (env.device()?, env.stream()?, env.stream()?);
    let below = Arena::over(DirectResource::new(device));
    let most = stream.context().memory_info()?.free / GIB * GIB;
    let kept = fill(&below, &stream, most - 4 * GIB)?;
    let asked = usize::try_from(most - 8 * GIB)?;
    let growing = Resource::from(Arena::builder(&device).build()?);
    let held = hold(&busy)?;
    let ask = |bytes| {
        let (growing, stream) = (growing.clone(), stream.clone());
        let (tell, told) = mpsc::channel();
        thread::spawn(move || tell.send(growing.alloc::<u8>(&stream, bytes)));
        told
    };
    let large = ask(asked);
    let early = large.recv_timeout(Duration::from_millis(200));
    let small = ask(64 << 20).recv_timeout(PATIENCE);
    let still = large.try_recv();
    drop(held);
    let waits = matches!(early, Err(RecvTimeoutError::Timeout));
    let still_waits = matches!(still, Err(TryRecvError::Empty));
    ensure!(
        waits && still_waits,
        "it had memory before the device was done"
    );
    small.context("it waits, too")??;
    large.recv_timeout(PATIENCE)??;
    drop(kept);
    Ok(())
}

/// As for a request, others are asked once the arena has none of its locks.
#[apply(case_of_full_card)]
fn an_arena_that_wakes_gets_what_others_do_not_use(env: &Environment) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    let arena = Arena::builder(&device).build()?;
    let _block = arena.alloc::<u8>(&stream, 4 << 30)?;
    // SAFETY: nothing uses the block before the arena is awake, nor its contents after that.
    unsafe { arena.sleep(SleepContents::Discard) }?;
    let below = Arena::over(DirectResource::new(device));
    let most = stream.context().memory_info()?.free / GIB * GIB;
    let kept = fill(&below, &stream, most - 2 * GIB)?;
    arena.wake()?;
    let (awake, left) = (arena.stats(), below.stats());
    ensure!(awake.asleep == 0, "{awake}");
    ensure!(left.reserved < 2 * GIB, "{left}");
    drop(kept);
    Ok(())
}

/// Memory of an arena, under a lock of its own.
#[derive(Debug)]
struct Locked {
    arena: Arena,
    lock: Mutex<()>,
    /// It was called from inside a call of itself. With a lock that waits, that would be a deadlock.
    is_reentered: AtomicBool,
}

// SAFETY: all memory comes from the arena and goes back there.
unsafe impl MemoryResource for Locked {
    fn allocate(&self, layout: Layout, stream: &Stream) -> cuda_mem::Result<u64> {
        let _locked = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.arena.allocate(layout, stream)
    }

    unsafe fn deallocate(
        &self,
        address: u64,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem::Result<()> {
        let Ok(_locked) = self.lock.try_lock() else {
            self.is_reentered.store(true, Ordering::Relaxed);
            return Err(Error::new(ErrorKind::Other, "called from itself"));
        };
        // SAFETY: the caller's.
        unsafe { self.arena.deallocate(address, layout, stream) }
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.arena.memory_properties()
    }
}

/// An arena over a resource of the program keeps what it has while the resource itself asks for memory.
#[apply(case_of_full_card)]
fn a_resource_with_a_lock_gets_nothing_back_while_it_asks_an_arena(
    env: &Environment,
) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    let locked = Arc::new(Locked {
        arena: Arena::builder(&device).build()?,
        lock: Mutex::default(),
        is_reentered: AtomicBool::new(false),
    });
    let above = Arena::over(Arc::clone(&locked));
    drop(above.alloc::<u8>(&stream, 8 << 20)?);
    stream.synchronize()?;
    let too_much = env.context()?.memory_info()?.total + GIB;
    let layout = Layout::from_size_align(usize::try_from(too_much)?, 256)?;
    let Err(error) = locked.allocate(layout, &stream) else {
        bail!("{too_much} bytes are more than the device has");
    };
    ensure!(error.kind() == ErrorKind::OutOfMemory, "{error}");
    ensure!(!locked.is_reentered.load(Ordering::Relaxed));
    ensure!(above.stats().reserved > 0, "{}", above.stats());
    above.trim_to(0)?;
    ensure!(above.stats().reserved == 0, "{}", above.stats());
    Ok(())
}
