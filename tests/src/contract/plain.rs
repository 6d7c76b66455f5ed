//! Memory that did not come from a pool of this crate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::sys::CUresult;
use cuda_mem::{DeviceBuffer, ErrorKind, Stream};

use crate::environment::Environment;
use crate::hold::hold;

/// `bytes` of `cuMemAlloc`.
fn plain(stream: &Stream, bytes: usize) -> Result<u64> {
    let allocate = stream.device().driver().table().cuMemAlloc_v2;
    let allocate = allocate.context("no cuMemAlloc")?;
    let _current = stream.context().bind()?;
    let mut address = 0;
    // SAFETY: a context is current, and `address` is valid for a write.
    let code = unsafe { allocate(&raw mut address, bytes) };
    ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
    Ok(address)
}

#[apply(case_alone)]
fn plain_memory_is_freed_in_the_order_of_a_stream(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let address = plain(&stream, 4000)?;
    // SAFETY: allocated above, and freed by nobody else.
    let mut buffer = unsafe { DeviceBuffer::<u32>::from_raw(&stream, address, 1000) };
    buffer.fill(7)?;
    ensure!(buffer.to_vec()? == [7; 1000]);
    let held = hold(&stream)?;
    buffer.fill(8)?;
    drop(buffer);
    ensure!(!stream.is_done()?, "the free waits its turn");
    drop(held);
    stream.synchronize()?;
    ensure!(
        env.driver.pointer_info(address)?.is_none(),
        "it is gone when the stream has got there"
    );
    Ok(())
}

#[apply(case)]
fn borrowed_memory_is_used_and_not_freed(env: &Environment) -> Result<()> {
    let (stream, other) = (env.stream()?, env.stream()?);
    let owner = env.pool()?.alloc_from(&stream, &[1_u8, 2, 3, 4])?;
    let dropped = Arc::new(AtomicU32::new(0));
    struct Count(Arc<AtomicU32>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let borrow = |len| {
        let keep = Count(Arc::clone(&dropped));
        // SAFETY: `owner` outlives the buffers, and is not used while they live.
        unsafe { DeviceBuffer::<u8>::borrow_raw(&stream, owner.as_raw(), len, keep) }
    };
    let mut view = borrow(4);
    ensure!(view.to_vec()? == [1, 2, 3, 4]);
    view.on(&other)?.fill(9)?;
    let Err(failed) = view.into_raw() else {
        bail!("somebody else's memory was given out of hand");
    };
    ensure!(failed.error.kind() == ErrorKind::InvalidValue);
    ensure!(dropped.load(Ordering::Relaxed) == 0, "it came back");
    drop(failed);
    ensure!(dropped.load(Ordering::Relaxed) == 1);
    borrow(2).free()?;
    borrow(1).free_on(&other)?;
    borrow(0).free_sync()?;
    ensure!(dropped.load(Ordering::Relaxed) == 4);
    ensure!(owner.to_vec()? == [9; 4], "it was written, not freed");
    Ok(())
}
