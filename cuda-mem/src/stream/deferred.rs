//! The queue of deferred releases: what cannot be released yet is retried whenever the host may have seen more work
//! done, after everything that synchronises, and when streams and contexts end.
//!
//! Rules:
//!
//! - An entry is tried with no lock held. What it releases, and what its drop releases, may defer more.
//! - One thread polls at a time. Others return at once, and so does a poll inside of a poll.
//! - Nothing is released while the thread is inside a call of a memory resource, which may hold locks that
//!   the release needs. A request that fails for lack of memory is made again if something can be released after it.
//! - No try waits for the device. An entry that is not ready is tried less and less often; after a wait for a whole
//!   context every entry is tried, and before each use of a stream the entries released in the order of that stream.
//! - A fork leaves the whole queue to the parent.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::base::error::Error;
use crate::base::report::{self, WAITING as ENTRIES};
use crate::stream::name::StreamName;

/// Something whose release may have to wait.
pub(crate) trait Deferred: Any + Send {
    /// The name of the object, for reports.
    fn name(&self) -> &'static str;

    /// Releases it if that is possible now, without waiting.
    fn try_release(&mut self) -> Outcome;
}

/// The result of an attempt to release something.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It is released.
    Done,
    /// Not yet.
    NotYet,
    /// The driver refused. The error is reported, and the release is tried again.
    Again(Error),
    /// The driver refused. The error is reported, and the release is not tried again.
    GivenUp(Error),
}

/// A stream in whose order something is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The stream with this number.
    Stream(u64),
    /// A default stream, which can be named again when no handle is left.
    Default(StreamName),
}

struct Entry {
    deferred: Box<dyn Deferred>,
    /// The stream in whose order it is released.
    order: Option<Order>,
    /// Failed tries.
    tries: u32,
    /// Polls that skip it before the next try.
    pause: u32,
}

/// The most polls that skip an entry, such as the pool of a model's weights.
const LONGEST_PAUSE: u32 = 64;

/// Passes of one poll: a release in one pass may make something releasable that was deferred before.
const PASSES: usize = 4;

static QUEUE: Mutex<VecDeque<Entry>> = Mutex::new(VecDeque::new());
/// How many entries were released.
static RELEASED: AtomicU64 = AtomicU64::new(0);
static IS_POLLING: AtomicBool = AtomicBool::new(false);
/// A wait for a whole context was over, and the entries were not all tried since.
static IS_ALL_WANTED: AtomicBool = AtomicBool::new(false);

fn queue() -> MutexGuard<'static, VecDeque<Entry>> {
    QUEUE.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    /// The number of resource calls that this thread is in.
    static RESOURCE_CALLS: Cell<u32> = const { Cell::new(0) };
    /// Whether this thread makes a request again.
    static IS_AGAIN: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread is trying an entry.
    static IS_TRYING: Cell<bool> = const { Cell::new(false) };
}

/// This thread is in a call of a memory resource, which may hold locks of its own: meanwhile nothing is given back to
/// any resource.
#[derive(Debug)]
pub(crate) struct ResourceCall {
    /// Kept here, because reading a number that was just written is slow.
    outer: u32,
}

impl ResourceCall {
    #[inline]
    pub(crate) fn enter() -> Self {
        let outer = RESOURCE_CALLS.get();
        RESOURCE_CALLS.set(outer + 1);
        Self { outer }
    }

    /// Whether this thread is in such a call.
    #[inline]
    pub(crate) fn is_running() -> bool {
        RESOURCE_CALLS.get() > 0
    }
}

impl Drop for ResourceCall {
    #[inline]
    fn drop(&mut self) {
        debug_assert_eq!(RESOURCE_CALLS.get(), self.outer + 1, "calls end in turn");
        RESOURCE_CALLS.set(self.outer);
    }
}

/// This thread makes a request again, after something was released.
#[derive(Debug)]
pub(crate) struct AgainCall {
    outer: bool,
    _call: ResourceCall,
}

impl AgainCall {
    pub(crate) fn enter() -> Self {
        Self {
            outer: IS_AGAIN.replace(true),
            _call: ResourceCall::enter(),
        }
    }

