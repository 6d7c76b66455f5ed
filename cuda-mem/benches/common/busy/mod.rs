//! Programs of several threads with work on their streams, over any resource.

mod cells;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use cuda_mem::kernel::{Function, Image, Launch};
use cuda_mem::{Context, Device, DeviceBuffer, Resource, Stream};

use crate::draws::Draws;
pub(crate) use cells::{CELLS, Cell, Frees, Sizes, Streams, Work, cells, coverage};

const KERNELS: &str = include_str!("../../../../tests/data/kernels.ptx");

/// Operations between two waits of a thread, if its program waits.
const WAIT: usize = 64;
/// Maximum number of blocks in transit to another thread. Further ones are freed by their owner.
const SENT: usize = 8;
/// Operations until a passing stream is dropped.
const STAY: usize = 100;

/// Length of a program: the limit reached first counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Length {
    /// Operations of each thread: one block is allocated, and usually one freed.
    pub(crate) operations: usize,
    pub(crate) time: Duration,
}

/// The results of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    /// Of all threads.
    pub(crate) operations: usize,
    /// The peak of allocated bytes.
    pub(crate) asked: u64,
    pub(crate) seconds: f64,
}

impl Sizes {
    /// Size of the next block.
    fn draw(self, draws: &mut Draws, is_late: bool) -> usize {
        // Log-uniform, from one power of two to below the other.
        let mut log = |from: u32, to: u32| {
            let power = 1_usize << (from + (draws.next() as u32) % (to - from));
            power + draws.next() as usize % power
        };
        match self {
            Self::Small => log(8, 14),
            Self::Mixed => log(8, 20),
            Self::Wide => log(8, 24),
            Self::Middle => 17_000 + draws.next() as usize % 983_000,
            Self::SmallThenLarge if is_late => log(20, 24),
            Self::SmallThenLarge => log(8, 14),
        }
    }

    /// Number of blocks that a thread keeps.
    fn alive(self) -> usize {
        match self {
            Self::Small | Self::Mixed => 32,
            Self::Wide | Self::SmallThenLarge => 8,
            Self::Middle => 4,
        }
    }
}

/// Bytes allocated by all threads.
#[derive(Debug, Default)]
struct Asked {
    now: AtomicU64,
    peak: AtomicU64,
}

impl Asked {
    fn add(&self, bytes: usize) {
        let now = self.now.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    fn take(&self, bytes: usize) {
        self.now.fetch_sub(bytes as u64, Ordering::Relaxed);
    }
}

struct Program<'a> {
    cell: Cell,
    length: Length,
    context: Context,
    shared: Stream,
    resource: &'a Resource,
    spin: Function,
    asked: Asked,
    begin: Instant,
}

/// Runs a program over a resource of the device. On return its memory is freed and its work is done.
pub(crate) fn run(
    device: &Device,
    resource: &Resource,
    cell: Cell,
    length: Length,
) -> Result<Done> {
    let context = device.primary_context()?;
    let spin = context.load(&Image::ptx(KERNELS)?)?.function("spin")?;
    let program = Program {
        cell,
        length,
        shared: context.stream()?,
        context,
        resource,
        spin,
        asked: Asked::default(),
        begin: Instant::now(),
    };
    let (to, from): (Vec<_>, Vec<_>) = (0..cell.threads).map(|_| sync_channel(SENT)).unzip();
    let operations: Result<usize> = std::thread::scope(|scope| {
        let threads: Vec<_> = from
            .into_iter()
            .enumerate()
            .map(|(number, from)| {
                let (program, next) = (&program, to[(number + 1) % cell.threads].clone());
                scope.spawn(move || Thread::new(program, number, next, from)?.run())
            })
            .collect();
        drop(to);
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
            .sum()
    });
    let operations = operations?;
    let seconds = program.begin.elapsed().as_secs_f64();
    program.context.synchronize()?;
    Ok(Done {
        operations,
        asked: program.asked.peak.load(Ordering::Relaxed),
        seconds,
    })
}

