//! Two programs share a buffer. Start it in two terminals: the first one has the memory and waits,
//! the second one doubles what is in it.
//!
//! `cargo run --example ipc`. Without a GPU it runs on the simulated driver. An argument is another
//! name to meet under.

use anyhow::Result;
use cuda_mem::{Channel, Device, Driver, ErrorKind, HandleTypes, Listener, MemoryPool, Stream};

fn main() -> Result<()> {
    cuda_sim::use_if_no_driver();
    let device = Driver::load()?.device(0)?;
    let stream = device.primary_context()?.stream()?;
    let name = std::env::args().nth(1);
    let name = name.as_deref().unwrap_or("cuda-mem-example-ipc");
    match Channel::connect(name) {
        Ok(channel) => import(&channel, &device, &stream),
        Err(error) if error.kind() == ErrorKind::PeerGone => export(name, &device, &stream),
        Err(error) => Err(error.into()),
    }
}

fn export(name: &str, device: &Device, stream: &Stream) -> Result<()> {
    let pool = MemoryPool::builder(device)
        .handle_types(HandleTypes::POSIX_FILE_DESCRIPTOR)
        .build()?;
    let mut numbers = pool.alloc_from(stream, &[1, 2, 3, 4])?;
    let listener = Listener::bind(name)?;
    println!("waiting; start me in another terminal too");
    let channel = listener.accept()?;
    channel.send_pool(&pool)?;
    channel.lend(&mut numbers)?.wait()?; // until the other one gives it back, or dies
    println!("the other process left {:?}", numbers.to_vec()?);
    Ok(())
}

fn import(channel: &Channel, device: &Device, stream: &Stream) -> Result<()> {
    let pool = channel.receive_pool(device)?;
    // SAFETY: the other end is this program, which lends the buffer until it is given back.
    let mut numbers = unsafe { channel.receive_buffer::<i32>(&pool, stream) }?;
    let found = numbers.to_vec()?;
    println!("the other process sent {found:?}");
    numbers.copy_from(&found.iter().map(|number| 2 * number).collect::<Vec<_>>())?;
    channel.give_back(numbers)?;
    Ok(())
}
