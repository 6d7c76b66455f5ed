//! Threads take and release references. The last one, and no other, has to find out that it is the last, and what all
//! did with the object has to come before that.

use std::sync::atomic::{AtomicUsize, Ordering};

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;

use super::barrier;
use super::count::Count;

/// The threads' numbers. Each has a slot of its own.
const FIRST: u64 = 1;
const SECOND: u64 = 2;

/// Something that is counted.
struct Object {
    count: Count<2>,
    /// Read while there is a reference, written at the end.
    value: UnsafeCell<()>,
    ends: AtomicUsize,
}

impl Object {
    /// With one reference.
    fn new() -> Arc<Self> {
        Arc::new(Self {
            count: Count::new(),
            value: UnsafeCell::new(()),
            ends: AtomicUsize::new(0),
        })
    }

    /// Uses the object, and releases a reference of the word.
    fn release(&self, thread: u64) {
        self.value.with(|_| ());
        let is_last = self.count.release(|| thread);
        self.end_if(is_last);
    }

    /// Uses the object, and releases a reference in the slot of this thread.
    fn release_by(&self, thread: u64) {
        self.value.with(|_| ());
        let is_last = self.count.release_by(thread);
        self.end_if(is_last);
    }

    fn end_if(&self, is_last: bool) {
        if is_last {
            self.ends.fetch_add(1, Ordering::Relaxed);
            self.value.with_mut(|_| ());
        }
    }
}

/// Both threads do their part, and then the object is at its end.
fn check(
    changes: usize,
    before: fn(&Object),
    first: fn(&Object),
    second: impl Fn(&Object) + Copy + Send + Sync + 'static,
) {
    let mut model = Builder::new();
    model.preemption_bound = Some(changes);
    model.max_branches = 1_000;
    model.check(move || {
        let object = Object::new();
        before(&object);
        let other = Arc::clone(&object);
        let other = thread::spawn(move || second(&other));
        first(&object);
        other.join().expect("no thread panics");
        assert_eq!(object.ends.load(Ordering::Relaxed), 1, "ends");
    });
}

#[test]
fn a_buffer_outlives_the_handle_that_another_thread_drops() {
    check(
        4,
        |object| object.count.retain_by(FIRST),
        |object| object.release_by(FIRST),
        |object| object.release(SECOND),
    );
}

#[test]
fn buffers_come_and_go_while_another_thread_drops_the_handle() {
    check(
        4,
        |object| object.count.retain_by(FIRST),
        |object| {
            object.count.retain_by(FIRST);
            object.release_by(FIRST);
            object.release_by(FIRST);
        },
        |object| object.release(SECOND),
    );
}

#[test]
fn a_buffer_is_dropped_on_another_thread() {
    check(
        4,
        |object| object.count.retain_by(FIRST),
        |object| object.release(FIRST),
        |object| object.release_by(SECOND),
    );
}

/// Each thread drops the buffer of the other one, and then one of them the handle.
#[test]
fn buffers_change_threads() {
    check(
        3,
        |object| {
            object.count.retain_by(FIRST);
            object.count.retain_by(FIRST);
        },
        |object| {
            object.release_by(FIRST);
            object.release(FIRST);
        },
        |object| object.release_by(SECOND),
    );
}

/// Two threads see at a time that the word counts one.
#[test]
fn a_handle_and_a_buffer_of_another_thread_go_at_once() {
    check(
        4,
        |object| object.count.retain_by(FIRST),
        |object| object.release(FIRST),
        |object| object.release(SECOND),
    );
}

#[test]
fn whoever_keeps_the_memory_gets_a_reference_or_is_told() {
    check(
        4,
        |object| object.count.retain_by(FIRST),
        |object| {
            object.release(FIRST);
            object.release_by(FIRST);
        },
        |object| {
            if object.count.try_retain() {
                object.release(SECOND);
            }
        },
    );
}

/// That these tests find anything.
#[test]
#[should_panic(expected = "ends")]
fn without_the_light_half_a_reference_is_lost() {
    barrier::break_light();
    check(
        4,
        |object| object.count.retain_by(FIRST),
        |object| object.release_by(FIRST),
        |object| object.release(SECOND),
    );
}
