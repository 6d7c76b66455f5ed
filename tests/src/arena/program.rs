//! One random program.

use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use cuda_mem::{
    Arena, Context, DeviceBuffer, ErrorKind, MemoryPool, MemoryResource, Resource, ReusePolicy,
    Stream,
};

use super::log::{Expected, Log, fill};
use crate::annotated::Annotated;
use crate::environment::Environment;

/// What programs did.
#[derive(Clone, Debug, Default)]
pub(super) struct Tally {
    blocks: u64,
    checked: u64,
    /// Frees on another stream than the allocation's.
    pub(super) foreign: u64,
    /// Requests that an arena of limited size refused.
    pub(super) refused: u64,
    pub(super) taken_over: u64,
    pub(super) waits: u64,
    grown: u64,
    released: u64,
    hits: u64,
    /// Programs after which streams kept pages for larger blocks.
    pub(super) kept: u64,
    pub(super) moved: u64,
}

impl Tally {
    pub(super) fn add(&mut self, other: &Self) {
        self.blocks += other.blocks;
        self.checked += other.checked;
        self.foreign += other.foreign;
        self.refused += other.refused;
        self.taken_over += other.taken_over;
        self.waits += other.waits;
        self.grown += other.grown;
        self.released += other.released;
        self.hits += other.hits;
        self.kept += other.kept;
        self.moved += other.moved;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} blocks, {} looked at, {} from the front, {} freed on another stream, {} refused; memory \
             taken over {} times, {} waits, {} growths, {} pieces given back, {} moved; {} kept pages",
            self.blocks,
            self.checked,
            self.hits,
            self.foreign,
            self.refused,
            self.taken_over,
            self.waits,
            self.grown,
            self.released,
            self.moved,
            self.kept
        )
    }
}

/// A generator whose numbers depend on nothing but the seed.
struct Draw(u64);

impl Draw {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % end
    }

    /// Most blocks are small, some are many megabytes; sizes come again.
    fn words(&mut self) -> usize {
        let log = match self.below(20) {
            0..=9 => 4 + self.below(10),
            10..=17 => 12 + self.below(8),
            _ => 18 + self.below(5),
        };
        let base = 1_u64 << log;
        let extra = if self.below(2) == 0 {
            0
        } else {
            self.below(base)
        };
        (base + extra) as usize
    }
}

struct Block {
    buffer: DeviceBuffer<u32>,
    tag: u32,
}

/// What the threads of a program share.
struct Shared {
    context: Context,
    resource: Resource,
    arena: Arena,
    log: Log,
    /// Blocks that go from thread to thread.
    market: Mutex<Vec<Block>>,
    limited: bool,
}

/// One program in so many is long, on four threads that mostly stay on one stream.
const LONG: u64 = 100;