type Block = DeviceBuffer<u8>;

struct Thread<'a> {
    program: &'a Program<'a>,
    draws: Draws,
    streams: Vec<Stream>,
    /// For blocks freed on a stream other than these.
    side: Stream,
    next: SyncSender<Block>,
    from: Receiver<Block>,
}

impl<'a> Thread<'a> {
    fn new(
        program: &'a Program<'a>,
        number: usize,
        next: SyncSender<Block>,
        from: Receiver<Block>,
    ) -> Result<Self> {
        let own = match program.cell.streams {
            Streams::Shared => 0,
            Streams::Own | Streams::Passing => 1,
            Streams::Turns => 2,
            Streams::Four => 4,
        };
        let mut streams: Vec<Stream> = (0..own)
            .map(|_| program.context.stream())
            .collect::<cuda_mem::Result<_>>()?;
        if streams.is_empty() {
            streams.push(program.shared.clone());
        }
        Ok(Self {
            program,
            draws: Draws::new(number as u64 + 1),
            streams,
            side: program.context.stream()?,
            next,
            from,
        })
    }

    /// Returns the number of operations.
    fn run(mut self) -> Result<usize> {
        let Program { cell, length, .. } = *self.program;
        let mut alive: Vec<Block> = Vec::new();
        let mut ran = 0;
        for operation in 0..length.operations {
            if operation % WAIT == 0 && self.program.begin.elapsed() >= length.time {
                break;
            }
            if cell.streams == Streams::Passing && operation % STAY == STAY - 1 {
                self.streams[0] = self.program.context.stream()?;
            }
            let at = match cell.streams {
                Streams::Turns => operation % 2,
                Streams::Four => self.draws.next() as usize % 4,
                Streams::Own | Streams::Shared | Streams::Passing => 0,
            };
            let bytes = cell
                .sizes
                .draw(&mut self.draws, operation > length.operations / 2);
            let mut block = self
                .program
                .resource
                .alloc::<u8>(&self.streams[at], bytes)?;
            self.program.asked.add(bytes);
            self.work(&mut block)?;
            alive.push(block);
            if alive.len() > cell.sizes.alive() {
                let victim = self.draws.next() as usize % alive.len();
                self.give_back(alive.swap_remove(victim), at)?;
            }
            self.receive();
            if cell.waits && operation % WAIT == WAIT - 1 {
                self.streams[at].synchronize()?;
            }
            ran = operation + 1;
        }
        for block in alive {
            self.end(block);
        }
        self.receive();
        Ok(ran)
    }

    fn work(&mut self, block: &mut Block) -> Result<()> {
        match self.program.cell.work {
            Work::Nothing => {}
            Work::Fill => block.fill(1)?,
            Work::Kernel => {
                let nanoseconds = 10_000 + self.draws.next() % 190_000;
                let stream = block.stream().clone();
                let launch = Launch::over(1, 32);
                // SAFETY: the kernel takes a number, and accesses no memory.
                unsafe { self.program.spin.launch(&stream, launch, (nanoseconds,)) }?;
            }
        }
        Ok(())
    }

    fn give_back(&self, block: Block, at: usize) -> Result<()> {
        match self.program.cell.frees {
            Frees::SameStream => self.end(block),
            Frees::OtherStream => {
                self.program.asked.take(block.len());
                let other = match self.program.cell.streams {
                    Streams::Turns | Streams::Four => &self.streams[(at + 1) % self.streams.len()],
                    Streams::Own | Streams::Shared | Streams::Passing => &self.side,
                };
                block.free_on(other)?;
            }
            Frees::OtherThread => match self.next.try_send(block) {
                Ok(()) => {}
                Err(TrySendError::Full(block) | TrySendError::Disconnected(block)) => {
                    self.end(block);
                }
            },
        }
        Ok(())
    }

    fn end(&self, block: Block) {
        self.program.asked.take(block.len());
        drop(block);
    }

    fn receive(&self) {
        while let Ok(block) = self.from.try_recv() {
            self.end(block);
        }
    }
}
