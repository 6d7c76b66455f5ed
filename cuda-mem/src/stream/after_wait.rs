//! Work done after the program has waited for a stream, an event or a context: resources give back what exceeds their
//! release threshold, as the driver's pools do then (R38).

use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::base::lock::Lock;
use crate::stream::deferred;

/// An observer of the program's waits.
pub(crate) trait AfterWait: Send + Sync {
    /// No lock of this crate is held, and this thread is not in a call of any resource. May be called from several
    /// threads at a time.
    fn after_wait(&self);
}

static LIST: Lock<Vec<Weak<dyn AfterWait>>> = Lock::new(Vec::new());
/// The length of the list, so that a wait without observers costs one load.
static LISTED: AtomicUsize = AtomicUsize::new(0);

/// Notifies the observer of each wait from now on, until it is dropped. Does nothing in a fork.
pub(crate) fn add(observer: Weak<dyn AfterWait>) {
    let Some(mut list) = LIST.lock_unless_forked() else {
        return;
    };
    list.retain(|other| other.strong_count() > 0 && !other.ptr_eq(&observer));
    list.push(observer);
    LISTED.store(list.len(), Ordering::Relaxed);
}

/// The program has waited. What the wait has shown is noted already.
#[inline]
pub(crate) fn tell() {
    if LISTED.load(Ordering::Relaxed) > 0 {
        tell_all();
    }
}

#[cold]
fn tell_all() {
    // As for deferred releases: a resource may hold locks of its own in its calls.
    if !deferred::may_release() {
        return;
    }
    let Some(observers) = LIST.lock_unless_forked().map(|list| list.clone()) else {
        return;
    };
    // The last handle of a resource may be dropped here, which is not for under the lock.
    for observer in observers.iter().filter_map(Weak::upgrade) {
        observer.after_wait();
    }
}
