//! Tests of the queue.

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
        poll(After::Wait);
        Outcome::Done
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        defer(Box::new(Wait(Arc::new(AtomicBool::new(true)))));
        poll(After::Wait);
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
    poll(After::Wait);
    assert_eq!(entries(), 1);
    ready.store(true, Ordering::Relaxed);
    poll(After::Wait);
    assert_eq!(entries(), 0);
    assert_eq!(Arc::strong_count(&ready), 1, "it was dropped");
}

#[test]
fn what_is_released_may_defer_and_poll() {
    let _one = TESTS.lock().unwrap_or_else(PoisonError::into_inner);
    within_reason(|| {
        let ready = Arc::new(AtomicBool::new(true));
        defer(Box::new(Owner(Some(Wait(ready)))));
        poll(After::Wait);
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
    poll(After::Wait);
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
    (0..200).for_each(|_| poll(After::Wait));
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
    poll(After::Wait);
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
    (0..1000).for_each(|_| poll(After::Wait));
    let tried = tries.load(Ordering::Relaxed);
    assert!((10..500).contains(&tried), "{tried} tries in 1000 polls");
    ready.store(true, Ordering::Relaxed);
    (0..=LONGEST_PAUSE).for_each(|_| poll(After::Wait));
    assert_eq!(entries(), 0, "no pause is longer");
}

/// Waits for the device, which other polls may not.
struct WaitsForDevice(Tried);

impl Deferred for WaitsForDevice {
    fn name(&self) -> &'static str {
        "thing that waits for the device"
    }

    fn try_release(&mut self) -> Outcome {
        self.0.try_release()
    }

    fn waits_for_device(&self) -> bool {
        true
    }
}

/// Its release ends what waits for the device, as the last buffer of an arena does.
struct Brings(Option<WaitsForDevice>);

impl Deferred for Brings {
    fn name(&self) -> &'static str {
        "thing that brings another"
    }

    fn try_release(&mut self) -> Outcome {
        match self.0.take() {
            Some(other) => {
                release_or_defer(Box::new(other)).map_or_else(Outcome::GivenUp, |()| Outcome::Done)
            }
            None => Outcome::Done,
        }
    }
}

#[test]
fn what_a_release_brings_waits_for_the_device_only_after_a_wait() {
    let _one = TESTS.lock().unwrap_or_else(PoisonError::into_inner);
    for after in [After::Call, After::Wait] {
        let (ready, tries) = (Arc::new(AtomicBool::new(true)), Arc::<AtomicU64>::default());
        let tried = Tried {
            ready,
            tries: Arc::clone(&tries),
        };
        defer(Box::new(Brings(Some(WaitsForDevice(tried)))));
        poll(after);
        let is_wait = after == After::Wait;
        assert_eq!(
            tries.load(Ordering::Relaxed),
            u64::from(is_wait),
            "{after:?}"
        );
        assert_eq!(entries(), u64::from(!is_wait), "{after:?}");
        poll(After::Wait);
        assert_eq!(
            (tries.load(Ordering::Relaxed), entries()),
            (1, 0),
            "{after:?}"
        );
    }
}

/// The rule for a poll ends with it: what the program then drops itself may wait.
#[test]
fn what_ends_after_a_poll_may_wait_for_the_device() {
    let _one = TESTS.lock().unwrap_or_else(PoisonError::into_inner);
    defer(Box::new(Wait(Arc::new(AtomicBool::new(true)))));
    poll(After::Call);
    let (ready, tries) = (Arc::new(AtomicBool::new(true)), Arc::<AtomicU64>::default());
    let tried = Tried {
        ready,
        tries: Arc::clone(&tries),
    };
    release_or_defer(Box::new(WaitsForDevice(tried))).expect("it goes at once");
    assert_eq!((tries.load(Ordering::Relaxed), entries()), (1, 0));
}

