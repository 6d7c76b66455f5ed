//! The bytes of a limit, and the requests that wait for some of them: first come, first served.
//!
//! Nothing waits in the usual case, and then taking and giving back are one atomic operation each. A request that has
//! to wait announces itself in `waiting` before it looks at the bytes a last time, and giving back changes the bytes
//! before it looks at `waiting`. All four are sequentially consistent, so that one side sees the other and no wake-up
//! is lost. The thread that gives bytes back takes them at once for the request at the head of the queue, so that no
//! later request gets ahead of it.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, PoisonError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use crate::base::atomic::try_update;
use crate::base::lock::Lock;
use crate::base::report::caught;

#[derive(Debug)]
pub(super) struct Budget {
    limit: u64,
    allocated: AtomicU64,
    /// Requests that wait, or are about to.
    waiting: AtomicUsize,
    /// The longest waiting first.
    queue: Lock<VecDeque<Arc<Request>>>,
}

/// A request in the queue. When it is no longer there, it has its bytes.
#[derive(Debug)]
pub(super) struct Request {
    bytes: u64,
    /// For a thread that waits.
    granted: Condvar,
    /// For a task that waits: the waker of its last poll.
    waker: Lock<Option<Waker>>,
}

impl Request {
    fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes,
            granted: Condvar::new(),
            waker: Lock::default(),
        })
    }
}

/// Wakers to be called once the queue is no longer locked: an executor may run a task inside.
#[derive(Default)]
#[must_use]
struct Granted(Vec<Waker>);

impl Granted {
    fn wake(self) {
        for waker in self.0 {
            // Memory is freed here, also in destructors.
            caught(|| waker.wake());
        }
    }
}

/// Why there are no bytes.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Shortage {
    /// The request is larger than the limit.
    TooLarge,
    /// Too many bytes are allocated.
    Full { allocated: u64 },
    /// As `Full`, after waiting for this long.
    TimedOut { allocated: u64, waited: Duration },
    /// This process is a fork, where nothing waits.
    Forked,
}

