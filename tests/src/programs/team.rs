//! The threads of a program, each with what stays on it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;

use anyhow::{Context as _, Result, anyhow};

use super::step::Step;
use super::world::{Local, World};

/// What a thread is to do, and what with.
struct Job<'w> {
    world: World<'w>,
    steps: Vec<Step>,
}

type Done<'w> = (World<'w>, Result<()>);

struct Worker<'w> {
    jobs: Sender<Job<'w>>,
    done: Receiver<Done<'w>>,
}

/// Threads that are started when they are first needed. The caller is the first one.
pub(super) struct Team<'scope, 'env, 'w> {
    scope: &'scope Scope<'scope, 'env>,
    own: Local,
    workers: Vec<Option<Worker<'w>>>,
}

impl<'scope, 'w: 'scope> Team<'scope, '_, 'w> {
    pub(super) fn new<'env>(
        scope: &'scope Scope<'scope, 'env>,
        threads: usize,
    ) -> Team<'scope, 'env, 'w> {
        Team {
            scope,
            own: Local::default(),
            workers: (1..threads).map(|_| None).collect(),
        }
    }

    /// The thread does the steps while the caller waits.
    pub(super) fn run(
        &mut self,
        thread: usize,
        mut world: World<'w>,
        steps: &[Step],
    ) -> Result<Done<'w>> {
        if thread == 0 {
            let end = perform(0, &mut world, &mut self.own, steps);
            return Ok((world, end));
        }
        self.begin(thread, world, steps)?;
        self.end(thread)
    }

    /// Each thread does its steps, all at a time: the first world is the first thread's.
    pub(super) fn run_all(
        &mut self,
        worlds: Vec<World<'w>>,
        steps: &[Vec<Step>],
    ) -> Result<Vec<Done<'w>>> {
        let mut worlds = worlds.into_iter();
        let mut first = worlds.next().context("no world")?;
        let others = 1..steps.len();
        for (thread, world) in others.clone().zip(worlds) {
            self.begin(thread, world, &steps[thread])?;
        }
        let end = perform(0, &mut first, &mut self.own, &steps[0]);
        let mut all = vec![(first, end)];
        for thread in others {
            all.push(self.end(thread)?);
        }
        Ok(all)
    }

    fn begin(&mut self, thread: usize, world: World<'w>, steps: &[Step]) -> Result<()> {
        let scope = self.scope;
        let slot = self.workers.get_mut(thread - 1).context("no such thread")?;
        let worker = slot.get_or_insert_with(|| {
            let (jobs, next) = channel::<Job<'w>>();
            let (finished, done) = channel();
            scope.spawn(move || {
                let mut local = Local::default();
                for Job { mut world, steps } in next {
                    let end = perform(thread, &mut world, &mut local, &steps);
                    if finished.send((world, end)).is_err() {
                        break;
                    }
                }
            });
            Worker { jobs, done }
        });
        let steps = steps.to_vec();
        let sent = worker.jobs.send(Job { world, steps });
        sent.map_err(|_| anyhow!("thread {thread} has ended"))
    }

    fn end(&mut self, thread: usize) -> Result<Done<'w>> {
        let worker = self.workers[thread - 1]
            .as_ref()
            .context("no such thread")?;
        worker
            .done
            .recv()
            .map_err(|_| anyhow!("thread {thread} has ended"))
    }
}

fn perform(thread: usize, world: &mut World<'_>, local: &mut Local, steps: &[Step]) -> Result<()> {
    world.me = thread;
    steps.iter().try_for_each(|step| {
        let done = catch_unwind(AssertUnwindSafe(|| world.step(local, step)));
        done.unwrap_or_else(|panic| Err(anyhow!("a panic: {}", words(&*panic))))
            .with_context(|| format!("{step:?} on thread {thread}"))
    })
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()))
        .unwrap_or_default()
}
