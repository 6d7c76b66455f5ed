//! cudarc allocates from a pool of cuda-mem, without a change to the code that uses cudarc.
//!
//! `cargo run --example current_pool`, in this folder. Without a GPU it runs on the simulated driver.

use anyhow::{Result, ensure};
use cuda_mem::{Driver, MemoryPool, ReleaseThreshold};
use cudarc::driver::{CudaContext, DriverError};

#[path = "../tests/bridge/driver.rs"]
mod driver;

fn main() -> Result<()> {
    driver::restart_if_no_driver();
    let device = Driver::load()?.device(0)?;
    let pool = MemoryPool::builder(&device)
        .release_threshold(ReleaseThreshold::Never)
        .build()?;
    device.set_current_pool(&pool)?;

    let sum = with_cudarc_alone()?;
    ensure!(sum == 6.0, "cudarc read something else");

    let stats = pool.stats()?;
    ensure!(stats.used.high > 0, "cudarc did not allocate from the pool");
    println!("what cudarc has used: {stats}");
    Ok(())
}

/// Code that knows nothing of the pool.
fn with_cudarc_alone() -> Result<f32, DriverError> {
    let stream = CudaContext::new(0)?.new_stream()?;
    let numbers = stream.clone_htod(&[1.0f32, 2.0, 3.0])?;
    let copy = stream.clone_dtod(&numbers)?;
    Ok(stream.clone_dtoh(&copy)?.into_iter().sum())
}
