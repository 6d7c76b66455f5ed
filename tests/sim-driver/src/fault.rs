//! Counts, logs and fails calls.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use cuda_driver_sys::CUresult;

use crate::export::Export;

static TOTAL: AtomicU64 = AtomicU64::new(0);
/// Whether any fault is pending or the log is on; keeps ordinary calls free of locks.
static WATCHED: AtomicBool = AtomicBool::new(false);
static WATCH: Mutex<Watch> = Mutex::new(Watch::new());

/// Pending faults and the log.
#[derive(Debug)]
struct Watch {
    faults: Vec<Fault>,
    log: Option<Vec<&'static str>>,
}

/// A pending fault.
#[derive(Debug)]
struct Fault {
    /// `None` matches any function.
    name: Option<String>,
    /// Number of matching calls left, including the one that fails.
    left: u64,
    hit: Hit,
}

/// The effect of a fault on its call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hit {
    /// The result of the call.
    pub(crate) code: CUresult,
    /// Whether a releasing call still releases, as the driver's do when they report an earlier asynchronous error.
    pub(crate) releases: bool,
}

impl Watch {
    const fn new() -> Self {
        Self {
            faults: Vec::new(),
            log: None,
        }
    }

    /// Logs the call, and returns its fault, if any.
    fn call(&mut self, name: &'static str) -> Option<Hit> {
        if let Some(log) = &mut self.log {
            log.push(name);
        }
        let mut hit = None;
        self.faults.retain_mut(|fault| {
            if fault.name.as_deref().is_some_and(|wanted| wanted != name) {
                return true;
            }
            fault.left -= 1;
            if fault.left == 0 {
                hit = hit.or(Some(fault.hit));
            }
            fault.left > 0
        });
        hit
    }

    fn is_needed(&self) -> bool {
        self.log.is_some() || !self.faults.is_empty()
    }
}

fn with<T>(change: impl FnOnce(&mut Watch) -> T) -> T {
    let mut watch = WATCH.lock().unwrap_or_else(PoisonError::into_inner);
    let result = change(&mut watch);
    WATCHED.store(watch.is_needed(), Ordering::Release);
    result
}

/// Counts a call, and returns its fault, if any.
pub(crate) fn count(export: &'static Export) -> Option<Hit> {
    TOTAL.fetch_add(1, Ordering::Relaxed);
    export.calls.fetch_add(1, Ordering::Relaxed);
    if WATCHED.load(Ordering::Acquire) {
        with(|watch| watch.call(export.name))
    } else {
        None
    }
}

/// All calls since the last reset.
pub(crate) fn total() -> u64 {
    TOTAL.load(Ordering::Relaxed)
}

/// Clears counts, faults and the log.
pub(crate) fn reset<'a>(exports: impl Iterator<Item = &'a &'static Export>) {
    TOTAL.store(0, Ordering::Relaxed);
    for export in exports {
        export.calls.store(0, Ordering::Relaxed);
    }
    with(|watch| *watch = Watch::new());
}

/// Fails the `nth` call of `name` from now, or of any function if `None`.
pub(crate) fn arm(name: Option<String>, nth: u64, hit: Hit) {
    with(|watch| {
        watch.faults.push(Fault {
            name,
            left: nth.max(1),
            hit,
        });
    });
}

/// Clears the faults that have not occurred yet.
pub(crate) fn disarm() {
    with(|watch| watch.faults.clear());
}

/// Starts a new log.
pub(crate) fn start_log() {
    with(|watch| watch.log = Some(Vec::new()));
}

/// One line of the log.
pub(crate) fn log_line(index: usize) -> Option<&'static str> {
    with(|watch| watch.log.as_ref()?.get(index).copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(name: Option<&str>, left: u64) -> Fault {
        Fault {
            name: name.map(str::to_owned),
            left,
            hit: UNKNOWN,
        }
    }

    const UNKNOWN: Hit = Hit {
        code: CUresult::CUDA_ERROR_UNKNOWN,
        releases: true,
    };

    #[test]
    fn the_nth_call_of_a_function_fails_once() {
        let mut watch = Watch::new();
        watch.faults.push(fault(Some("cuMemFree_v2"), 2));
        assert_eq!(watch.call("cuMemFree_v2"), None);
        assert_eq!(watch.call("cuInit"), None);
        assert_eq!(watch.call("cuMemFree_v2"), Some(UNKNOWN));
        assert_eq!(watch.call("cuMemFree_v2"), None);
        assert!(!watch.is_needed());
    }

    #[test]
    fn a_fault_without_a_name_counts_every_call() {
        let mut watch = Watch::new();
        watch.faults.push(fault(None, 3));
        let answers = ["a", "b", "c", "d"].map(|name| watch.call(name).is_some());
        assert_eq!(answers, [false, false, true, false]);
    }

    #[test]
    fn the_log_keeps_the_order() {
        let mut watch = Watch::new();
        watch.log = Some(Vec::new());
        watch.call("b");
        watch.call("a");
        assert_eq!(watch.log, Some(vec!["b", "a"]));
    }
}
