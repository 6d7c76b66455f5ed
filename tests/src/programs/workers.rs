//! The threads of a program.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;

use anyhow::{Context as _, Result, anyhow};

use super::state::{Local, State};
use super::step::Step;

/// Steps for a thread, and the state to run them on.
struct Job<'w> {
    state: State<'w>,
    steps: Vec<Step>,
}

type Done<'w> = (State<'w>, Result<()>);

struct Worker<'w> {
    jobs: Sender<Job<'w>>,
    done: Receiver<Done<'w>>,
}

/// Threads, started on first use. The caller is the first one.
pub(super) struct Workers<'scope, 'env, 'w> {
    scope: &'scope Scope<'scope, 'env>,
    own: Local,
    others: Vec<Option<Worker<'w>>>,
}

impl<'scope, 'w: 'scope> Workers<'scope, '_, 'w> {
    pub(super) fn new<'env>(
        scope: &'scope Scope<'scope, 'env>,
        threads: usize,
    ) -> Workers<'scope, 'env, 'w> {
        Workers {
            scope,
            own: Local::default(),
            others: (1..threads).map(|_| None).collect(),
        }
    }

    /// Runs the steps on a thread, while the caller waits.
    pub(super) fn run(
        &mut self,
        thread: usize,
        mut state: State<'w>,
        steps: &[Step],
    ) -> Result<Done<'w>> {
        if thread == 0 {
            let end = perform(0, &mut state, &mut self.own, steps);
            return Ok((state, end));
        }
        self.begin(thread, state, steps)?;
        self.end(thread)
    }

    /// Runs the steps of all threads concurrently. The first state is that of the first thread.
    pub(super) fn run_all(
        &mut self,
        states: Vec<State<'w>>,
        steps: &[Vec<Step>],
    ) -> Result<Vec<Done<'w>>> {
        let mut states = states.into_iter();
        let mut first = states.next().context("no state")?;
        let others = 1..steps.len();
        for (thread, state) in others.clone().zip(states) {
            self.begin(thread, state, &steps[thread])?;
        }
        let end = perform(0, &mut first, &mut self.own, &steps[0]);
        let mut all = vec![(first, end)];
        for thread in others {
            all.push(self.end(thread)?);
        }
        Ok(all)
    }

    fn begin(&mut self, thread: usize, state: State<'w>, steps: &[Step]) -> Result<()> {
        let scope = self.scope;
        let slot = self.others.get_mut(thread - 1).context("no such thread")?;
        let worker = slot.get_or_insert_with(|| {
            let (jobs, next) = channel::<Job<'w>>();
            let (finished, done) = channel();
            scope.spawn(move || {
                let mut local = Local::default();
                for Job { mut state, steps } in next {
                    let end = perform(thread, &mut state, &mut local, &steps);
                    if finished.send((state, end)).is_err() {
                        break;
                    }
                }
            });
            Worker { jobs, done }
        });
        let steps = steps.to_vec();
        let sent = worker.jobs.send(Job { state, steps });
        sent.map_err(|_| anyhow!("thread {thread} has ended"))
    }

    fn end(&mut self, thread: usize) -> Result<Done<'w>> {
        let worker = self.others[thread - 1].as_ref().context("no such thread")?;
        worker
            .done
            .recv()
            .map_err(|_| anyhow!("thread {thread} has ended"))
    }
}

fn perform(thread: usize, state: &mut State<'_>, local: &mut Local, steps: &[Step]) -> Result<()> {
    state.thread = thread;
    steps.iter().try_for_each(|step| {
        let done = catch_unwind(AssertUnwindSafe(|| state.step(local, step)));
        done.unwrap_or_else(|panic| Err(anyhow!("a panic: {}", words(&*panic))))
            .with_context(|| format!("{step:?} on thread {thread}"))
    })
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()))
        .unwrap_or_default()
}
