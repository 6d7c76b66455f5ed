//! The arena's own thread: it makes runs of free memory ahead of need, and gives back memory beyond the release
//! threshold.
//!
//! It holds the arena only while it works, so that the program's last handle ends it. It makes its calls in relaxed
//! capture mode, sleeps without a timeout while idle, and makes no call once the process exits.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::{Inner, UNIT};
use crate::base::biased::thread::become_guest;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::exit::{self, Working};

/// The name of the thread, as the system shows it.
const NAME: &str = "cuda-mem-arena";
/// The minimum bytes freed before the thread looks again.
const LEAST_FREED: u64 = 8 << 20;
/// The pause between two looks: a wake-up costs the freeing thread some microseconds.
const PAUSE: Duration = Duration::from_millis(1);
/// Looks after which the thread rests, if no request was short of memory meanwhile.
const LOOKS: u32 = 256;

/// Bytes until the next look, while one is in progress: more than are ever freed.
const NO_LOOK: i64 = i64::MAX / 2;

#[derive(Debug)]
pub(super) struct Background {
    requests: Arc<Requests>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Requests to the thread.
#[derive(Debug, Default)]
struct Requests {
    state: Mutex<State>,
    wake: Condvar,
    /// Units of the contiguous block that requests were short of; 0 for none.
    wanted: AtomicU32,
    /// Remaining looks.
    looks: AtomicU32,
    /// Whether frees are counted.
    watches: AtomicBool,
    /// Bytes to be freed before the next look.
    until_look: AtomicI64,
}

#[derive(Debug, Default)]
struct State {
    is_asked_to_prepare: bool,
    is_asked_to_trim: bool,
    is_stopped: bool,
}

impl State {
    /// Whether there is nothing to do.
    fn is_idle(&mut self) -> bool {
        !self.is_stopped && !self.is_asked_to_prepare && !self.is_asked_to_trim
    }
}

impl Background {
    /// Starts the thread.
    pub(super) fn start(arena: Weak<Inner>) -> Result<Self> {
        exit::watch();
        let requests = Arc::<Requests>::default();
        let thread = thread::Builder::new().name(NAME.to_owned()).spawn({
            let requests = Arc::clone(&requests);
            move || requests.serve(&arena)
        });
        let thread = thread.map_err(|error| {
            Error::new(
                ErrorKind::Other,
                format!("the arena's own thread does not start: {error}"),
            )
        })?;
        Ok(Self {
            requests,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// A request of this size found no contiguous free memory, and had to move memory or grow. The next one may need
    /// another such place.
    #[cold]
    pub(super) fn was_short(&self, units: u32) {
        let requests = &self.requests;
        let wanted = requests.wanted.load(Ordering::Relaxed);
        // Sizes that are no longer requested are gradually forgotten.
        let wanted = units.max(wanted - wanted / 8);
        requests.wanted.store(wanted, Ordering::Relaxed);
        requests.looks.store(LOOKS, Ordering::Relaxed);
        requests.ask(|state| state.is_asked_to_prepare = true);
    }

    /// Counts freed units.
    #[inline]
    pub(super) fn freed(&self, units: u32) {
        if self.requests.watches.load(Ordering::Relaxed) {
            self.requests.count_freed(units);
        }
    }

    /// Requests a trim: the program has waited, and the arena may hold more than its release threshold.
    pub(super) fn trim(&self) {
        self.requests.ask(|state| state.is_asked_to_trim = true);
    }

    /// Ends the thread and waits for its end, unless it is the calling thread.
    pub(super) fn stop(&self) {
        self.requests.ask(|state| state.is_stopped = true);
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let own = |handle: &JoinHandle<()>| handle.thread().id() == thread::current().id();
        if let Some(handle) = thread.take().filter(|handle| !own(handle)) {
            // The panic hook has already reported a panic.
            let _ = handle.join();
        }
    }

    /// Forgets the thread, which does not exist in a fork.
    pub(super) fn forget(&self) {
        if let Ok(mut thread) = self.thread.try_lock() {
            std::mem::forget(thread.take());
        }
    }
}

impl Requests {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, ask: impl FnOnce(&mut State)) {
        ask(&mut self.state());
        self.wake.notify_one();
    }

    #[cold]
    fn count_freed(&self, units: u32) {
        let bytes = i64::from(units) * UNIT as i64;
        let left = self.until_look.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        if left <= 0 && left + bytes > 0 {
            self.watches.store(false, Ordering::Relaxed);
            self.ask(|state| state.is_asked_to_prepare = true);
        }
    }

    /// The main loop of the thread.
    fn serve(&self, arena: &Weak<Inner>) {
        become_guest();
        loop {
            let (prepares, trims) = {
                let state = self.wake.wait_while(self.state(), State::is_idle);
                let mut state = state.unwrap_or_else(PoisonError::into_inner);
                if state.is_stopped {
                    return;
                }
                let asked = (state.is_asked_to_prepare, state.is_asked_to_trim);
                (state.is_asked_to_prepare, state.is_asked_to_trim) = (false, false);
                asked
            };
            let Some(working) = Working::begin() else {
                return;
            };
            let Some(arena) = arena.upgrade() else {
                return;
            };
            if trims {
                arena.give_back_apart();
            }
            let missing = prepares.then(|| self.prepare(&arena)).flatten();
            drop((arena, working));
            if let Some(missing) = missing {
                self.pause();
                self.watch(missing);
            }
        }
    }

    /// Pauses for a while, unless something is requested.
    fn pause(&self) {
        let state = self
            .wake
            .wait_timeout_while(self.state(), PAUSE, State::is_idle);
        drop(state.unwrap_or_else(PoisonError::into_inner));
    }

    /// Prepares a place for the wanted block. Returns how many bytes are missing; `None` if it is not to look again.
    fn prepare(&self, arena: &Inner) -> Option<u64> {
        let wanted = self.wanted.load(Ordering::Relaxed);
        let looks = self.looks.load(Ordering::Relaxed);
        if wanted == 0 || looks == 0 {
            return None;
        }
        self.looks.store(looks - 1, Ordering::Relaxed);
        // Frees during the look count for the next one.
        self.until_look.store(NO_LOOK, Ordering::Relaxed);
        self.watches.store(true, Ordering::Relaxed);
        Some(arena.prepare(wanted))
    }

    /// Has the thread look again when the program has freed the missing bytes, and enough to make a difference.
    fn watch(&self, missing: u64) {
        let wanted = u64::from(self.wanted.load(Ordering::Relaxed)) * UNIT;
        let least = (wanted / 8).max(LEAST_FREED);
        let until = i64::try_from(missing.max(least)).unwrap_or(NO_LOOK);
        let counted = NO_LOOK - self.until_look.load(Ordering::Relaxed);
        if counted < until {
            self.until_look.store(until - counted, Ordering::Relaxed);
        } else {
            self.state().is_asked_to_prepare = true;
        }
    }
}
