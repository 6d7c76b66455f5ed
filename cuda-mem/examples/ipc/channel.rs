//! The program: a buffer goes to the other process and comes back.

use anyhow::Result;
use clap::Parser;
use cuda_mem::driver::HandleTypes;
use cuda_mem::interop::{Channel, Listener};
use cuda_mem::{Device, ErrorKind, MemoryPool, Stream};
use cuda_mem_console::{DeviceOption, EXIT_CODES, say};

/// Shares a buffer with another process: start it in two terminals
#[derive(Debug, Parser)]
#[command(name = "ipc", after_help = EXIT_CODES)]
pub(crate) struct Args {
    /// Name of the socket on which the two processes meet
    #[arg(default_value = "cuda-mem-example-ipc")]
    name: String,
    #[command(flatten)]
    device: DeviceOption,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let backend = cuda_mem_console::open()?;
    let device = args.device.of(&backend)?;
    let stream = device.primary_context()?.stream()?;
    match Channel::connect(&args.name) {
        Ok(channel) => import(&channel, &device, &stream),
        Err(error) if error.kind() == ErrorKind::PeerGone => export(&args.name, &device, &stream),
        Err(error) => Err(error.into()),
    }
}

fn export(name: &str, device: &Device, stream: &Stream) -> Result<()> {
    let pool = MemoryPool::builder(device)
        .handle_types(HandleTypes::POSIX_FILE_DESCRIPTOR)
        .build()?;
    let mut numbers = pool.alloc_from(stream, &[1, 2, 3, 4])?;
    let listener = Listener::bind(name)?;
    say!("waiting: start this program in another terminal too")?;
    let channel = listener.accept()?;
    channel.send_pool(&pool)?;
    channel.lend(&mut numbers)?.wait()?; // until the other process returns it, or exits
    say!("the other process left {}", list(&numbers.to_vec()?))
}

fn import(channel: &Channel, device: &Device, stream: &Stream) -> Result<()> {
    let pool = channel.receive_pool(device)?;
    // SAFETY: the other end is this program, which lends the buffer until it is returned.
    let mut numbers = unsafe { channel.receive_buffer::<i32>(&pool, stream) }?;
    let found = numbers.to_vec()?;
    say!("the other process sent {}", list(&found))?;
    numbers.copy_from(&found.iter().map(|number| 2 * number).collect::<Vec<_>>())?;
    channel.give_back(numbers)?;
    Ok(())
}

fn list(numbers: &[i32]) -> String {
    let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    numbers.join(", ")
}
