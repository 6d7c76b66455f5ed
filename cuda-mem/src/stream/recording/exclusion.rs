//! Work that must stay out of a capture which another thread begins at the same moment.
//!
//! Checking whether a stream is captured and calling the driver are two steps. Between them a capture could begin, and
//! the driver would record the work instead of doing it: a copy would run again at each launch of the graph, long
//! after its slice was given away. So a thread notes which stream it is about to use, then checks, then calls; and a
//! capture is announced first, then waits until no thread is noted, then begins. If two threads do this at once, one
//! sees the other, because a barrier separates each thread's note from its check. The frequent side has the half of
//! the barrier that costs nothing. A wait for a whole context, which would invalidate captures of all its streams, is
//! noted in the same way.

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

/// The number that stands for all streams of the context, and differs from that of each.
fn all_of(context: CUcontext) -> usize {
    context.addr()
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
    let outside = exclude(number(context, stream))?;
    if outside.is_outermost() && super::any() {
        refuse_recorded(table, context, stream)?;
    }
    Ok(outside)
}

/// Keeps captures of all streams of the context from beginning while the guard lives: during a wait for the context,
/// which would invalidate them (R110). Captures that are running are the caller's to look for.
#[cold]
pub(crate) fn exclude_captures_in(context: CUcontext) -> Result<CaptureExclusion> {
    if report::is_forked() {
        return Err(Error::forked());
    }
    exclude(all_of(context))
}

/// Notes the number for this thread.
#[inline]
fn exclude(number: usize) -> Result<CaptureExclusion> {
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

/// Waits until no other thread is about to use the stream, or what would spoil its capture. The capture is already
/// announced, so no thread begins anew. An error if this thread itself is in the middle of such work.
#[cold]
pub(super) fn wait_for_all(context: CUcontext, stream: CUstream, is_blocking: bool) -> Result<()> {
    // No other thread uses this thread's own stream.
    let is_shared = stream != CU_STREAM_PER_THREAD;
    let numbers = [
        is_shared.then(|| number(context, stream)),
        // Work in the legacy stream would spoil the capture (R193).
        is_blocking.then(|| number(context, CU_STREAM_LEGACY)),
        Some(all_of(context)),
    ];
    let is_busy = |slot| numbers.iter().flatten().any(|it| holds(slot, *it));
    if is_held(context, stream) || LEASE.try_with(|lease| is_busy(lease.0)).unwrap_or(false) {
        return Err(Error::capturing(
            "this thread is in the middle of other work in the stream; begin the capture after it"
                .to_owned(),
        ));
    }
    pair::heavy();
    let all = SLOTS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .all
        .clone();
    for slot in all {
        let mut tries = 0_u32;
        while is_busy(slot) {
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
mod tests;
