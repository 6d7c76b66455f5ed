//! Which devices can access each other's memory, and the two ways to move bytes between devices.
//!
//! ```sh
//! cargo run --example peers                          # on the GPUs of this machine
//! CUDA_SIM_DEVICES=2 cargo run --example peers       # on two simulated ones, without a GPU
//! ```

use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Parser;
use cuda_mem::{Device, MemoryPool, Stream};
use cuda_mem_console::{EXIT_CODES, OneDeviceOption, bytes, say};

/// Shows which devices reach each other's memory, and copies from each to each
#[derive(Debug, Parser)]
#[command(name = "peers", after_help = EXIT_CODES)]
struct Args {
    #[command(flatten)]
    device: OneDeviceOption,
}

fn main() -> ExitCode {
    cuda_mem_console::main(run)
}

fn run(args: &Args) -> Result<()> {
    let backend = cuda_mem_console::open()?;
    let sources = args.device.of(backend.driver)?;
    let all = backend.driver.devices()?;
    let plural = if all.len() == 1 { "" } else { "s" };
    say!(
        "driver: {}, CUDA {}, {} device{plural}",
        backend.name(),
        backend.driver.version(),
        all.len()
    )?;
    for from in &sources {
        for to in all.iter().filter(|to| *to != from) {
            show(from, to)?;
        }
    }
    if all.len() < 2 {
        say!("one device has no peers; CUDA_SIM_DEVICES=2 gives the simulated driver two")?;
    }
    Ok(())
}

fn show(from: &Device, to: &Device) -> Result<()> {
    let here = from.primary_context()?.stream()?;
    let there = to.primary_context()?.stream()?;

    // A copy works between any two devices, through the host if necessary.
    let copied = copy(&here, &there)?;
    say!("{from} to {to}: {} copied", bytes(copied as u64))?;

    // A peer can access the memory directly, once its pool allows that.
    if !to.can_access_peer(from)? {
        return say!("{from} to {to}: not peers, so no direct access");
    }
    let pool = MemoryPool::builder(from).accessible_from([to]).build()?;
    let mut buffer = pool.alloc_zeroed::<u32>(&here, 1024)?;
    buffer.on(&there)?.fill(7)?; // runs on `to`, in the memory of `from`
    ensure!(
        buffer.to_vec()? == [7; 1024],
        "the peer's fill did not arrive"
    );
    say!(
        "{from} to {to}: {} filled in place by {to}",
        bytes(buffer.size_bytes() as u64)
    )
}

fn copy(here: &Stream, there: &Stream) -> Result<usize> {
    let source = here
        .device()
        .default_pool()?
        .alloc_from(here, &[1_u8; 4096])?;
    let mut target = there.device().default_pool()?.alloc::<u8>(there, 4096)?;
    target.copy_from_device(&source)?; // waits for `here` on `there`, not on the host
    ensure!(
        target.to_vec()? == [1; 4096],
        "other bytes arrived than were sent"
    );
    Ok(target.size_bytes())
}
