//! Memory from a resource below an arena whose stream is behind.

use std::alloc::Layout;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};
use cuda_mem::memory::MemoryProperties;
use cuda_mem::{
    Arena, Error, ErrorKind, MemoryPool, MemoryResource, Resource, ReusePolicy, Stream,
};

use crate::environment::Environment;
use crate::hold::{Held, hold};

const MIB: usize = 1 << 20;

/// A pool, with work in its stream behind a block when it is told to.
#[derive(Debug)]
struct Late {
    pool: MemoryPool,
    is_late: AtomicBool,
    held: Mutex<Option<Held>>,
}

// SAFETY: as of the pool.
unsafe impl MemoryResource for Late {
    fn allocate(&self, layout: Layout, stream: &Stream) -> cuda_mem::Result<u64> {
        let address = self.pool.allocate(layout, stream)?;
        if self.is_late.swap(false, Ordering::SeqCst) {
            let held = hold(stream);
            let held = held.map_err(|error| Error::new(ErrorKind::Other, error.to_string()))?;
            *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Some(held);
        }
        Ok(address)
    }

    unsafe fn deallocate(
        &self,
        address: u64,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem::Result<()> {
        // SAFETY: the caller's.
        unsafe { self.pool.deallocate(address, layout, stream) }
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.pool.memory_properties()
    }
}

/// A stream that takes what another one got and does not need is behind the upstream's stream, too.
#[apply(case)]
fn new_memory_is_used_in_the_upstreams_order(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let below = Arc::new(Late {
        pool: env.pool()?,
        is_late: AtomicBool::new(false),
        held: Mutex::default(),
    });
    let builder = Arena::builder_over(Arc::clone(&below));
    let arena = builder.reuse(ReusePolicy::ALLOW_OPPORTUNISTIC).build()?;
    let resource = Resource::from(arena.clone());
    let (first, second) = (env.stream()?, env.stream()?);
    // All of the first block of the pool.
    let kept = resource.alloc::<u8>(&second, 8 * MIB)?;
    second.synchronize()?;
    below.is_late.store(true, Ordering::SeqCst);
    // 1 MiB of this one is left.
    let block = resource.alloc::<u8>(&first, 19 * MIB)?;
    let other = resource.alloc::<u8>(&second, MIB)?;
    let are_done = (first.is_done()?, second.is_done()?);
    let held = below
        .held
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    ensure!(held.is_some(), "{}", arena.stats());
    drop(held);
    ensure!(
        are_done == (false, false),
        "{are_done:?}: {}",
        arena.stats()
    );
    drop((kept, block, other));
    Ok(())
}