    /// Whether this thread is in such a call: the request has waited already for as long as it may.
    pub(crate) fn is_running() -> bool {
        IS_AGAIN.get()
    }
}

impl Drop for AgainCall {
    fn drop(&mut self) {
        IS_AGAIN.set(self.outer);
    }
}

/// Keeps something until it can be released.
pub(crate) fn defer(deferred: Box<dyn Deferred>) {
    keep(None, deferred);
}

/// As [`defer`], for what is released in the order of a stream.
pub(crate) fn defer_in_order(order: Order, deferred: Box<dyn Deferred>) {
    keep(Some(order), deferred);
}

fn keep(order: Option<Order>, deferred: Box<dyn Deferred>) {
    ENTRIES.fetch_add(1, Ordering::Relaxed);
    queue().push_back(Entry {
        deferred,
        order,
        tries: 0,
        pause: 0,
    });
}

/// Releases something now if possible, or else keeps it. The error is the one that would be reported.
pub(crate) fn release_or_defer(mut deferred: Box<dyn Deferred>) -> Result<(), Error> {
    if ResourceCall::is_running() {
        defer(deferred);
        return Ok(());
    }
    let outcome = match deferred.try_release() {
        Outcome::Done => return Ok(()),
        Outcome::GivenUp(error) => return Err(error),
        Outcome::NotYet => Ok(()),
        Outcome::Again(error) => Err(error),
    };
    defer(deferred);
    outcome
}

/// Releases everything that can be released now. One load if nothing waits.
#[inline]
pub(crate) fn poll() {
    if has_entries() {
        poll_entries(false);
    }
}

/// As [`poll`], after a wait for a whole context: no entry is skipped.
#[inline]
pub(crate) fn poll_all() {
    if has_entries() {
        poll_entries(true);
    }
}

/// As [`poll_all`], where memory is out. Returns whether something was released, by this thread or another.
#[cold]
pub(crate) fn make_room() -> bool {
    let before = RELEASED.load(Ordering::Relaxed);
    poll_all();
    RELEASED.load(Ordering::Relaxed) != before
}

/// Whether anything waits.
#[inline]
pub(crate) fn has_entries() -> bool {
    ENTRIES.load(Ordering::Relaxed) > 0
}

#[cold]
fn poll_entries(all: bool) {
    if !may_release() {
        return;
    }
    if all {
        // If another thread is polling, it tries all of them.
        IS_ALL_WANTED.store(true, Ordering::SeqCst);
    }
    // Again if another thread has wanted all of them, and found this poll running.
    while let Some(poll) = Poll::begin() {
        poll_in_passes();
        drop(poll);
        if !IS_ALL_WANTED.load(Ordering::SeqCst) {
            break;
        }
    }
}

fn poll_in_passes() {
    let mut is_all = false;
    for _ in 0..PASSES {
        let entries = queue().len();
        is_all |= IS_ALL_WANTED.swap(false, Ordering::SeqCst);
        let released = pass(entries, is_all);
        // Only what is new can have become possible.
        if released == 0 || queue().len() <= entries - released {
            break;
        }
    }
}

/// Whether this thread may release anything now.
pub(crate) fn may_release() -> bool {
    // In a fork there may be no thread left to unlock the queue.
    !report::is_forked() && !ResourceCall::is_running() && !IS_TRYING.get()
}

/// The one poll that runs.
struct Poll(());

impl Poll {
    fn begin() -> Option<Self> {
        let is_free = !IS_POLLING.swap(true, Ordering::SeqCst);
        is_free.then_some(Self(()))
    }
}

impl Drop for Poll {
    fn drop(&mut self) {
        IS_POLLING.store(false, Ordering::SeqCst);
    }
}

/// Tries this many entries, from the front of the queue. Returns how many it has released.
fn pass(entries: usize, all: bool) -> usize {
    let mut released = 0;
    for _ in 0..entries {
        // One at a time, so that the others stay reachable meanwhile.
        let Some(mut entry) = queue().pop_front() else {
            break;
        };
        if entry.pause > 0 && !all {
            entry.pause -= 1;
            queue().push_back(entry);
        } else if PendingTry::new(entry).release(Deferred::try_release) {
            released += 1;
        }
    }
    released
}

