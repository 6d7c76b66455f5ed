//! cudarc uses memory of cuda-mem on one of its own streams.
//!
//! `cargo run --manifest-path cuda-mem/benches/cudarc/Cargo.toml --example beside`, on a machine with a GPU.

use anyhow::{Result, ensure};
use cuda_mem::{Driver, MemoryPool, Stream};
use cudarc::driver::CudaContext;

fn main() -> Result<()> {
    let n = 1 << 20;
    let theirs = CudaContext::new(0)?.new_stream()?;
    let device = Driver::load()?.device(0)?;
    let context = device.primary_context()?; // the same one
    let pool = MemoryPool::builder(&device).build()?;

    // SAFETY: the clone of the Arc keeps cudarc's stream alive as long as ours.
    let stream =
        unsafe { Stream::borrow_raw(&context, theirs.cu_stream().cast(), theirs.clone()) };
    let mut x = pool.alloc::<f32>(&stream, n)?;
    x.fill(0.5)?;
    // SAFETY: `n` elements on the same stream; `leak` keeps cudarc from freeing them.
    let view = unsafe { theirs.upgrade_device_ptr::<f32>(x.as_raw(), n) };
    let found = theirs.clone_dtoh(&view);
    view.leak(); // before an early return, which would free the memory twice
    let found = found?;
    ensure!(found == vec![0.5; n], "cudarc read something else");
    println!("cudarc read {n} elements of a pool of cuda-mem: {}", pool.stats()?);
    Ok(())
}
