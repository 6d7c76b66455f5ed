//! Which devices reach each other's memory, and the two ways to bring bytes from one to another.
//!
//! ```sh
//! cargo run --example peers                          # on the GPUs of this machine
//! CUDA_SIM_DEVICES=2 cargo run --example peers       # on two simulated ones, without a GPU
//! ```

use cuda_mem::{Device, Driver, MemoryPool, Result, Stream};

fn main() -> Result<()> {
    cuda_sim::use_if_no_driver();
    let driver = Driver::load()?;
    let devices = driver.devices()?;
    println!("CUDA {}, {} device(s)", driver.version(), devices.len());
    for from in &devices {
        for to in devices.iter().filter(|to| *to != from) {
            show(from, to)?;
        }
    }
    if devices.len() < 2 {
        println!("nothing to show: one device has no peers");
    }
    Ok(())
}

fn show(from: &Device, to: &Device) -> Result<()> {
    let here = from.primary_context()?.stream()?;
    let there = to.primary_context()?.stream()?;

    // A copy works between any two devices, by way of the host if need be.
    let copied = copy(&here, &there)?;
    println!("{from:?} -> {to:?}: copied {copied} bytes");

    // A peer may work on the memory itself, once its pool lets it.
    if !to.can_access_peer(from)? {
        println!("{from:?} -> {to:?}: no peers, so no direct access");
        return Ok(());
    }
    let pool = MemoryPool::builder(from).accessible_from(to).build()?;
    let mut buffer = pool.alloc_zeroed::<u32>(&here, 1024)?;
    buffer.on(&there)?.fill(7)?; // runs on `to`, in the memory of `from`
    assert_eq!(buffer.to_vec()?, [7; 1024]);
    println!(
        "{from:?} -> {to:?}: {to:?} filled {} bytes in place",
        buffer.size_bytes()
    );
    Ok(())
}

fn copy(here: &Stream, there: &Stream) -> Result<usize> {
    let source = here
        .device()
        .default_pool()?
        .alloc_from(here, &[1_u8; 4096])?;
    let mut target = there.device().default_pool()?.alloc::<u8>(there, 4096)?;
    target.copy_from_buffer(&source)?; // waits for `here` on `there`, not on the host
    assert_eq!(target.to_vec()?, [1; 4096]);
    Ok(target.size_bytes())
}