impl Budget {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            limit,
            allocated: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            queue: Lock::default(),
        }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    pub(super) fn allocated(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Takes bytes if enough are left, ahead of every waiting request.
    #[inline]
    pub(super) fn try_take(&self, bytes: u64) -> Result<(), Shortage> {
        let fits = |now: u64| now.checked_add(bytes).filter(|sum| *sum <= self.limit);
        match try_update(&self.allocated, Ordering::SeqCst, fits) {
            Ok(_) => Ok(()),
            Err(_) if bytes > self.limit => Err(Shortage::TooLarge),
            Err(allocated) => Err(Shortage::Full { allocated }),
        }
    }

    /// Takes bytes if enough are left and no other request is waiting.
    #[inline]
    pub(super) fn try_take_in_turn(&self, bytes: u64) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0 && self.try_take(bytes).is_ok()
    }

    /// Takes bytes after all earlier requests have been served, and blocks until then.
    #[cold]
    pub(super) fn wait(&self, bytes: u64, timeout: Duration) -> Result<(), Shortage> {
        let begun = Instant::now();
        let Some(mut queue) = self.queue.lock_unless_forked() else {
            return Err(Shortage::Forked);
        };
        if bytes > self.limit {
            return Err(Shortage::TooLarge);
        }
        // First this, then a look at the bytes: see above.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let request = Request::new(bytes);
        queue.push_back(Arc::clone(&request));
        let mut woken = self.grant(&mut queue);
        let mut ended = Ok(());
        while is_queued(&queue, &request) {
            let waited = begun.elapsed();
            let left = timeout.saturating_sub(waited);
            if left.is_zero() {
                woken.0.extend(self.take_out(&mut queue, &request).0);
                ended = Err(Shortage::TimedOut {
                    allocated: self.allocated(),
                    waited,
                });
                break;
            }
            if !woken.0.is_empty() {
                drop(queue);
                std::mem::take(&mut woken).wake();
                let Some(locked) = self.queue.lock_unless_forked() else {
                    return Err(Shortage::Forked);
                };
                queue = locked;
                continue;
            }
            let slept = request.granted.wait_timeout(queue, left);
            queue = slept.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(queue);
        woken.wake();
        ended
    }

    /// As [`wait`](Self::wait), for a task. `request` is its place in the queue, from the first poll that did not
    /// succeed on; it ends with [`leave`](Self::leave) if the task gives up.
    pub(super) fn poll(
        &self,
        bytes: u64,
        request: &mut Option<Arc<Request>>,
        waker: &Waker,
    ) -> Poll<Result<(), Shortage>> {
        if request.is_none() && (bytes == 0 || self.try_take_in_turn(bytes)) {
            return Poll::Ready(Ok(()));
        }
        if bytes > self.limit {
            return Poll::Ready(Err(Shortage::TooLarge));
        }
        // Cloned before and dropped after the lock is held: a waker may own memory of this limit.
        let mut new = Some(waker.clone());
        let Some(mut queue) = self.queue.lock_unless_forked() else {
            return Poll::Ready(Err(Shortage::Forked));
        };
        let mut woken = Granted::default();
        let own = request.get_or_insert_with(|| {
            // First this, then a look at the bytes: see above.
            self.waiting.fetch_add(1, Ordering::SeqCst);
            let own = Request::new(bytes);
            queue.push_back(Arc::clone(&own));
            woken = self.grant(&mut queue);
            own
        });
        let is_queued = is_queued(&queue, own);
        if is_queued && let Some(mut place) = own.waker.lock_unless_forked() {
            std::mem::swap(&mut *place, &mut new);
        }
        drop(queue);
        drop(new);
        woken.wake();
        if is_queued {
            return Poll::Pending;
        }
        *request = None;
        Poll::Ready(Ok(()))
    }

    /// The task gives up its place, or the bytes that it got and did not come for.
    pub(super) fn leave(&self, request: &Arc<Request>) {
        let Some(mut queue) = self.queue.lock_unless_forked() else {
            return;
        };
        if is_queued(&queue, request) {
            let woken = self.take_out(&mut queue, request);
            drop(queue);
            woken.wake();
        } else {
            drop(queue);
            self.give_back(request.bytes);
        }
    }

    fn take_out(&self, queue: &mut VecDeque<Arc<Request>>, request: &Arc<Request>) -> Granted {
        queue.retain(|queued| !Arc::ptr_eq(queued, request));
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        // It may have been in the way of smaller ones.
        self.grant(queue)
    }

    /// Gives bytes back, to the requests that wait if there are any. Never waits for one.
    #[inline]
    pub(super) fn give_back(&self, bytes: u64) {
        // It releases: what other adaptors have counted down is visible to the thread that gets these bytes.
        self.allocated.fetch_sub(bytes, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        if let Some(mut queue) = self.queue.lock_unless_forked() {
            let woken = self.grant(&mut queue);
            drop(queue);
            woken.wake();
        }
    }

    /// Takes bytes for the requests at the head of the queue, as far as there are enough.
    fn grant(&self, queue: &mut VecDeque<Arc<Request>>) -> Granted {
        let mut granted = Granted::default();
        while let Some(first) = queue.front() {
            if self.try_take(first.bytes).is_err() {
                break;
            }
            first.granted.notify_one();
            let waker = first.waker.lock_unless_forked();
            granted.0.extend(waker.and_then(|mut waker| waker.take()));
            queue.pop_front();
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        granted
    }
}

fn is_queued(queue: &VecDeque<Arc<Request>>, request: &Arc<Request>) -> bool {
    queue.iter().any(|queued| Arc::ptr_eq(queued, request))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Longer than any test: a thread that waits this long was not woken.
    const LONG: Duration = Duration::from_secs(60);

    fn wait_until_waiting(budget: &Budget, requests: usize) {
        let begun = Instant::now();
        while budget.waiting() != requests {
            assert!(begun.elapsed() < LONG, "{budget:?}");
            thread::yield_now();
        }
    }

    #[test]
    fn a_large_request_is_not_overtaken() {
        let budget = Budget::new(100);
        for _ in 0..2 {
            budget.try_take(50).expect("it fits");
        }
        thread::scope(|scope| {
            let large = scope.spawn(|| budget.wait(100, LONG));
            wait_until_waiting(&budget, 1);
            let small = scope.spawn(|| budget.wait(10, Duration::MAX));
            wait_until_waiting(&budget, 2);
            budget.give_back(50);
            assert_eq!(
                budget.waiting(),
                2,
                "the small one would fit, and is second"
            );
            assert!(!budget.try_take_in_turn(10), "so is one that comes now");
            budget.give_back(50);
            assert_eq!((budget.waiting(), budget.allocated()), (1, 100));
            assert_eq!(large.join().expect("no panic"), Ok(()));
            budget.give_back(100);
            assert_eq!(small.join().expect("no panic"), Ok(()));
        });
        assert_eq!((budget.waiting(), budget.allocated()), (0, 10));
    }

    #[test]
    fn one_that_gives_up_makes_way() {
        let budget = Budget::new(100);
        budget.try_take(50).expect("it fits");
        thread::scope(|scope| {
            let large = scope.spawn(|| budget.wait(60, Duration::from_millis(50)));
            // Behind it, if it is still there.
            while budget.waiting() == 0 && !large.is_finished() {
                thread::yield_now();
            }
            let small = scope.spawn(|| budget.wait(50, LONG));
            let ended = large.join().expect("no panic");
            let Err(Shortage::TimedOut { waited, .. }) = ended else {
                panic!("{ended:?}");
            };
            assert!(waited >= Duration::from_millis(50), "{waited:?}");
            assert_eq!(small.join().expect("no panic"), Ok(()));
        });
        assert_eq!((budget.waiting(), budget.allocated()), (0, 100));
    }

    /// A thread that gives up hands on what it has found free.
    #[test]
    fn a_task_is_woken_by_a_thread_that_gives_up() {
        struct Count(AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let budget = Budget::new(1000);
        budget.try_take(700).expect("it fits");
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let mut request = None;
        assert!(budget.poll(600, &mut request, &waker).is_pending());
        // As `give_back` does, before it looks who waits.
        budget.allocated.fetch_sub(700, Ordering::SeqCst);
        let ended = budget.wait(700, Duration::ZERO);
        assert!(matches!(ended, Err(Shortage::TimedOut { .. })), "{ended:?}");
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert!(budget.poll(600, &mut request, &waker).is_ready());
        budget.give_back(600);
        assert_eq!((budget.waiting(), budget.allocated()), (0, 0));
    }

    #[test]
    fn what_never_fits_does_not_wait() {
        let budget = Budget::new(100);
        assert_eq!(budget.wait(101, LONG), Err(Shortage::TooLarge));
        assert_eq!(budget.try_take(u64::MAX), Err(Shortage::TooLarge));
        budget.try_take(100).expect("it fits");
        assert_eq!(budget.try_take(1), Err(Shortage::Full { allocated: 100 }));
        let ended = budget.wait(1, Duration::ZERO);
        assert!(matches!(
            ended,
            Err(Shortage::TimedOut { allocated: 100, .. })
        ));
    }

    /// Four threads that want more than there is hand it on to each other.
    #[test]
    fn no_wake_up_is_lost() {
        const ROUNDS: usize = 2000;
        let budget = Budget::new(2);
        thread::scope(|scope| {
            for thread in 0..4_u64 {
                let budget = &budget;
                scope.spawn(move || {
                    let bytes = 1 + thread % 2;
                    for _ in 0..ROUNDS {
                        if !budget.try_take_in_turn(bytes) {
                            budget.wait(bytes, LONG).expect("it is woken");
                        }
                        assert!(budget.allocated() <= 2);
                        budget.give_back(bytes);
                    }
                });
            }
        });
        assert_eq!((budget.waiting(), budget.allocated()), (0, 0));
    }
}
