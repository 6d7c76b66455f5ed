//! Panics of a resource on the own thread of the arena above it.

use std::alloc::Layout;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cuda_mem::{Arena, MemoryResource as _, ReleaseThreshold};
use cuda_mem_tests::arena::moody::{Mood, moody};
use cuda_mem_tests::environment::Environment;

/// The error of a wrong free names the resource below, which panics when it is printed. The thread tells of that, and goes on.
#[apply(case)]
fn a_panic_on_an_arenas_own_thread_is_told(env: &Environment) -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(10);
    const KEPT: u64 = 8 << 20;
    let (stream, other) = (env.stream()?, env.stream()?);
    let (below, _) = moody(env)?;
    let builder = Arena::builder_over(Arc::clone(&below)).background_thread(true);
    let arena = builder
        .release_threshold(ReleaseThreshold::Bytes(KEPT))
        .build()?;
    let layout = Layout::from_size_align(1000, 256)?;
    let address = arena.allocate(layout, &stream)?;
    drop(arena.alloc::<u8>(&stream, 16 << 20)?);
    // SAFETY: no block starts there, which the arena is to notice; nothing uses the memory.
    unsafe { arena.deallocate(address + 256, layout, &other) }?;
    // SAFETY: allocated as this layout, and no work uses it.
    unsafe { arena.deallocate(address, layout, &stream) }?;
    let (tell, told) = channel();
    let tell = Mutex::new(tell);
    cuda_mem::base::on_drop_failure(move |failure| {
        let tell = tell.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = tell.send(failure.error.to_string());
    });
    below.set(Mood::PanicsWhenShown);
    let waited = stream.synchronize();
    let mut texts = std::iter::from_fn(|| told.recv_timeout(PATIENCE).ok());
    let is_told = texts.any(|text: String| text.contains("panicked on the arena's thread"));
    below.set(Mood::Good);
    cuda_mem::base::on_drop_failure(|_| {});
    waited?;
    ensure!(is_told, "the panic was not reported");
    drop(arena.alloc::<u8>(&stream, 32 << 20)?);
    stream.synchronize()?;
    let begin = Instant::now();
    while arena.stats().reserved > KEPT && begin.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    ensure!(arena.stats().reserved <= KEPT, "{}", arena.stats());
    Ok(())
}
