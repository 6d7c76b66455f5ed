//! What cannot be released yet, and is looked at again whenever the host may have seen more work done:
//! after everything that synchronises, and when streams and contexts end.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError, TryLockError};

use crate::error::Error;
use crate::report::{self, WAITING as WAITING_NOW};

/// Something that waits for its release.
pub(crate) trait Pending: Send {
    /// What it is, for reports.
    fn name(&self) -> &'static str;

    /// Releases it if that is possible now, without waiting (only for what another thread's own stream left, there
    /// is no other way). Must not use anything of this crate that
    /// ends in [`sweep`].
    fn try_release(&mut self) -> Outcome;
}

/// How a try to release something went.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It is released.
    Done,
    /// Not yet.
    NotYet,
    /// The driver refused. It is reported, and tried again.
    Again(Error),
    /// The driver refused. It is reported, and not tried again.
    GivenUp(Error),
}

/// Something that waits, and how often it was looked at in vain.
struct Entry {
    pending: Box<dyn Pending>,
    tries: u32,
    /// So many looks are left out.
    rest: u32,
}

/// What is not ready for long, such as the pool of a model's weights, is looked at ever less often, but
/// at every so many looks at least.
const LONGEST_REST: u32 = 64;

static WAITING: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// Keeps something until it can be released.
pub(crate) fn keep(pending: Box<dyn Pending>) {
    let mut waiting = WAITING.lock().unwrap_or_else(PoisonError::into_inner);
    waiting.push(Entry {
        pending,
        tries: 0,
        rest: 0,
    });
    WAITING_NOW.store(waiting.len() as u64, Ordering::Relaxed);
}

/// Releases what can be released now. One load if nothing waits.
#[inline]
pub(crate) fn sweep() {
    if WAITING_NOW.load(Ordering::Relaxed) > 0 {
        sweep_all();
    }
}

#[cold]
fn sweep_all() {
    // In a fork nobody may be left to unlock the list.
    if report::is_forked() {
        return;
    }
    let mut failures = Vec::new();
    let mut released = Vec::new();
    // Somebody who is at it already does it for all.
    let mut waiting = match WAITING.try_lock() {
        Ok(waiting) => waiting,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return,
    };
    let mut index = 0;
    while let Some(entry) = waiting.get_mut(index) {
        if entry.rest > 0 {
            entry.rest -= 1;
            index += 1;
            continue;
        }
        let name = entry.pending.name();
        match entry.pending.try_release() {
            Outcome::NotYet => {
                entry.tries += 1;
                // The first few times cost little and are likely to help.
                entry.rest = (entry.tries / 4).min(LONGEST_REST);
                index += 1;
            }
            Outcome::Again(error) => {
                failures.push((name, error));
                index += 1;
            }
            Outcome::Done => released.push(waiting.swap_remove(index)),
            Outcome::GivenUp(error) => {
                failures.push((name, error));
                released.push(waiting.swap_remove(index));
            }
        }
    }
    WAITING_NOW.store(waiting.len() as u64, Ordering::Relaxed);
    drop(waiting);
    // Not under the lock: what they own, and the hook, may come back here.
    drop(released);
    for (name, error) in failures {
        report::failed(name, &error);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use super::*;

    struct Wait(Arc<AtomicBool>);

    impl Pending for Wait {
        fn name(&self) -> &'static str {
            "thing"
        }

        fn try_release(&mut self) -> Outcome {
            if self.0.load(Ordering::Relaxed) {
                Outcome::Done
            } else {
                Outcome::NotYet
            }
        }
    }

    #[test]
    fn things_go_when_they_can() {
        let ready = Arc::new(AtomicBool::new(false));
        keep(Box::new(Wait(Arc::clone(&ready))));
        keep(Box::new(Wait(Arc::new(AtomicBool::new(true)))));
        sweep();
        assert_eq!(WAITING_NOW.load(Ordering::Relaxed), 1);
        ready.store(true, Ordering::Relaxed);
        sweep();
        assert_eq!(WAITING_NOW.load(Ordering::Relaxed), 0);
        assert_eq!(Arc::strong_count(&ready), 1, "it was dropped");
    }
}
