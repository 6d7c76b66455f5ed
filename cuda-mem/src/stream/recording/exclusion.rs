//! Work that must stay out of a capture which another thread begins at the same moment.
//!
//! Checking whether a stream is captured and calling the driver are two steps. Between them a capture could begin, and
//! the driver would record the work instead of doing it: a copy would run again at each launch of the graph, long
//! after its slice was given away. So a thread notes which stream it is about to use, then checks, then calls; and a
//! capture is announced first, then waits until no thread is noted, then begins. If two threads do this at once, one
//! sees the other, because a barrier separates each thread's note from its check. The frequent side has the half of
//! the barrier that costs nothing.

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use cuda_driver_sys::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUcontext, CUstream};

use super::refuse_recorded;
use crate::base::barrier::{self, pair};
use crate::base::error::{Error, Result};
use crate::base::report;
use crate::driver::raw::Table;

/// The most streams that a thread uses at once: a copy that waits, in which something is given back, which is ordered
/// after another stream, takes three, and a group of collective operations one for each of its streams. What comes
/// beyond counts as work in every stream. This takes two cache lines for each thread; the usual call looks at one word.
const DEEPEST: usize = 16;

const NOTHING: usize = 0;
const EVERY_STREAM: usize = usize::MAX;

/// The streams that one thread is about to use. Never freed: the next thread takes it over.
#[derive(Debug)]
struct ThreadSlot {
    streams: [AtomicUsize; DEEPEST],
}

static SLOTS: Mutex<Slots> = Mutex::new(Slots {
    all: Vec::new(),
    free: Vec::new(),
});

struct Slots {
    all: Vec<&'static ThreadSlot>,
    free: Vec<&'static ThreadSlot>,
}

/// Gives the slot back when its thread ends.
#[derive(Debug)]
struct SlotLease(&'static ThreadSlot);

impl SlotLease {
    fn take() -> Self {
        let mut slots = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = slots.free.pop().unwrap_or_else(|| {
            let slot: &'static ThreadSlot = Box::leak(Box::new(ThreadSlot {
                streams: [const { AtomicUsize::new(NOTHING) }; DEEPEST],
            }));
            slots.all.push(slot);
            slot
        });
        Self(slot)
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        // The next thread that takes it must be the only one to write there.
        SLOT.set(None);
        // In a fork there may be no thread left to unlock the list.
        if !report::is_forked() {
            let mut slots = SLOTS.lock().unwrap_or_else(PoisonError::into_inner);
            slots.free.push(self.0);
        }
    }
}

thread_local! {
    static LEASE: SlotLease = SlotLease::take();
    /// The slot of [`LEASE`], once it is taken. It is found without checking whether the thread is ending. Set only
    /// where the light half of the barrier is [there](barrier::is_there), so that this need not be checked either.
    static SLOT: Cell<Option<&'static ThreadSlot>> = const { Cell::new(None) };
}

/// As [`CaptureExclusion`], in one word: the only note of its thread.
#[derive(Debug)]
#[must_use]
pub(crate) struct PlainExclusion {
    place: &'static AtomicUsize,
    /// Belongs to its thread.
    not_send: PhantomData<*mut ()>,
}

/// As [`exclude_captures`], in the usual case: the thread has its slot and is in no such work, and this crate captures
/// no stream. `None` in any other case. Not for default streams.
#[inline(always)]
pub(crate) fn exclude_plainly(stream: CUstream) -> Option<PlainExclusion> {
    let place = &SLOT.get()?.streams[0];
    // Only this thread writes here.
    if place.load(Ordering::Relaxed) != NOTHING {
        return None;
    }
    place.store(stream.addr(), Ordering::Relaxed);
    let noted = PlainExclusion {
        place,
        not_send: PhantomData,
    };
    barrier::light();
    (!super::any()).then_some(noted)
}

impl Drop for PlainExclusion {
    #[inline(always)]
    fn drop(&mut self) {
        self.place.store(NOTHING, Ordering::Release);
    }
}

