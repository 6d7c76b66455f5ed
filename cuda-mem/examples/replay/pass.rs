//! One pass over the plan, watched in one way or another.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Scope};

use anyhow::{Context as _, Result};
use cuda_mem::{DeviceBuffer, Resource, Stream};
use indicatif::ProgressBar;

use crate::plan::{Plan, Step, Turn};

/// Looks on while the operations are made. What is empty costs nothing.
pub(crate) trait Watch: Send {
    fn turn_begins(&mut self) {}
    /// The operation of this number is done.
    fn done(&mut self, index: usize) -> Result<()> {
        let _ = index;
        Ok(())
    }
    fn turn_ends(&mut self) {}
}

/// What is alive, by slot.
type Live = Vec<Option<DeviceBuffer<u8>>>;

/// Everything that a pass needs.
#[derive(Clone, Copy)]
pub(crate) struct Stage<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) resource: &'a Resource,
    pub(crate) streams: &'a [Stream],
    pub(crate) bar: &'a ProgressBar,
}

/// What goes from thread to thread. Whoever has it is alone, so that nobody needs a lock.
struct Baton<W> {
    live: Live,
    watch: W,
    turn: Turn,
}

/// A thread of the log, and what it gives back.
struct Worker<W> {
    give: Sender<Baton<W>>,
    back: Receiver<(Baton<W>, Result<()>)>,
}

impl Stage<'_> {
    /// Makes `passes` passes. Before each of them `begin` makes its watch, and after it `end` gets the watch
    /// back; what is left alive is freed then. The threads stay the same.
    pub(crate) fn passes<W: Watch>(
        self,
        passes: usize,
        mut begin: impl FnMut() -> Result<W>,
        mut end: impl FnMut(W) -> Result<()>,
    ) -> Result<()> {
        thread::scope(|scope| {
            let workers: Vec<Worker<W>> = match self.plan.threads {
                0 | 1 => Vec::new(),
                threads => (0..threads).map(|_| self.worker(scope)).collect(),
            };
            for _ in 0..passes {
                let mut live = Live::new();
                live.resize_with(self.plan.slots, || None);
                let (live, watch) = self.pass(&workers, live, begin()?)?;
                end(watch)?;
                for buffer in live.into_iter().flatten() {
                    buffer.free()?;
                }
                for stream in self.streams {
                    stream.synchronize()?;
                }
            }
            Ok(())
        })
    }

    fn worker<'scope, W: Watch + 'scope>(self, scope: &'scope Scope<'scope, '_>) -> Worker<W>
    where
        Self: 'scope,
    {
        let (give, given) = channel::<Baton<W>>();
        let (send, back) = channel();
        scope.spawn(move || {
            // What a driver does at the first call of a thread is no part of an operation.
            let ready = self.streams.first().map(|stream| stream.context().bind());
            drop(ready);
            for mut baton in given {
                let done = self.turn(&baton.turn, &mut baton.live, &mut baton.watch);
                if send.send((baton, done)).is_err() {
                    break;
                }
            }
        });
        Worker { give, back }
    }

    fn pass<W: Watch>(
        self,
        workers: &[Worker<W>],
        mut live: Live,
        mut watch: W,
    ) -> Result<(Live, W)> {
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
    fn turn<W: Watch>(self, turn: &Turn, live: &mut Live, watch: &mut W) -> Result<()> {
        watch.turn_begins();
        let steps = &self.plan.steps[turn.steps.clone()];
        for (index, step) in turn.steps.clone().zip(steps) {
            match *step {
                Step::Allocate {
                    slot,
                    bytes,
                    stream,
                } => match self.resource.alloc(&self.streams[stream], bytes) {
                    Ok(buffer) => live[slot] = Some(buffer),
                    Err(error) => return Err(failed(error, index)),
                },
                Step::Free { slot, on } => {
                    let Some(buffer) = live[slot].take() else {
                        continue;
                    };
                    let freed = match on {
                        None => buffer.free(),
                        Some(stream) => buffer.free_on(&self.streams[stream]),
                    };
                    if let Err(error) = freed {
                        return Err(failed(error.error, index));
                    }
                }
            }
            watch.done(index)?;
        }
        watch.turn_ends();
        Ok(())
    }
}

#[cold]
fn failed(error: cuda_mem::Error, index: usize) -> anyhow::Error {
    anyhow::Error::new(error).context(format!("operation {} of the log", index + 1))
}
