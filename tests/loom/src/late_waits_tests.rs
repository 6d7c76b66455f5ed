//! What two threads have waited for is given back when both are through, whoever had the turn.

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use crate::late_waits::LateWaits;

#[derive(Default)]
struct Arena {
    late: LateWaits,
    /// What each thread's wait has shown to be done.
    done: [AtomicBool; 2],
    /// What was given back, under the turn.
    given_back: Mutex<[bool; 2]>,
}

impl Arena {
    fn after_wait(&self, thread: usize) {
        self.done[thread].store(true, Ordering::Relaxed);
        self.late.count();
        loop {
            let Ok(mut given_back) = self.given_back.try_lock() else {
                return;
            };
            self.late.serve();
            for (given_back, done) in given_back.iter_mut().zip(&self.done) {
                *given_back |= done.load(Ordering::Relaxed);
            }
            drop(given_back);
            if !self.late.is_late() {
                return;
            }
        }
    }
}

#[test]
fn what_a_late_wait_has_shown_is_given_back_too() {
    loom::model(|| {
        let arena = Arc::new(Arena::default());
        let other = {
            let arena = arena.clone();
            thread::spawn(move || arena.after_wait(1))
        };
        arena.after_wait(0);
        other.join().expect("it ends");
        assert_eq!(
            *arena.given_back.lock().expect("nobody panicked"),
            [true, true]
        );
    });
}
