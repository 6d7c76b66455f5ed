//! Work done after the program has waited for a stream, an event or a context: resources give back what exceeds their
//! release threshold, as the driver's pools do then (R38).

use std::sync::Weak;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::base::lock::Lock;
use crate::stream::deferred::{self, After};

/// An observer of the program's waits.
pub(crate) trait AfterWait: Send + Sync {
    /// No lock of this crate is held, and this thread is not in a call of any resource. May be called from several
    /// threads at a time.
    fn after_wait(&self, after: After);
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

/// The program has waited, or a future of it is ready. What that has shown is noted already.
#[inline]
pub(crate) fn tell(after: After) {
    if LISTED.load(Ordering::Relaxed) > 0 {
        tell_all(after);
    }
}

#[cold]
fn tell_all(after: After) {
    // As for deferred releases: a resource may hold locks of its own in its calls.
    if !deferred::may_release() {
        return;
    }
    let Some(observers) = LIST.lock_unless_forked().map(|list| list.clone()) else {
        return;
    };
    let _now = after.begin();
    // The last handle of a resource may be dropped here, which is not for under the lock.
    for observer in observers.iter().filter_map(Weak::upgrade) {
        observer.after_wait(after);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl AfterWait for Count {
        fn after_wait(&self, _: After) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn observer(of: &Arc<Count>) -> Weak<dyn AfterWait> {
        let observer: Weak<Count> = Arc::downgrade(of);
        observer
    }

    /// How often it is in the list, in which other tests have theirs.
    fn entries(observer: &Weak<dyn AfterWait>) -> usize {
        let list = LIST.lock_unless_forked().expect("this is no fork");
        list.iter().filter(|other| other.ptr_eq(observer)).count()
    }

    #[test]
    fn an_observer_is_listed_once_and_until_it_ends() {
        let (first, second) = (Arc::<Count>::default(), Arc::<Count>::default());
        let observers = [observer(&first), observer(&second)];
        for _ in 0..3 {
            observers.iter().cloned().for_each(add);
        }
        assert_eq!(observers.each_ref().map(entries), [1, 1]);
        tell(After::Wait);
        assert!(first.0.load(Ordering::Relaxed) > 0 && second.0.load(Ordering::Relaxed) > 0);
        // The next one that comes takes the place of what has ended.
        drop(first);
        add(observers[1].clone());
        assert_eq!(observers.each_ref().map(entries), [0, 1]);
    }
}
