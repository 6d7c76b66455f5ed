//! One pass over the plan, with an observer.

use std::alloc::Layout;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Scope};

use anyhow::{Context as _, Result};
use cuda_mem::{MemoryResource, Resource, Stream};
use indicatif::ProgressBar;

use crate::plan::{Plan, Step, Turn};

/// Observes the operations. Empty methods cost nothing.
pub(crate) trait Watch: Send {
    fn turn_begins(&mut self) {}
    /// The operation with this index is done.
    fn done(&mut self, index: usize) -> Result<()> {
        let _ = index;
        Ok(())
    }
    fn turn_ends(&mut self) {}
}

/// A live block. Address 0 means none.
#[derive(Clone, Copy)]
struct Block {
    address: u64,
    layout: Layout,
    stream: usize,
}

const NO_BLOCK: Block = Block {
    address: 0,
    layout: Layout::new::<()>(),
    stream: 0,
};

/// Live blocks, by slot. Blocks rather than buffers, so that only the resource is timed. Remaining blocks are freed at
/// the end, even if a pass fails.
struct Live<'a> {
    blocks: Vec<Block>,
    stage: Stage<'a>,
}

impl<'a> Live<'a> {
    fn new(stage: Stage<'a>) -> Self {
        Self {
            blocks: vec![NO_BLOCK; stage.plan.slots],
            stage,
        }
    }

    fn end(&mut self) -> Result<()> {
        for block in &mut self.blocks {
            let Block {
                address,
                layout,
                stream,
            } = std::mem::replace(block, NO_BLOCK);
            if address == 0 {
                continue;
            }
            let stream = &self.stage.streams[stream];
            // SAFETY: allocated there with this layout and forgotten; no work uses it.
            unsafe { self.stage.resource.deallocate(address, layout, stream) }?;
        }
        Ok(())
    }
}

impl Drop for Live<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("a block could not be freed: {error:#}");
        }
    }
}

/// Everything a pass needs.
#[derive(Clone, Copy)]
pub(crate) struct Stage<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) resource: &'a Resource,
    pub(crate) streams: &'a [Stream],
    pub(crate) bar: &'a ProgressBar,
}

/// The state passed from thread to thread. Its holder has exclusive access, so no lock is needed.
struct Baton<'a, W> {
    live: Live<'a>,
    watch: W,
    turn: Turn,
}

/// A thread of the log, and its results.
struct Worker<'a, W> {
    give: Sender<Baton<'a, W>>,
    back: Receiver<(Baton<'a, W>, Result<()>)>,
}

impl<'a> Stage<'a> {
    /// Makes `passes` passes. `begin` creates the watch of each, and `end` receives it afterwards, when the remaining
    /// blocks are freed. The threads stay the same.
    pub(crate) fn passes<W: Watch>(
        self,
        passes: usize,
        mut begin: impl FnMut() -> Result<W>,
        mut end: impl FnMut(W) -> Result<()>,
    ) -> Result<()> {
        thread::scope(|scope| {
            let workers: Vec<Worker<'a, W>> = match self.plan.threads {
                0 | 1 => Vec::new(),
                threads => (0..threads).map(|_| self.worker(scope)).collect(),
            };
            for _ in 0..passes {
                let (mut live, watch) = self.pass(&workers, Live::new(self), begin()?)?;
                end(watch)?;
                live.end()?;
                for stream in self.streams {
                    stream.synchronize()?;
                }
            }
            Ok(())
        })
    }

    fn worker<'scope, W: Watch + 'scope>(self, scope: &'scope Scope<'scope, '_>) -> Worker<'a, W>
    where
        'a: 'scope,
    {
        let (give, given) = channel::<Baton<'a, W>>();
        let (send, back) = channel();
        let (is_ready, ready) = channel::<()>();
        scope.spawn(move || {
            // The driver's per-thread initialisation is not part of an operation.
            drop(self.streams.first().map(|stream| stream.context().bind()));
            drop(is_ready);
            for mut baton in given {
                let done = self.turn(&baton.turn, &mut baton.live, &mut baton.watch);
                if send.send((baton, done)).is_err() {
                    break;
                }
            }
        });
        // Otherwise its calls would be counted for the thread with the first turn.
        let _ = ready.recv();
        Worker { give, back }
    }

    fn pass<W: Watch>(
        self,
        workers: &[Worker<'a, W>],
        mut live: Live<'a>,
        mut watch: W,
    ) -> Result<(Live<'a>, W)> {
        for turn in &self.plan.turns {
            if let Some(worker) = workers.get(turn.thread) {
                let baton = Baton {
                    live,
                    watch,
                    turn: turn.clone(),
                };
                let done;
                let gone = "a thread of the replay ended too early";
                worker.give.send(baton).ok().context(gone)?;
                let (baton, result) = worker.back.recv().context(gone)?;
                (live, watch, done) = (baton.live, baton.watch, result);
                done?;
            } else {
                self.turn(turn, &mut live, &mut watch)?;
            }
            self.bar.inc(turn.steps.len() as u64);
        }
        Ok((live, watch))
    }

    #[inline]
    fn turn<W: Watch>(self, turn: &Turn, live: &mut Live<'_>, watch: &mut W) -> Result<()> {
        watch.turn_begins();
        let steps = &self.plan.steps[turn.steps.clone()];
        for (index, step) in turn.steps.clone().zip(steps) {
            self.step(*step, &mut live.blocks)
                .map_err(|error| failed(error, index))?;
            watch.done(index)?;
        }
        watch.turn_ends();
        Ok(())
    }

    #[inline]
    fn step(self, step: Step, blocks: &mut [Block]) -> cuda_mem::Result<()> {
        match step {
            Step::Allocate {
                slot,
                layout,
                stream,
            } => {
                // Zero bytes need no call, as with buffers.
                let address = match layout.size() {
                    0 => 0,
                    _ => self.resource.allocate(layout, &self.streams[stream])?,
                };
                blocks[slot] = Block {
                    address,
                    layout,
                    stream,
                };
            }
            Step::Free { slot, on } => {
                let block = blocks[slot];
                let mut stream = &self.streams[block.stream];
                if let Some(on) = on {
                    // The other stream waits for all uses, as a program would arrange.
                    self.streams[on].wait_for(stream)?;
                    stream = &self.streams[on];
                }
                if block.address == 0 {
                    return Ok(());
                }
                blocks[slot].address = 0;
                // SAFETY: allocated here with this layout and forgotten; no work uses it.
                unsafe {
                    self.resource
                        .deallocate(block.address, block.layout, stream)
                }?;
            }
        }
        Ok(())
    }
}

#[cold]
fn failed(error: cuda_mem::Error, index: usize) -> anyhow::Error {
    anyhow::Error::new(error).context(format!("operation {} of the log", index + 1))
}