/// Stays in its release until it may go on.
struct Stays(mpsc::Sender<()>, mpsc::Receiver<()>);

impl Deferred for Stays {
    fn name(&self) -> &'static str {
        "thing that stays"
    }

    fn try_release(&mut self) -> Outcome {
        let _ = self.0.send(());
        let _ = self.1.recv();
        Outcome::Done
    }
}

/// The wait finds a poll running that must not wait for the device. The next wait makes up for it, pause or not.
#[test]
fn a_poll_that_must_not_wait_leaves_the_wish_for_all_to_the_next_wait() {
    let _one = TESTS.lock().unwrap_or_else(PoisonError::into_inner);
    let (ready, tries) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
    defer(Box::new(WaitsForDevice(Tried {
        ready: Arc::clone(&ready),
        tries: Arc::clone(&tries),
    })));
    poll(After::Call);
    assert_eq!(tries.load(Ordering::Relaxed), 0, "tried after a call");
    // It pauses from now on.
    (0..1000).for_each(|_| poll(After::Wait));
    let (tell, is_there) = mpsc::channel();
    let (go, may_go) = mpsc::channel();
    defer(Box::new(Stays(tell, may_go)));
    let other = std::thread::spawn(|| poll(After::Call));
    is_there.recv().expect("the other thread polls");
    ready.store(true, Ordering::Relaxed);
    poll_all();
    go.send(()).expect("it waits");
    other.join().expect("no panic");
    assert_eq!(entries(), 1, "that thread must not wait for the device");
    poll(After::Wait);
    assert_eq!(entries(), 0, "the wish for all is lost");
}

/// Looks whether another release could begin while it is released.
struct Looks(Arc<AtomicBool>);

impl Deferred for Looks {
    fn name(&self) -> &'static str {
        "thing that looks"
    }

    fn try_release(&mut self) -> Outcome {
        let before = entries();
        poll_stream(STREAM, After::Wait);
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
    poll(After::Wait);
    assert!(was_alone.load(Ordering::Relaxed));
    assert_eq!(entries(), 0, "the other one comes afterwards");
}

/// Not those of other streams, which would be released in the wrong order.
#[test]
fn a_stream_releases_its_own_entries() {
    let _one = TESTS.lock().unwrap_or_else(PoisonError::into_inner);
    let ready = || Arc::new(AtomicBool::new(true));
    let tried = Tried {
        ready: ready(),
        tries: Arc::default(),
    };
    defer(Box::new(Wait(ready())));
    defer_in_order(Order::Stream(u64::MAX - 1), Box::new(Wait(ready())));
    defer_in_order(STREAM, Box::new(Wait(ready())));
    defer_in_order(STREAM, Box::new(WaitsForDevice(tried)));
    poll_stream(STREAM, After::Call);
    assert_eq!(entries(), 3, "one is its own and waits for nothing");
    poll_stream(STREAM, After::Wait);
    assert_eq!(entries(), 2, "those that are not its own");
    poll(After::Wait);
    assert_eq!(entries(), 0);
}

/// Panics at the first try.
struct PanicsOnce(bool);

impl Deferred for PanicsOnce {
    fn name(&self) -> &'static str {
        "thing"
    }

    fn try_release(&mut self) -> Outcome {
        assert!(std::mem::replace(&mut self.0, true), "the first try");
        Outcome::Done
    }
}

#[test]
fn a_release_that_panics_loses_no_other() {
    let _one = TESTS.lock().unwrap_or_else(PoisonError::into_inner);
    let before = entries();
    let ready = Arc::new(AtomicBool::new(true));
    defer_in_order(STREAM, Box::new(PanicsOnce(false)));
    defer_in_order(STREAM, Box::new(Wait(ready)));
    assert!(report::caught(|| poll_stream(STREAM, After::Wait)).is_none());
    assert_eq!(entries(), before + 2);
    poll_stream(STREAM, After::Wait);
    assert_eq!(entries(), before, "both were released");
}
