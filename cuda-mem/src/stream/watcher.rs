//! The thread that looks whether streams and events are done, for futures.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, PoisonError};
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use once_cell::sync::Lazy;

use super::completion::{Key, Watched};
use crate::base::biased::thread::become_guest;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::exit::{self, Working};
use crate::base::lock::Lock;
use crate::base::report::caught;

/// The name of the thread, as the system shows it.
const NAME: &str = "cuda-mem-waits";
/// The pauses between two looks: an eighth of the time since the last success, within these bounds.
const PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));
/// How often those behind the first of a queue are looked at, too.
const ALL: Duration = Duration::from_millis(8);
/// The thread ends after this long without work.
const LINGER: Duration = Duration::from_millis(200);

static STATE: Lazy<Lock<State>> = Lazy::new(Lock::default);
static WORK: Condvar = Condvar::new();

#[derive(Default)]
struct State {
    /// Those with one key, in the order in which they came. The first one is usually the first to be done.
    queues: HashMap<Key, VecDeque<Arc<Watched>>>,
    is_running: bool,
}

/// Looks for this one from now on, until it is done or removed.
pub(super) fn add(watched: &Arc<Watched>) -> Result<()> {
    let mut state = STATE.lock()?;
    if !state.is_running {
        exit::watch();
        let started = thread::Builder::new().name(NAME.to_owned()).spawn(serve);
        started.map_err(|error| {
            let text = format!("the thread that waits for futures does not start: {error}");
            Error::new(ErrorKind::Other, text)
        })?;
        state.is_running = true;
    }
    let queue = state.queues.entry(watched.key()).or_default();
    queue.push_back(Arc::clone(watched));
    WORK.notify_one();
    Ok(())
}

/// Does nothing if it is done already.
pub(super) fn remove(watched: &Arc<Watched>) {
    if let Some(mut state) = STATE.lock_unless_forked() {
        state.remove(watched);
    }
}

impl State {
    fn remove(&mut self, watched: &Arc<Watched>) {
        let key = watched.key();
        if let Some(queue) = self.queues.get_mut(&key) {
            queue.retain(|it| !Arc::ptr_eq(it, watched));
            if queue.is_empty() {
                self.queues.remove(&key);
            }
        }
    }

    /// The first of each queue, or all of them: two threads may record in one stream in another order than they add.
    fn to_look_at(&self, all: bool) -> Vec<Arc<Watched>> {
        let depth = if all { usize::MAX } else { 1 };
        let queues = self.queues.values();
        queues
            .flat_map(|queue| queue.iter().take(depth).cloned())
            .collect()
    }
}

/// The main loop of the thread.
fn serve() {
    become_guest();
    let (mut last, mut last_all) = (Instant::now(), Instant::now());
    loop {
        let pause = (last.elapsed() / 8).clamp(PAUSES.0, PAUSES.1);
        let all = last_all.elapsed() >= ALL;
        if all {
            last_all = Instant::now();
        }
        let Some(watched) = next(all, &mut last) else {
            return;
        };
        let Some(working) = Working::begin() else {
            return;
        };
        // The last owner of a context, or of what a task owns, may end here, and panic.
        let mut wakers: Vec<Waker> = Vec::new();
        let mut has_panicked = false;
        for watched in watched {
            has_panicked |= caught(|| look(watched, &mut wakers)).is_none();
        }
        drop(working);
        let woke = has_panicked || !wakers.is_empty();
        for waker in wakers {
            caught(|| waker.wake());
        }
        if woke {
            last = Instant::now();
        } else {
            thread::sleep(pause);
        }
    }
}

/// What there is to look at; waits if there is nothing. `None` if the thread ends.
fn next(all: bool, last: &mut Instant) -> Option<Vec<Arc<Watched>>> {
    let mut state = STATE.lock_unless_forked()?;
    if state.queues.is_empty() {
        let waited = WORK.wait_timeout_while(state, LINGER, |state| state.queues.is_empty());
        state = waited.unwrap_or_else(PoisonError::into_inner).0;
        *last = Instant::now();
    }
    if state.queues.is_empty() {
        state.is_running = false;
        return None;
    }
    Some(state.to_look_at(all))
}

/// Looks at one. If it is done, so may be those behind it.
fn look(watched: Arc<Watched>, wakers: &mut Vec<Waker>) {
    let mut at = Some(watched);
    while let Some(watched) = at.take() {
        let Poll::Ready(result) = watched.look() else {
            return;
        };
        // First this: once there is a result, the future may be polled again, and be added again.
        if let Some(mut state) = STATE.lock_unless_forked() {
            state.remove(&watched);
            let queue = state.queues.get(&watched.key());
            at = queue.and_then(VecDeque::front).cloned();
        }
        wakers.extend(watched.end(result));
    }
}