/// Runs the program of this seed. If a number of threads is given, the program is a long one on as many.
pub(super) fn run(env: &'static Environment, seed: u64, threads: Option<u64>) -> Result<Tally> {
    let mut draw = Draw::new(seed);
    let policies = [
        ReusePolicy::DRIVER_DEFAULT,
        ReusePolicy::DRIVER_DEFAULT,
        ReusePolicy::ALLOW_OPPORTUNISTIC,
        ReusePolicy::ALLOW_INTERNAL_DEPENDENCIES,
        ReusePolicy::DETERMINISTIC,
    ];
    let limited = draw.below(4) == 0;
    let mut builder = Arena::builder(&env.device()?).reuse(policies[draw.below(5) as usize]);
    if seed.is_multiple_of(2) {
        builder = builder.slack(1.0);
    }
    if limited {
        builder = builder.max_bytes((8 + draw.below(56)) << 20);
    }
    let arena = builder.build()?;
    let context = env.context()?;
    let (few, short) = (1 + draw.below(3), 20 + draw.below(40));
    let is_long = threads.is_some() || seed.is_multiple_of(LONG);
    let (threads, steps) = match threads {
        _ if !is_long => (few, short),
        Some(threads) => (threads.max(1), 2500),
        None => (4, 2000),
    };
    let pool = MemoryPool::builder(&env.device()?).build()?;
    let first = context.stream()?;
    let shared = Shared {
        log: Log::new(&pool, &first, (threads * steps * 2) as usize)?,
        resource: Resource::new(Annotated {
            arena: arena.clone(),
            control: env.control().ok(),
        }),
        arena,
        market: Mutex::default(),
        limited,
        context,
    };
    let count = if is_long { threads } else { 1 + draw.below(5) };
    let streams: Result<Vec<Stream>> = (0..count).map(|_| shared.stream()).collect();
    let streams = streams?;
    let outcomes: Vec<Result<(Tally, Vec<Expected>)>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (shared, streams) = (&shared, streams.clone());
                let draw = Draw::new(seed.wrapping_mul(31).wrapping_add(thread + 1));
                let own = is_long.then_some(thread as usize);
                scope.spawn(move || Worker::new(shared, streams, draw, thread, own).run(steps))
            })
            .collect();
        let ends = workers.into_iter().map(|worker| {
            worker
                .join()
                .unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
        });
        ends.collect()
    });
    let mut tally = Tally::default();
    let mut expected = Vec::new();
    for outcome in outcomes {
        let (part, seen) = outcome?;
        tally.add(&part);
        expected.extend(seen);
    }
    drop(std::mem::take(
        &mut *shared.market.lock().unwrap_or_else(PoisonError::into_inner),
    ));
    shared.context.synchronize()?;
    shared.log.check(&expected)?;
    tally.kept = u64::from(shared.arena.free_space().kept > 4 << 20);
    let stats = shared.arena.stats();
    ensure!(
        (stats.live, stats.live_blocks) == (0, 0),
        "left over: {stats}"
    );
    shared.arena.trim_to(0)?;
    let stats = shared.arena.stats();
    ensure!(stats.reserved == 0, "not given back: {stats}");
    tally.taken_over = stats.taken_over;
    tally.waits = stats.waits;
    tally.grown = stats.grown;
    tally.released = stats.released;
    tally.moved = stats.moved;
    tally.hits = stats.hits;
    Ok(tally)
}

impl Shared {
    fn stream(&self) -> Result<Stream> {
        let stream = self.context.stream()?;
        self.log.open_to(&stream)?;
        Ok(stream)
    }
}

struct Worker<'a> {
    shared: &'a Shared,
    streams: Vec<Stream>,
    /// The stream that it mostly stays on, in long programs.
    own: Option<usize>,
    draw: Draw,
    blocks: Vec<Block>,
    tally: Tally,
    expected: Vec<Expected>,
    next_tag: u32,
}

impl<'a> Worker<'a> {
    fn new(
        shared: &'a Shared,
        streams: Vec<Stream>,
        draw: Draw,
        thread: u64,
        own: Option<usize>,
    ) -> Self {
        Self {
            shared,
            streams,
            own,
            draw,
            blocks: Vec::new(),
            tally: Tally::default(),
            expected: Vec::new(),
            next_tag: ((thread as u32 + 1) << 24) | 1,
        }
    }

    fn run(mut self, steps: u64) -> Result<(Tally, Vec<Expected>)> {
        for _ in 0..steps {
            self.step()?;
        }
        while let Some(block) = self.blocks.pop() {
            self.end(block)?;
        }
        Ok((self.tally, self.expected))
    }

    fn stream(&mut self) -> Stream {
        let place = match self.own {
            Some(own) if self.draw.below(1500) != 0 => own,
            _ => self.draw.below(self.streams.len() as u64) as usize,
        };
        self.own = self.own.map(|_| place);
        self.streams[place].clone()
    }

    fn tag(&mut self) -> u32 {
        self.next_tag += 1;
        self.next_tag
    }

    fn any_block(&mut self) -> Option<Block> {
        if self.blocks.is_empty() {
            return None;
        }
        let place = self.draw.below(self.blocks.len() as u64) as usize;
        Some(self.blocks.swap_remove(place))
    }

    fn step(&mut self) -> Result<()> {
        let mut kind = self.draw.below(100);
        if self.own.is_some() && kind >= 73 && self.draw.below(16) != 0 {
            // Where blocks often go elsewhere, streams keep no pages.
            kind -= 50;
        }
        match kind {
            0..=43 => self.allocate(),
            44..=72 => match self.any_block() {
                Some(block) => self.end(block),
                None => self.allocate(),
            },
            73..=79 => self.write_elsewhere(),
            80..=84 => {
                let block = self.any_block();
                let mut market = self
                    .shared
                    .market
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                market.extend(block);
                Ok(())
            }
            85..=89 => {
                let mut market = self
                    .shared
                    .market
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                let block = market.pop();
                drop(market);
                self.blocks.extend(block);
                Ok(())
            }
            90..=93 => slow(&self.stream()),
            94..=95 => Ok(self.stream().synchronize()?),
            96 => Ok(self.shared.context.synchronize()?),
            97 => Ok(self.shared.arena.trim_to(self.draw.below(1 << 26))?),
            98 => {
                let stats = self.shared.arena.stats();
                let space = self.shared.arena.free_space();
                ensure!(space.largest <= space.bytes, "{space:?}");
                ensure!(stats.reserved <= stats.reserved_peak, "{stats}");
                Ok(())
            }
            _ => {
                let place = self.draw.below(self.streams.len() as u64) as usize;
                self.streams[place] = self.shared.stream()?;
                Ok(())
            }
        }
    }

