//! What other threads may do while one is with the upstream.

use std::alloc::Layout;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, anyhow, ensure};
use cuda_mem::memory::MemoryProperties;
use cuda_mem::{Arena, MemoryResource, Resource, Stream};

use super::upstream::{Direction, SideBySide, wait_until};
use crate::environment::Environment;

const MIB: usize = 1 << 20;

/// Hands out parts of one block, and takes its time when it is told to.
#[derive(Debug)]
struct Slow {
    below: SideBySide,
    is_slow: AtomicBool,
    asked: AtomicBool,
    go: AtomicBool,
    came_late: AtomicBool,
}

impl Slow {
    fn new(env: &Environment, stream: &Stream) -> Result<Self> {
        Ok(Self {
            below: SideBySide::new(env, stream, Direction::Up)?,
            is_slow: AtomicBool::new(false),
            asked: AtomicBool::new(false),
            go: AtomicBool::new(false),
            came_late: AtomicBool::new(false),
        })
    }

    fn wait(&self) {
        if !self.is_slow.load(Ordering::SeqCst) {
            return;
        }
        self.asked.store(true, Ordering::SeqCst);
        wait_until(&self.go);
        let came = self.go.load(Ordering::SeqCst);
        self.came_late.store(!came, Ordering::SeqCst);
    }
}

// SAFETY: as of what is below.
unsafe impl MemoryResource for Slow {
    fn allocate(&self, layout: Layout, stream: &Stream) -> cuda_mem::Result<u64> {
        self.wait();
        self.below.allocate(layout, stream)
    }

    unsafe fn deallocate(&self, _: u64, _: Layout, _: &Stream) -> cuda_mem::Result<()> {
        self.wait();
        Ok(())
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.below.memory_properties()
    }
}

/// Allocates and frees from what the arena has, while another thread is with the upstream.
fn work_meanwhile(slow: &Slow, resource: &Resource, stream: &Stream) -> Result<()> {
    wait_until(&slow.asked);
    ensure!(slow.asked.load(Ordering::SeqCst), "nobody asked upstream");
    for turn in 0..200 {
        drop(resource.alloc::<u8>(stream, 1000 << (turn % 9))?);
    }
    slow.go.store(true, Ordering::SeqCst);
    Ok(())
}

#[apply(case)]
fn a_thread_that_grows_holds_up_no_other(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let (stream, other) = (env.stream()?, env.stream()?);
    let slow = Arc::new(Slow::new(env, &stream)?);
    let arena = Arena::over(Arc::clone(&slow));
    let resource = Resource::from(arena.clone());
    let _kept = resource.alloc::<u8>(&other, MIB)?;
    drop(resource.alloc::<u8>(&other, 4 * MIB)?);
    slow.is_slow.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let grows = scope.spawn(|| resource.alloc::<u8>(&stream, 40 * MIB));
        work_meanwhile(&slow, &resource, &other)?;
        let grown = grows.join().map_err(|_| anyhow!("a thread panicked"))??;
        ensure!(grown.len() == 40 * MIB, "{grown:?}");
        Ok(())
    })?;
    ensure!(!slow.came_late.load(Ordering::SeqCst), "the other waited");
    Ok(())
}

#[apply(case)]
fn a_thread_that_trims_holds_up_no_other(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let (stream, other) = (env.stream()?, env.stream()?);
    let slow = Arc::new(Slow::new(env, &stream)?);
    let arena = Arena::over(Arc::clone(&slow));
    let resource = Resource::from(arena.clone());
    let _kept = resource.alloc::<u8>(&other, MIB)?;
    drop(resource.alloc::<u8>(&stream, 40 * MIB)?);
    stream.synchronize()?;
    other.synchronize()?;
    slow.is_slow.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let trims = scope.spawn(|| arena.trim_to(0));
        work_meanwhile(&slow, &resource, &other)?;
        trims.join().map_err(|_| anyhow!("a thread panicked"))??;
        Ok::<(), anyhow::Error>(())
    })?;
    ensure!(!slow.came_late.load(Ordering::SeqCst), "the other waited");
    ensure!(arena.stats().reserved < 40 << 20, "{}", arena.stats());
    Ok(())
}