/// While it lives, no capture of the stream begins.
#[derive(Debug)]
#[must_use]
pub(crate) struct CaptureExclusion {
    /// Where it is noted, unless an outer call has noted it.
    place: Option<&'static AtomicUsize>,
    /// For a thread that is ending, whose own lease is gone.
    _lease: Option<SlotLease>,
    /// Belongs to its thread.
    not_send: PhantomData<*mut ()>,
}

impl CaptureExclusion {
    /// Whether no outer work of this thread uses the stream.
    pub(crate) fn is_outermost(&self) -> bool {
        self.place.is_some()
    }
}

/// A number for the stream, never [`NOTHING`]. The handles of default streams are the same in every context, so theirs is
/// the context's handle, which is aligned, plus 1 or 2.
pub(super) fn number(context: CUcontext, stream: CUstream) -> usize {
    match stream.addr() {
        handle if handle <= CU_STREAM_PER_THREAD.addr() => {
            context.addr() + handle.max(CU_STREAM_LEGACY.addr())
        }
        handle => handle,
    }
}

fn holds(slot: &ThreadSlot, stream: usize) -> bool {
    slot.streams.iter().any(|place| {
        let noted = place.load(Ordering::Acquire);
        noted == stream || noted == EVERY_STREAM
    })
}

/// Whether this thread is in work that keeps captures of the stream from beginning.
#[cold]
pub(super) fn is_held(context: CUcontext, stream: CUstream) -> bool {
    LEASE
        .try_with(|lease| holds(lease.0, number(context, stream)))
        .unwrap_or(false)
}

/// Keeps captures of the stream from beginning while the guard lives: during one call of the driver, or a few. An
/// error if this crate captures the stream.
#[inline]
pub(crate) fn exclude_captures(
    table: &Table,
    context: CUcontext,
    stream: CUstream,
) -> Result<CaptureExclusion> {
    if report::is_forked() {
        return Err(Error::forked());
    }
    let number = number(context, stream);
    let note_in_slot = |lease: &SlotLease| {
        if barrier::is_there() {
            SLOT.set(Some(lease.0));
        }
        note(lease.0, number)
    };
    let (place, lease) = match LEASE.try_with(note_in_slot) {
        Ok(place) => (place, None),
        Err(_) => note_at_the_end(number),
    };
    let outside = CaptureExclusion {
        place,
        _lease: lease,
        not_send: PhantomData,
    };
    if let Some(place) = outside.place {
        pair::light();
        if super::any() && place.load(Ordering::Relaxed) == EVERY_STREAM {
            // Deeper calls are not checked, so no capture at all may be running.
            return Err(Error::capturing(
                "calls lie in each other too deep, or a group uses too many streams, to be kept out of the capture \
                 that is going on"
                    .to_owned(),
            ));
        }
        if super::any() {
            refuse_recorded(table, context, stream)?;
        }
    }
    Ok(outside)
}

