//! Counts of calls, and calls that a test makes fail.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_driver_sys::nccl::{NCCL_SYMBOLS, ncclResult_t};

#[derive(Debug, Default)]
struct Calls {
    count: u64,
    /// Calls until a failure, and its code.
    armed: Vec<(u64, ncclResult_t)>,
}

static CALLS: Mutex<BTreeMap<String, Calls>> = Mutex::new(BTreeMap::new());

fn calls() -> MutexGuard<'static, BTreeMap<String, Calls>> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a call. The code that it must answer, if a test wants that.
pub(crate) fn enter(name: &str) -> Option<ncclResult_t> {
    let mut all = calls();
    if !all.contains_key(name) {
        all.insert(name.to_owned(), Calls::default());
    }
    let calls = all.get_mut(name)?;
    calls.count += 1;
    for (left, _) in &mut calls.armed {
        *left -= 1;
    }
    let at = calls.armed.iter().position(|(left, _)| *left == 0)?;
    Some(calls.armed.remove(at).1)
}

/// Number of calls of a function.
pub(crate) fn count(name: &str) -> u64 {
    calls().get(name).map_or(0, |calls| calls.count)
}

/// The `nth` call from now answers `code`. False for a function that the library does not have.
pub(crate) fn arm(name: &str, nth: u64, code: ncclResult_t) -> bool {
    let is_known = NCCL_SYMBOLS
        .iter()
        .any(|symbol| symbol.to_bytes() == name.as_bytes());
    if is_known && nth > 0 {
        let mut all = calls();
        let calls = all.entry(name.to_owned()).or_default();
        // Two failures of one call would leave the second at zero.
        calls.armed.retain(|(left, _)| *left != nth);
        calls.armed.push((nth, code));
    }
    is_known
}

/// Clears counts, and failures that have not occurred.
pub(crate) fn reset() {
    calls().clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nth_call_answers_a_code() {
        let name = "ncclCommCount";
        assert!(arm(name, 2, ncclResult_t::ncclSystemError));
        assert!(arm(name, 3, ncclResult_t::ncclRemoteError));
        assert_eq!(enter(name), None);
        assert_eq!(enter(name), Some(ncclResult_t::ncclSystemError));
        assert_eq!(enter(name), Some(ncclResult_t::ncclRemoteError));
        assert_eq!(enter(name), None);
        assert_eq!(count(name), 4);
        assert!(!arm("ncclNothing", 1, ncclResult_t::ncclSystemError));
    }
}
