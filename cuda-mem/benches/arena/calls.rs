//! The driver calls of a warm arena, by the number of streams that take turns on a thread.

use std::collections::VecDeque;

use anyhow::Result;
use cuda_mem::{Arena, Device, DeviceBuffer, Resource, ReusePolicy, Stream};

use crate::draws::Draws;

const STREAMS: [usize; 4] = [1, 4, 16, 64];
const POLICIES: [(&str, ReusePolicy); 3] = [
    ("default", ReusePolicy::DRIVER_DEFAULT),
    ("opportunistic", ReusePolicy::ALLOW_OPPORTUNISTIC),
    ("deterministic", ReusePolicy::DETERMINISTIC),
];
/// Blocks that each stream keeps.
const ALIVE: usize = 4;
/// After this many operations the thread waits for the stream whose turn it is.
const WAIT: usize = 64;

/// A thread, and streams that take turns.
struct Program {
    resource: Resource,
    streams: Vec<(Stream, VecDeque<DeviceBuffer<u8>>)>,
    draws: Draws,
}

impl Program {
    /// One block is allocated and filled, and the oldest of the stream freed, this many times.
    fn run(&mut self, operations: usize) -> Result<()> {
        for operation in 1..=operations {
            let turn = operation % self.streams.len();
            let (stream, alive) = &mut self.streams[turn];
            let power = 256_usize << (self.draws.next() % 12);
            let bytes = power + self.draws.next() as usize % power;
            let mut block = self.resource.alloc::<u8>(stream, bytes)?;
            block.fill(1)?;
            alive.push_back(block);
            if alive.len() > ALIVE {
                alive.pop_front();
            }
            if operation % WAIT == 0 {
                stream.synchronize()?;
            }
        }
        Ok(())
    }
}

pub(crate) fn measure(device: &Device, operations: usize) -> Result<()> {
    println!(
        "\ncalls: one thread, streams that take turns, blocks of 256 B to 1 MiB (log-uniform), each filled, at most \
         {ALIVE} kept by each stream, freed in order on their stream; a wait every {WAIT} operations. Driver calls of the \
         arena over operations, of {operations} operations after as many\n"
    );
    println!("streams  calls/op  reserved   policy");
    let context = device.primary_context()?;
    for (name, reuse) in POLICIES {
        for count in STREAMS {
            let arena = Arena::builder(device).reuse(reuse).build()?;
            let streams = (0..count).map(|_| Ok((context.stream()?, VecDeque::new())));
            let mut program = Program {
                resource: Resource::from(arena.clone()),
                streams: streams.collect::<cuda_mem::Result<_>>()?,
                draws: Draws::new(1),
            };
            program.run(operations)?;
            let before = arena.stats().driver_calls;
            program.run(operations)?;
            let stats = arena.stats();
            let calls = (stats.driver_calls - before) as f64 / operations as f64;
            let reserved = stats.reserved >> 20;
            println!("{count:7}  {calls:8.4}  {reserved:4} MiB   {name}");
        }
    }
    Ok(())
}
