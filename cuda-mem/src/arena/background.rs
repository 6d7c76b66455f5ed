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
use crate::base::report::{self, caught};

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
            // Resources of the program may panic; the thread has more to do.
            let missing = caught(|| {
                if trims {
                    arena.give_back_apart();
                }
                let wanted = prepares.then(|| self.begin_look()).flatten();
                let missing = wanted.map(|wanted| arena.prepare(wanted));
                drop(arena);
                missing
            });
            drop(working);
            let missing = missing.unwrap_or_else(|| {
                self.watches.store(false, Ordering::Relaxed);
                let text = "code of the program panicked on the arena's thread";
                report::failed("arena", &Error::new(ErrorKind::Other, text));
                None
            });
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

    /// Counts a look. Returns the units of the wanted block; `None` if the thread is not to look.
    fn begin_look(&self) -> Option<u32> {
        let wanted = self.wanted.load(Ordering::Relaxed);
        let looks = self.looks.load(Ordering::Relaxed);
        if wanted == 0 || looks == 0 {
            return None;
        }
        self.looks.store(looks - 1, Ordering::Relaxed);
        // Frees during the look count for the next one.
        self.until_look.store(NO_LOOK, Ordering::Relaxed);
        self.watches.store(true, Ordering::Relaxed);
        Some(wanted)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Units.
    const MIB: u32 = 4096;

    /// Without a thread.
    fn idle() -> Background {
        Background {
            requests: Arc::default(),
            thread: Mutex::new(None),
        }
    }

    /// Whether a look was asked for since the last call.
    fn is_asked(background: &Background) -> bool {
        std::mem::take(&mut background.requests.state().is_asked_to_prepare)
    }

    #[test]
    fn it_looks_again_when_enough_was_freed() {
        for (wanted, missing, until) in [
            (128_u32, 0_u32, 16_u32),
            (128, 20, 20),
            (4, 0, 8),
            (4, 9, 9),
        ] {
            for meanwhile in [0, 1, until - 1, until] {
                let background = idle();
                let requests = &background.requests;
                // Nobody wants anything.
                background.freed(1000 * MIB);
                assert!(!is_asked(&background));
                background.was_short(wanted * MIB);
                assert!(is_asked(&background));
                assert_eq!(requests.begin_look(), Some(wanted * MIB));
                background.freed(meanwhile * MIB);
                assert!(!is_asked(&background), "not during a look");
                requests.watch(u64::from(missing) << 20);
                assert_eq!(is_asked(&background), meanwhile == until);
                if meanwhile == until {
                    continue;
                }
                background.freed((until - meanwhile) * MIB - 1);
                assert!(!is_asked(&background), "one unit is missing");
                background.freed(1);
                assert!(is_asked(&background), "{wanted}, {missing}, {meanwhile}");
                assert!(!requests.watches.load(Ordering::Relaxed));
                // Another thread was about to count it.
                requests.count_freed(MIB);
                assert!(!is_asked(&background), "once");
            }
        }
    }

    #[test]
    fn it_rests_after_many_looks_until_a_request_is_short() {
        let background = idle();
        let look = || background.requests.begin_look();
        assert_eq!(look(), None);
        for _ in 0..2 {
            background.was_short(MIB);
            assert!((0..LOOKS).all(|_| look() == Some(MIB)));
            assert_eq!(look(), None);
        }
    }

    #[test]
    fn sizes_that_are_no_longer_requested_are_forgotten() {
        let background = idle();
        let look = || background.requests.begin_look();
        background.was_short(8000);
        background.was_short(1000);
        assert_eq!(look(), Some(7000));
        (0..100).for_each(|_| background.was_short(1000));
        assert_eq!(look(), Some(1000));
        background.was_short(9000);
        assert_eq!(look(), Some(9000));
    }
}
