//! Growing pauses between requests.

#![forbid(unsafe_code)]

use std::thread;
use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(1);
/// The longest pause, and so the longest time that freed memory lies unused.
const LONGEST: Duration = Duration::from_millis(100);

/// Pauses of 1 ms, 2 ms, 4 ms … up to 100 ms, until a total time has passed.
#[derive(Debug)]
pub(super) struct Backoff {
    total: Duration,
    begun: Instant,
    next: Duration,
    has_asked: bool,
}

impl Backoff {
    pub(super) fn new(total: Duration) -> Self {
        Self {
            total,
            begun: Instant::now(),
            next: FIRST,
            has_asked: false,
        }
    }

    /// Blocks for the next pause. Returns whether to retry: at least once, and not after the time has passed.
    pub(super) fn pause(&mut self) -> bool {
        match self.next_pause(self.begun.elapsed()) {
            Some(pause) => {
                thread::sleep(pause);
                true
            }
            None => false,
        }
    }

    /// The last pause is cut to the remaining time.
    fn next_pause(&mut self, passed: Duration) -> Option<Duration> {
        let left = self.total.saturating_sub(passed);
        if left.is_zero() && self.has_asked {
            return None;
        }
        self.has_asked = true;
        let pause = self.next.min(left);
        self.next = (self.next * 2).min(LONGEST);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pauses if requests take no time, in milliseconds.
    fn pauses(total: u64) -> Vec<u128> {
        let mut backoff = Backoff::new(Duration::from_millis(total));
        let mut passed = Duration::ZERO;
        let next = || {
            let pause = backoff.next_pause(passed)?;
            passed += pause;
            Some(pause.as_millis())
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn pauses_grow_and_fill_the_time() {
        assert_eq!(pauses(0), [0], "it is asked once");
        assert_eq!(pauses(10), [1, 2, 4, 3]);
        assert_eq!(pauses(400), [1, 2, 4, 8, 16, 32, 64, 100, 100, 73]);
    }

    #[test]
    fn slow_requests_count() {
        let mut backoff = Backoff::new(Duration::from_millis(10));
        assert!(backoff.next_pause(Duration::from_secs(1)).is_some());
        assert!(backoff.next_pause(Duration::from_secs(1)).is_none());
    }
}
