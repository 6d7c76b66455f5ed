//! The queue of deferred releases: what cannot be released yet is retried whenever the host may have seen more work
//! done, after everything that synchronises, and when streams and contexts end.
//!
//! Rules:
//!
//! - An entry is tried with no lock held. What it releases, and what its drop releases, may defer more.
//! - One thread polls at a time. Others return at once, and so does a poll inside of a poll.
//! - Nothing is released while the thread is inside a call of a memory resource, which may hold locks that
//!   the release needs. A request that fails for lack of memory is made again if something can be released after it.
//! - No try waits for a stream. The driver waits for the whole device when it frees host memory. Such an entry is tried
//!   only after a wait that the program asked for, where memory is out, before a request that may itself wait for memory,
//!   and when the last handle of its stream ends: any other call may be what the device waits for.
//!   The same holds for an arena that ends in a try.
//! - An entry that is not ready is tried less and less often. After a wait for a whole context every entry is tried, and
//!   before each use of a stream the entries released in the order of that stream.
//! - A fork leaves the whole queue to the parent.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::base::error::{Error, ErrorKind};
use crate::base::report::{self, WAITING as ENTRIES};
use crate::stream::name::StreamName;

/// Something whose release may have to wait.
pub(crate) trait Deferred: Any + Send {
    /// The name of the object, for reports.
    fn name(&self) -> &'static str;

    /// Releases it if that is possible now, without waiting for a stream.
    fn try_release(&mut self) -> Outcome;

    /// Whether the release waits for all work of the device. Asked once.
    fn waits_for_device(&self) -> bool {
        false
    }
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

/// What the thread that polls has just done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum After {
    /// A wait that the program asked for.
    Wait,
    /// Something else, which must not wait for the device.
    Call,
}

impl After {
    /// Whether something may be tried now that waits for the device, or does not.
    fn may_try(self, waits_for_device: bool) -> bool {
        self == Self::Wait || !waits_for_device
    }

    /// While the guard lives, what ends on this thread is released by the rules for this.
    pub(crate) fn begin(self) -> Now {
        Now {
            outer: NOW.replace(self),
        }
    }
}

/// See [`After::begin`].
#[must_use]
pub(crate) struct Now {
    outer: After,
}

impl Drop for Now {
    fn drop(&mut self) {
        NOW.set(self.outer);
    }
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
    waits_for_device: bool,
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
    /// What this thread has just done, while it does what follows from that. Elsewhere the program drops things itself, and
    /// then a drop may wait.
    static NOW: Cell<After> = const { Cell::new(After::Wait) };
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
    // A resource of the program may answer, so not under the lock.
    let waits_for_device = deferred.waits_for_device();
    queue().push_back(Entry {
        deferred,
        waits_for_device,
        order,
        tries: 0,
        pause: 0,
    });
}

/// Releases something now if possible, or else keeps it. The error is the one that would be reported.
pub(crate) fn release_or_defer(mut deferred: Box<dyn Deferred>) -> Result<(), Error> {
    if ResourceCall::is_running() || !NOW.get().may_try(deferred.waits_for_device()) {
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
pub(crate) fn poll(after: After) {
    if has_entries() {
        poll_entries(after, false);
    }
}

/// As [`poll`], after a wait for a whole context: no entry is skipped.
#[inline]
pub(crate) fn poll_all() {
    if has_entries() {
        poll_entries(After::Wait, true);
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
fn poll_entries(after: After, all: bool) {
    if !may_release() {
        return;
    }
    if all {
        // If another thread is polling, it tries all of them.
        IS_ALL_WANTED.store(true, Ordering::SeqCst);
    }
    // Again if another thread has wanted all of them, and found this poll running. What this one may not try is left to
    // the next wait, for which the wish stays.
    let mut was_wanted = false;
    while let Some(poll) = Poll::begin() {
        poll_in_passes(after);
        drop(poll);
        let is_wanted = IS_ALL_WANTED.load(Ordering::SeqCst);
        if !is_wanted || after == After::Call && was_wanted {
            break;
        }
        was_wanted = true;
    }
}

fn poll_in_passes(after: After) {
    let _now = after.begin();
    let mut is_all = false;
    for _ in 0..PASSES {
        let entries = queue().len();
        is_all |= match after {
            After::Wait => IS_ALL_WANTED.swap(false, Ordering::SeqCst),
            After::Call => IS_ALL_WANTED.load(Ordering::SeqCst),
        };
        let released = pass(entries, after, is_all);
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
fn pass(entries: usize, after: After, all: bool) -> usize {
    let mut released = 0;
    let mut left = entries;
    // One at a time, so that the others stay reachable meanwhile.
    while let Some(entry) = next(&mut left, after, all) {
        if PendingTry::new(entry).release(Deferred::try_release) {
            released += 1;
        }
    }
    released
}

/// Takes the next entry that is to be tried, of this many at the front of the queue. Those that are passed go to its end
/// without leaving it: the last handle of their stream finds them there.
fn next(left: &mut usize, after: After, all: bool) -> Option<Entry> {
    let mut queue = queue();
    while *left > 0 {
        *left -= 1;
        let mut entry = queue.pop_front()?;
        if after.may_try(entry.waits_for_device) {
            if entry.pause == 0 || all {
                return Some(entry);
            }
            entry.pause -= 1;
        }
        queue.push_back(entry);
    }
    None
}

/// Releases the entries of the stream that can be released now.
#[cold]
pub(crate) fn poll_stream(order: Order, after: After) {
    release_in_order(order, after, Deferred::try_release);
}

/// Releases the entries of the stream by calling `release`. Entries that cannot be released stay.
pub(crate) fn release_in_order(
    order: Order,
    after: After,
    mut release: impl FnMut(&mut dyn Deferred) -> Outcome,
) {
    if !may_release() {
        return;
    }
    let _now = after.begin();
    let mut found = {
        let mut queue = queue();
        let (found, rest) = std::mem::take(&mut *queue)
            .into_iter()
            .partition(|entry| entry.order == Some(order) && after.may_try(entry.waits_for_device));
        *queue = rest;
        Taken(found)
    };
    while let Some(entry) = found.0.pop_front() {
        PendingTry::new(entry).release(&mut release);
    }
}

/// Entries that were taken from the queue. What is left of them goes back, should a release panic.
struct Taken(VecDeque<Entry>);

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            queue().append(&mut self.0);
        }
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
            // What it owns may be the program's, as a resource below an arena is.
            if report::caught(|| drop(self.0.take())).is_none() {
                let text = "a destructor of the program panicked";
                report::failed(name, &Error::new(ErrorKind::Other, text));
            }
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
mod tests;