/// Where it was noted; `None` if it already was.
#[inline]
fn note(slot: &'static ThreadSlot, stream: usize) -> Option<&'static AtomicUsize> {
    let first = &slot.streams[0];
    // Only this thread writes here.
    if first.load(Ordering::Relaxed) == NOTHING {
        first.store(stream, Ordering::Relaxed);
        return Some(first);
    }
    note_deeper(slot, stream)
}

#[cold]
fn note_deeper(slot: &'static ThreadSlot, stream: usize) -> Option<&'static AtomicUsize> {
    if holds(slot, stream) {
        return None;
    }
    let free = |place: &&'static AtomicUsize| place.load(Ordering::Relaxed) == NOTHING;
    let place = slot.streams.iter().find(free)?;
    let is_last = ptr::eq(place, &slot.streams[DEEPEST - 1]);
    place.store(
        if is_last { EVERY_STREAM } else { stream },
        Ordering::Relaxed,
    );
    Some(place)
}

impl Drop for CaptureExclusion {
    #[inline]
    fn drop(&mut self) {
        if let Some(place) = self.place {
            place.store(NOTHING, Ordering::Release);
        }
    }
}

#[cold]
fn note_at_the_end(stream: usize) -> (Option<&'static AtomicUsize>, Option<SlotLease>) {
    let lease = SlotLease::take();
    (note(lease.0, stream), Some(lease))
}

/// Waits until no other thread is about to use the stream, or what would spoil its capture. The capture is already announced, so no thread begins anew.
/// An error if this thread itself is in the middle of such work.
#[cold]
pub(super) fn wait_for_all(context: CUcontext, stream: CUstream) -> Result<()> {
    // No other thread uses this thread's own stream, but work in the legacy stream would spoil the capture (R193).
    let other = match stream == CU_STREAM_PER_THREAD {
        true => CU_STREAM_LEGACY,
        false => stream,
    };
    if is_held(context, stream) || is_held(context, other) {
        return Err(Error::capturing(
            "this thread is in the middle of other work in the stream; begin the capture after it"
                .to_owned(),
        ));
    }
    let number = number(context, other);
    pair::heavy();
    let all = SLOTS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .all
        .clone();
    for slot in all {
        let mut tries = 0_u32;
        while holds(slot, number) {
            // A call takes microseconds; a copy that is waited for takes as long as it takes.
            if tries < 100 {
                std::hint::spin_loop();
            } else if tries < 1000 {
                std::thread::yield_now();
            } else {
                std::thread::sleep(std::time::Duration::from_micros(50));
            }
            tries = tries.saturating_add(1);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::MutexGuard;
    use std::sync::atomic::AtomicBool;

    use super::super::{CaptureToken, refuse};
    use super::*;

    const STREAM: usize = 0x1000;
    const NO_CONTEXT: CUcontext = ptr::null_mut();

    /// A capture excludes new work in the whole process, so the tests take turns.
    fn turn() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle() -> CUstream {
        ptr::without_provenance_mut(STREAM)
    }

    #[test]
    fn a_capture_waits_for_work_and_keeps_new_work_out() {
        let _turn = turn();
        let table = Table::default();
        let has_begun = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let work = exclude_captures(&table, NO_CONTEXT, handle()).expect("no capture");
            let capture = scope.spawn(|| {
                let note =
                    CaptureToken::new(&table, NO_CONTEXT, handle()).expect("the only capture");
                has_begun.store(true, Ordering::SeqCst);
                drop(note);
            });
            while refuse_recorded(&table, NO_CONTEXT, handle()).is_ok() {
                std::thread::yield_now();
            }
            assert!(!has_begun.load(Ordering::SeqCst), "there is work");
            // What belongs to the work goes on, what is new does not begin.
            refuse(&table, NO_CONTEXT, handle()).expect("the same work");
            drop(exclude_captures(&table, NO_CONTEXT, handle()).expect("the same work"));
            assert!(!has_begun.load(Ordering::SeqCst), "the outer one counts");
            let other = scope.spawn(|| exclude_captures(&table, NO_CONTEXT, handle()).is_err());
            assert!(other.join().expect("no panic"), "new work");
            drop(work);
            capture.join().expect("no panic");
        });
        assert!(has_begun.load(Ordering::SeqCst));
    }

    #[test]
    fn a_capture_of_a_threads_own_stream_waits_for_work_in_the_legacy_one() {
        let _turn = turn();
        let table = Table::default();
        let context = || ptr::without_provenance_mut(0xa000);
        let has_begun = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let work = exclude_captures(&table, context(), CU_STREAM_LEGACY).expect("no capture");
            let elsewhere = ptr::without_provenance_mut(0xb000);
            drop(
                CaptureToken::new(&table, elsewhere, CU_STREAM_PER_THREAD).expect("no work there"),
            );
            CaptureToken::new(&table, context(), CU_STREAM_PER_THREAD)
                .expect_err("this thread would wait for itself");
            let capture = scope.spawn(|| {
                let note = CaptureToken::new(&table, context(), CU_STREAM_PER_THREAD);
                has_begun.store(true, Ordering::SeqCst);
                drop(note.expect("the only capture"));
            });
            while super::super::refuse_legacy(&table, context()).is_ok() {
                std::thread::yield_now();
            }
            assert!(!has_begun.load(Ordering::SeqCst), "there is work");
            drop(work);
            capture.join().expect("no panic");
        });
        assert!(has_begun.load(Ordering::SeqCst));
    }

    #[test]
    fn a_capture_in_the_middle_of_its_own_work_is_refused() {
        let _turn = turn();
        let table = Table::default();
        let stream = ptr::without_provenance_mut(0x2000);
        let work = exclude_captures(&table, NO_CONTEXT, stream).expect("no capture");
        CaptureToken::new(&table, NO_CONTEXT, stream).expect_err("it would wait for itself");
        drop(work);
        drop(CaptureToken::new(&table, NO_CONTEXT, stream).expect("the work is over"));
    }

    #[test]
    fn deep_work_counts_for_every_stream() {
        let _turn = turn();
        let table = Table::default();
        let stream = |number: usize| ptr::without_provenance_mut(0x3000 + number);
        let works: Vec<_> = (0..DEEPEST + 2)
            .map(|number| exclude_captures(&table, NO_CONTEXT, stream(number)).expect("no capture"))
            .collect();
        for number in 0..DEEPEST + 3 {
            assert!(is_held(NO_CONTEXT, stream(number)), "{number}");
        }
        drop(works);
        for number in 0..DEEPEST + 3 {
            assert!(!is_held(NO_CONTEXT, stream(number)), "{number}");
        }
    }

    #[test]
    fn work_in_the_default_stream_counts_for_that_stream_alone() {
        let _turn = turn();
        let table = Table::default();
        let (default, other) = (ptr::null_mut(), ptr::without_provenance_mut(0x5000));
        for (stream, idle) in [(default, other), (other, default)] {
            let work = exclude_captures(&table, NO_CONTEXT, stream).expect("no stream is captured");
            assert!(is_held(NO_CONTEXT, stream) && !is_held(NO_CONTEXT, idle));
            drop(work);
            assert!(!is_held(NO_CONTEXT, stream));
        }
    }

    #[test]
    fn a_default_stream_is_another_one_in_each_context() {
        let _turn = turn();
        let table = Table::default();
        let contexts = [0x8000, 0x9000].map(ptr::without_provenance_mut);
        for stream in [0, 1, 2].map(ptr::without_provenance_mut) {
            let [here, there] = contexts;
            let work = exclude_captures(&table, here, stream).expect("no stream is captured");
            assert!(is_held(here, stream) && !is_held(there, stream));
            drop(CaptureToken::new(&table, there, stream).expect("it has no work"));
            drop(work);
        }
    }

    #[test]
    fn slots_are_taken_over() {
        let _turn = turn();
        let table = Table::default();
        let slot = || {
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    drop(exclude_captures(
                        &table,
                        NO_CONTEXT,
                        ptr::without_provenance_mut(0x4000),
                    ));
                    LEASE.with(|lease| ptr::from_ref(lease.0).addr())
                });
                thread.join().expect("no panic")
            })
        };
        // Other tests may take the one that was given back, and keep it; but not that often.
        let slots: HashSet<usize> = (0..64).map(|_| slot()).collect();
        assert!(slots.len() < 64);
    }

    #[test]
    fn plain_work_is_noted_too_and_only_outside_of_other_work() {
        let _turn = turn();
        let table = Table::default();
        let stream = ptr::without_provenance_mut(0x6000);
        let other = ptr::without_provenance_mut(0x7000);
        // The first call of a thread takes its slot.
        drop(exclude_captures(&table, NO_CONTEXT, stream).expect("no capture"));
        let plain = exclude_plainly(stream);
        assert_eq!(plain.is_some(), barrier::is_there());
        assert_eq!(is_held(NO_CONTEXT, stream), plain.is_some());
        assert!(!is_held(NO_CONTEXT, other));
        drop(plain);
        assert!(!is_held(NO_CONTEXT, stream));
        let work = exclude_captures(&table, NO_CONTEXT, other).expect("no capture");
        assert!(exclude_plainly(stream).is_none(), "it has one place");
        assert!(
            is_held(NO_CONTEXT, other) && !is_held(NO_CONTEXT, stream),
            "which stays as it was"
        );
        drop(work);
    }
}