    fn allocate(&mut self) -> Result<()> {
        let (stream, words) = (self.stream(), self.draw.words());
        let buffer = match self.shared.resource.alloc::<u32>(&stream, words) {
            Ok(buffer) => buffer,
            Err(error) if self.shared.limited && error.kind() == ErrorKind::OutOfMemory => {
                self.tally.refused += 1;
                return Ok(());
            }
            Err(error) => return Err(error).context("an allocation"),
        };
        let tag = self.tag();
        fill(&stream, buffer.as_raw(), words, tag)?;
        self.tally.blocks += 1;
        self.blocks.push(Block { buffer, tag });
        Ok(())
    }

    fn write_elsewhere(&mut self) -> Result<()> {
        let (Some(mut block), other) = (self.any_block(), self.stream()) else {
            return Ok(());
        };
        let tag = self.tag();
        let words = block.buffer.len();
        let loan = block.buffer.on(&other)?;
        fill(&other, loan.as_raw(), words, tag)?;
        drop(loan);
        block.tag = tag;
        self.blocks.push(block);
        Ok(())
    }

    /// Looks at a block and frees it, in one of the ways that there are.
    fn end(&mut self, mut block: Block) -> Result<()> {
        let way = self.draw.below(6);
        if way == 0 {
            let other = self.stream();
            self.tally.foreign += u64::from(other != *block.buffer.stream());
            block.buffer.set_stream(&other)?;
        }
        block.buffer.wait_for_pending_uses()?;
        if way == 2 {
            return self.end_after_another(block);
        }
        let buffer = &block.buffer;
        let seen =
            self.shared
                .log
                .note(buffer.stream(), buffer.as_raw(), buffer.len(), block.tag)?;
        self.tally.checked += u64::from(seen.is_some());
        self.expected.extend(seen);
        if way == 1 {
            let other = self.stream();
            self.tally.foreign += u64::from(other != *block.buffer.stream());
            block
                .buffer
                .free_on(&other)
                .map_err(|failed| failed.error)?;
        } else {
            drop(block.buffer);
        }
        Ok(())
    }
}

impl Worker<'_> {
    /// Another library uses the block on another stream, which the block's own does not wait for.
    fn end_after_another(&mut self, block: Block) -> Result<()> {
        let (other, tag) = (self.stream(), self.tag());
        let buffer = block.buffer;
        other.wait_for(buffer.stream())?;
        fill(&other, buffer.as_raw(), buffer.len(), tag)?;
        let seen = self
            .shared
            .log
            .note(&other, buffer.as_raw(), buffer.len(), tag)?;
        self.tally.checked += u64::from(seen.is_some());
        self.tally.foreign += u64::from(other != *buffer.stream());
        self.expected.extend(seen);
        buffer.free_after([&other]).map_err(|failed| failed.error)?;
        Ok(())
    }
}

/// Keeps a stream busy for a moment.
fn slow(stream: &Stream) -> Result<()> {
    unsafe extern "C" fn sleep(time: *mut c_void) {
        // SAFETY: the pointer is the Arc leaked below, and the driver calls this once.
        let time = unsafe { Arc::from_raw(time.cast::<Duration>()) };
        std::thread::sleep(*time);
    }
    let table = stream.device().driver().table();
    let launch = table.cuLaunchHostFunc.context("no cuLaunchHostFunc")?;
    let time = Arc::into_raw(Arc::new(Duration::from_micros(200)));
    // SAFETY: the stream is live, and `sleep` calls no driver function, as host functions must not.
    let code = unsafe { launch(stream.as_raw(), Some(sleep), time.cast_mut().cast()) };
    ensure!(
        code == cuda_mem::sys::CUresult::CUDA_SUCCESS,
        "cuLaunchHostFunc: {code}"
    );
    Ok(())
}