/// Releases the entries of the stream that can be released now.
#[cold]
pub(crate) fn poll_stream(order: Order) {
    release_in_order(order, Deferred::try_release);
}

/// Releases the entries of the stream by calling `release`. Entries that cannot be released stay.
pub(crate) fn release_in_order(
    order: Order,
    mut release: impl FnMut(&mut dyn Deferred) -> Outcome,
) {
    if !may_release() {
        return;
    }
    let found: VecDeque<Entry> = {
        let mut queue = queue();
        let (found, rest) = std::mem::take(&mut *queue)
            .into_iter()
            .partition(|entry| entry.order == Some(order));
        *queue = rest;
        found
    };
    for entry in found {
        PendingTry::new(entry).release(&mut release);
    }
}

/// An entry that this thread is trying. Unless it is released, it goes back to the queue.
struct PendingTry(Option<Entry>);

impl PendingTry {
    fn new(entry: Entry) -> Self {
        IS_TRYING.set(true);
        Self(Some(entry))
    }

    /// Returns whether it is gone.
    fn release(mut self, release: impl FnOnce(&mut dyn Deferred) -> Outcome) -> bool {
        let Some(entry) = &mut self.0 else {
            return true;
        };
        let (is_gone, failure) = match release(&mut *entry.deferred) {
            Outcome::Done => {
                RELEASED.fetch_add(1, Ordering::Relaxed);
                (true, None)
            }
            Outcome::NotYet => {
                entry.tries += 1;
                // The first few tries cost little and are likely to help.
                entry.pause = (entry.tries / 4).min(LONGEST_PAUSE);
                (false, None)
            }
            Outcome::Again(error) => (false, Some(error)),
            Outcome::GivenUp(error) => (true, Some(error)),
        };
        let name = entry.deferred.name();
        if is_gone {
            ENTRIES.fetch_sub(1, Ordering::Relaxed);
            drop(self.0.take());
        }
        if let Some(error) = failure {
            report::failed(name, &error);
        }
        is_gone
    }
}

