//! Driver calls of a warm arena, by the number of streams that take turns on a thread.

use std::collections::VecDeque;

use anyhow::Result;
use cuda_mem::{
    Arena, Context, Device, DeviceBuffer, MemoryPool, ReleaseThreshold, Resource, ReusePolicy,
    Stream,
};

use crate::draws::Draws;

const STREAMS: [usize; 4] = [1, 4, 16, 64];
/// Name, policy, and the arena's initial bytes.
const KINDS: [(&str, ReusePolicy, u64); 5] = [
    ("default", ReusePolicy::DRIVER_DEFAULT, 0),
    ("opportunistic", ReusePolicy::ALLOW_OPPORTUNISTIC, 0),
    ("deterministic", ReusePolicy::DETERMINISTIC, 0),
    (
        "default, initially 512 MiB",
        ReusePolicy::DRIVER_DEFAULT,
        512 << 20,
    ),
    (
        "opportunistic, initially 512 MiB",
        ReusePolicy::ALLOW_OPPORTUNISTIC,
        512 << 20,
    ),
];
/// Blocks kept by each stream.
const ALIVE: usize = 4;
/// After this many operations the thread waits for the current stream.
const WAIT: usize = 64;

/// A thread with streams that take turns.
struct Program {
    resource: Resource,
    streams: Vec<(Stream, VecDeque<DeviceBuffer<u8>>)>,
    draws: Draws,
    asked: usize,
    most_asked: usize,
}

impl Program {
    fn new(context: &Context, count: usize, resource: Resource) -> cuda_mem::Result<Self> {
        let streams = (0..count).map(|_| Ok((context.stream()?, VecDeque::new())));
        Ok(Self {
            resource,
            streams: streams.collect::<cuda_mem::Result<_>>()?,
            draws: Draws::new(1),
            asked: 0,
            most_asked: 0,
        })
    }

    /// Allocates and fills a block, and frees the stream's oldest, this many times.
    fn run(&mut self, operations: usize) -> Result<()> {
        for operation in 1..=operations {
            let turn = operation % self.streams.len();
            let (stream, alive) = &mut self.streams[turn];
            let power = 256_usize << (self.draws.next() % 12);
            let bytes = power + self.draws.next() as usize % power;
            let mut block = self.resource.alloc::<u8>(stream, bytes)?;
            block.fill(1)?;
            self.asked += block.len();
            self.most_asked = self.most_asked.max(self.asked);
            alive.push_back(block);
            if alive.len() > ALIVE {
                let oldest = alive.pop_front();
                self.asked -= oldest.map_or(0, |oldest| oldest.len());
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
         {ALIVE} kept by each stream, freed in order on their stream; a wait every {WAIT} operations. The most that was asked \
         for and reserved, over the driver's pool, which keeps what it has, and over an arena; the driver calls of the \
         arena over operations, of {operations} operations after as many\n"
    );
    println!("streams     asked      pool     arena  calls/op   policy");
    let context = device.primary_context()?;
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    for (name, reuse, initial) in KINDS {
        for count in STREAMS {
            let pool = MemoryPool::builder(device)
                .reuse(reuse)
                .release_threshold(ReleaseThreshold::Never)
                .build()?;
            let mut program = Program::new(&context, count, Resource::from(pool.clone()))?;
            program.run(2 * operations)?;
            let in_pool = pool.stats()?.reserved.high;
            drop(program);
            let builder = Arena::builder(device).reuse(reuse);
            let arena = builder.initial_bytes(initial).build()?;
            let mut program = Program::new(&context, count, Resource::from(arena.clone()))?;
            program.run(operations)?;
            let before = arena.stats().driver_calls;
            program.run(operations)?;
            let stats = arena.stats();
            let calls = (stats.driver_calls - before) as f64 / operations as f64;
            let (asked, in_pool) = (mib(program.most_asked as u64), mib(in_pool));
            let in_arena = mib(stats.reserved_peak);
            println!("{count:7}  {asked:>8}  {in_pool:>8}  {in_arena:>8}  {calls:8.4}   {name}");
        }
    }
    Ok(())
}
