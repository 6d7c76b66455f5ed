//! Captures wait for work of other threads, and keep new work out.

use std::collections::HashSet;
use std::sync::MutexGuard;
use std::sync::atomic::AtomicBool;

use super::super::{CaptureToken, refuse, refuse_legacy};
use super::*;

const STREAM: usize = 0x1000;
const CONTEXT: CUcontext = ptr::without_provenance_mut(0xc000);

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
        let work = exclude_captures(&table, CONTEXT, handle()).expect("no capture");
        let capture = scope.spawn(|| {
            let note =
                CaptureToken::new(&table, CONTEXT, handle(), false).expect("the only capture");
            has_begun.store(true, Ordering::SeqCst);
            drop(note);
        });
        while refuse_recorded(&table, CONTEXT, handle()).is_ok() {
            std::thread::yield_now();
        }
        assert!(!has_begun.load(Ordering::SeqCst), "there is work");
        // What belongs to the work goes on, what is new does not begin.
        refuse(&table, CONTEXT, handle()).expect("the same work");
        drop(exclude_captures(&table, CONTEXT, handle()).expect("the same work"));
        assert!(!has_begun.load(Ordering::SeqCst), "the outer one counts");
        let other = scope.spawn(|| exclude_captures(&table, CONTEXT, handle()).is_err());
        assert!(other.join().expect("no panic"), "new work");
        drop(work);
        capture.join().expect("no panic");
    });
    assert!(has_begun.load(Ordering::SeqCst));
}

#[test]
fn a_capture_of_a_blocking_stream_waits_for_work_in_the_legacy_one() {
    let _turn = turn();
    capture_waits_for_legacy_work(|| CU_STREAM_PER_THREAD);
    capture_waits_for_legacy_work(handle);
    let table = Table::default();
    let work = exclude_captures(&table, CONTEXT, CU_STREAM_LEGACY).expect("no capture");
    drop(CaptureToken::new(&table, CONTEXT, handle(), false).expect("it is not blocking"));
    drop(work);
}

fn capture_waits_for_legacy_work(blocking: fn() -> CUstream) {
    let table = Table::default();
    let context = || ptr::without_provenance_mut(0xa000);
    let has_begun = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let work = exclude_captures(&table, context(), CU_STREAM_LEGACY).expect("no capture");
        let elsewhere = ptr::without_provenance_mut(0xb000);
        drop(CaptureToken::new(&table, elsewhere, blocking(), true).expect("no work there"));
        CaptureToken::new(&table, context(), blocking(), true)
            .expect_err("this thread would wait for itself");
        let capture = scope.spawn(|| {
            let note = CaptureToken::new(&table, context(), blocking(), true);
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
fn a_capture_waits_for_a_wait_for_its_context() {
    let _turn = turn();
    let table = Table::default();
    let stream = || ptr::without_provenance_mut(0xd000);
    let has_begun = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let wait = exclude_captures_in(CONTEXT).expect("no capture");
        let elsewhere = ptr::without_provenance_mut(0xe000);
        drop(CaptureToken::new(&table, elsewhere, stream(), false).expect("no wait there"));
        CaptureToken::new(&table, CONTEXT, stream(), false).expect_err("this thread waits");
        drop(exclude_captures(&table, CONTEXT, stream()).expect("work is not excluded"));
        let capture = scope.spawn(|| {
            let note = CaptureToken::new(&table, CONTEXT, stream(), false);
            has_begun.store(true, Ordering::SeqCst);
            drop(note.expect("the only capture"));
        });
        while !super::super::captures_in(&table, CONTEXT) {
            std::thread::yield_now();
        }
        assert!(!has_begun.load(Ordering::SeqCst), "there is a wait");
        drop(wait);
        capture.join().expect("no panic");
    });
    assert!(has_begun.load(Ordering::SeqCst));
}

#[test]
fn a_capture_in_the_middle_of_its_own_work_is_refused() {
    let _turn = turn();
    let table = Table::default();
    let stream = ptr::without_provenance_mut(0x2000);
    let work = exclude_captures(&table, CONTEXT, stream).expect("no capture");
    CaptureToken::new(&table, CONTEXT, stream, false).expect_err("it would wait for itself");
    drop(work);
    drop(CaptureToken::new(&table, CONTEXT, stream, false).expect("the work is over"));
}

#[test]
fn deep_work_counts_for_every_stream() {
    let _turn = turn();
    let table = Table::default();
    let stream = |number: usize| ptr::without_provenance_mut(0x3000 + number);
    let works: Vec<_> = (0..DEEPEST + 2)
        .map(|number| exclude_captures(&table, CONTEXT, stream(number)).expect("no capture"))
        .collect();
    for number in 0..DEEPEST + 3 {
        assert!(is_held(CONTEXT, stream(number)), "{number}");
    }
    drop(works);
    for number in 0..DEEPEST + 3 {
        assert!(!is_held(CONTEXT, stream(number)), "{number}");
    }
}

#[test]
fn work_in_the_default_stream_counts_for_that_stream_alone() {
    let _turn = turn();
    let table = Table::default();
    let (default, other) = (ptr::null_mut(), ptr::without_provenance_mut(0x5000));
    for (stream, idle) in [(default, other), (other, default)] {
        let work = exclude_captures(&table, CONTEXT, stream).expect("no stream is captured");
        assert!(is_held(CONTEXT, stream) && !is_held(CONTEXT, idle));
        drop(work);
        assert!(!is_held(CONTEXT, stream));
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
        drop(CaptureToken::new(&table, there, stream, false).expect("it has no work"));
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
                    CONTEXT,
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
    drop(exclude_captures(&table, CONTEXT, stream).expect("no capture"));
    let plain = exclude_plainly(stream);
    assert_eq!(plain.is_some(), barrier::is_there());
    assert_eq!(is_held(CONTEXT, stream), plain.is_some());
    assert!(!is_held(CONTEXT, other));
    drop(plain);
    assert!(!is_held(CONTEXT, stream));
    let work = exclude_captures(&table, CONTEXT, other).expect("no capture");
    assert!(exclude_plainly(stream).is_none(), "it has one place");
    assert!(
        is_held(CONTEXT, other) && !is_held(CONTEXT, stream),
        "which stays as it was"
    );
    drop(work);
}

/// Of another context or driver nothing is refused, and of this one only the legacy stream, beside a blocking one.
#[test]
fn a_capture_is_in_the_way_of_nothing_else() {
    let _turn = turn();
    let (table, other) = (Table::default(), Table::default());
    let elsewhere = ptr::without_provenance_mut(0xf000);
    let idle = ptr::without_provenance_mut(0x9000);
    for is_blocking in [false, true] {
        let note = CaptureToken::new(&table, CONTEXT, handle(), is_blocking);
        let note = note.expect("the only capture");
        assert!(super::super::captures_in(&table, CONTEXT));
        for (table, context) in [(&table, elsewhere), (&other, CONTEXT)] {
            assert!(!super::super::captures_in(table, context));
            refuse_legacy(table, context).expect("it is captured elsewhere");
        }
        refuse(&table, CONTEXT, idle).expect("another stream");
        let legacy = [
            refuse_legacy(&table, CONTEXT),
            refuse(&table, CONTEXT, CU_STREAM_LEGACY),
        ];
        assert!(
            legacy.iter().all(|it| it.is_err() == is_blocking),
            "{legacy:?}"
        );
        drop(note);
    }
}