impl Drop for PendingTry {
    fn drop(&mut self) {
        IS_TRYING.set(false);
        if let Some(entry) = self.0.take() {
            queue().push_back(entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    /// The queue is process-wide: one test at a time.
    static TESTS: Mutex<()> = Mutex::new(());

    struct Wait(Arc<AtomicBool>);

    impl Deferred for Wait {
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

    /// Its drop defers something of its own, and polls, like that of the last handle of a context.
    struct Owner(Option<Wait>);

    impl Deferred for Owner {
        fn name(&self) -> &'static str {
            "owner"
        }

        fn try_release(&mut self) -> Outcome {
            if let Some(owned) = self.0.take() {
                defer(Box::new(owned));
            }
            poll();
            Outcome::Done
        }
    }

    impl Drop for Owner {
        fn drop(&mut self) {
            defer(Box::new(Wait(Arc::new(AtomicBool::new(true)))));
            poll();
        }
    }

    fn entries() -> u64 {
        ENTRIES.load(Ordering::Relaxed)
    }

    /// Fails instead of hanging.
    fn within_reason(work: impl FnOnce() + Send + 'static) {
        let (done, is_done) = mpsc::channel();
        std::thread::spawn(move || {
            work();
            let _ = done.send(());
        });
        is_done
            .recv_timeout(Duration::from_secs(10))
            .expect("it ends");
    }

    #[test]
    fn entries_go_when_they_can() {
        let _one = TESTS.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = Arc::new(AtomicBool::new(false));
        defer(Box::new(Wait(Arc::clone(&ready))));
        defer(Box::new(Wait(Arc::new(AtomicBool::new(true)))));
        poll();
        assert_eq!(entries(), 1);
        ready.store(true, Ordering::Relaxed);
        poll();
        assert_eq!(entries(), 0);
        assert_eq!(Arc::strong_count(&ready), 1, "it was dropped");
    }

    #[test]
    fn what_is_released_may_defer_and_poll() {
        let _one = TESTS.lock().unwrap_or_else(PoisonError::into_inner);
        within_reason(|| {
            let ready = Arc::new(AtomicBool::new(true));
            defer(Box::new(Owner(Some(Wait(ready)))));
            poll();
        });
        assert_eq!(entries(), 0, "also what came meanwhile");
    }

    #[test]
    fn nothing_is_released_inside_a_call_of_a_resource() {
        let _one = TESTS.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = || Box::new(Wait(Arc::new(AtomicBool::new(true))));
        let call = ResourceCall::enter();
        release_or_defer(ready()).expect("it waits");
        poll_all();
        assert_eq!(entries(), 1);
        drop(call);
        poll();
        assert_eq!(entries(), 0);
        release_or_defer(ready()).expect("it goes at once");
        assert_eq!(entries(), 0);
    }

    #[test]
    fn a_wait_for_a_context_passes_over_no_entry() {
        let _one = TESTS.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = Arc::new(AtomicBool::new(false));
        defer(Box::new(Wait(Arc::clone(&ready))));
        // By now many polls would skip it.
        (0..200).for_each(|_| poll());
        ready.store(true, Ordering::Relaxed);
        poll_all();
        assert_eq!(entries(), 0);
    }

    /// Defers one thing when it is released, and nothing after that.
    struct Keeper(Option<Wait>);

    impl Deferred for Keeper {
        fn name(&self) -> &'static str {
            "keeper"
        }

        fn try_release(&mut self) -> Outcome {
            if let Some(kept) = self.0.take() {
                defer(Box::new(kept));
            }
            Outcome::Done
        }
    }

    #[test]
    fn one_poll_releases_what_a_release_has_deferred() {
        let _one = TESTS.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = Wait(Arc::new(AtomicBool::new(true)));
        defer(Box::new(Keeper(Some(kept))));
        poll();
        assert_eq!(entries(), 0, "one went, and one came");
    }

    /// Counts its tries.
    struct Tried {
        ready: Arc<AtomicBool>,
        tries: Arc<AtomicU64>,
    }

    impl Deferred for Tried {
        fn name(&self) -> &'static str {
            "thing that is tried"
        }

        fn try_release(&mut self) -> Outcome {
            self.tries.fetch_add(1, Ordering::Relaxed);
            if self.ready.load(Ordering::Relaxed) {
                Outcome::Done
            } else {
                Outcome::NotYet
            }
        }
    }

    #[test]
    fn what_waits_long_is_tried_seldom_but_still_tried() {
        let _one = TESTS.lock().unwrap_or_else(PoisonError::into_inner);
        let (ready, tries) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        defer(Box::new(Tried {
            ready: Arc::clone(&ready),
            tries: Arc::clone(&tries),
        }));
        (0..1000).for_each(|_| poll());
        let tried = tries.load(Ordering::Relaxed);
        assert!((10..500).contains(&tried), "{tried} tries in 1000 polls");
        ready.store(true, Ordering::Relaxed);
        (0..=LONGEST_PAUSE).for_each(|_| poll());
        assert_eq!(entries(), 0, "no pause is longer");
    }

    /// Looks whether another release could begin while it is released.
    struct Looks(Arc<AtomicBool>);

    impl Deferred for Looks {
        fn name(&self) -> &'static str {
            "thing that looks"
        }

        fn try_release(&mut self) -> Outcome {
            let before = entries();
            poll_stream(STREAM);
            let is_alone = entries() == before && !may_release();
            self.0.store(is_alone, Ordering::Relaxed);
            Outcome::Done
        }
    }

    /// No stream.
    const STREAM: Order = Order::Stream(u64::MAX);

    /// What releases something may hold locks that the other release needs.
    #[test]
    fn no_release_begins_inside_of_another() {
        let _one = TESTS.lock().unwrap_or_else(PoisonError::into_inner);
        let was_alone = Arc::<AtomicBool>::default();
        defer(Box::new(Looks(Arc::clone(&was_alone))));
        defer_in_order(STREAM, Box::new(Wait(Arc::new(AtomicBool::new(true)))));
        poll();
        assert!(was_alone.load(Ordering::Relaxed));
        assert_eq!(entries(), 0, "the other one comes afterwards");
    }
}
