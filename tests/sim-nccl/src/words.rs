//! Words for codes, and about the last failure.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString};
use std::sync::{Mutex, PoisonError};

use cuda_driver_sys::nccl::ncclResult_t;

use crate::configuration::Configuration;

/// NCCL's own words.
pub(crate) fn of_code(code: ncclResult_t) -> &'static CStr {
    match code {
        ncclResult_t::ncclSuccess => c"no error",
        ncclResult_t::ncclUnhandledCudaError => {
            c"unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
        }
        ncclResult_t::ncclSystemError => {
            c"unhandled system error (run with NCCL_DEBUG=INFO for details)"
        }
        ncclResult_t::ncclInternalError => {
            c"internal error - please report this issue to the NCCL developers"
        }
        ncclResult_t::ncclInvalidArgument => {
            c"invalid argument (run with NCCL_DEBUG=WARN for details)"
        }
        ncclResult_t::ncclInvalidUsage => c"invalid usage (run with NCCL_DEBUG=WARN for details)",
        ncclResult_t::ncclRemoteError => c"remote process exited or there was a network error",
        ncclResult_t::ncclInProgress => c"NCCL operation in progress",
        _ => c"unknown result code",
    }
}

static LAST: Mutex<&CStr> = Mutex::new(c"");
static FAULTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn print(words: &str) {
    if Configuration::get().warns {
        eprintln!("nccl-sim: {words}");
    }
}

/// Text that stays valid: programs keep the pointers. Each text is kept once.
pub(crate) fn keep(words: &str) -> &'static CStr {
    static KEPT: Mutex<BTreeSet<&CStr>> = Mutex::new(BTreeSet::new());
    let text = CString::new(words.replace('\0', "")).unwrap_or_default();
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(text) = kept.get(text.as_c_str()) {
        return text;
    }
    let text: &'static CStr = Box::leak(text.into_boxed_c_str());
    kept.insert(text);
    text
}

/// Remembers why a call failed.
pub(crate) fn set_last(words: &str) {
    print(words);
    *LAST.lock().unwrap_or_else(PoisonError::into_inner) = keep(words);
}

/// Why the last call failed; empty if none did.
pub(crate) fn last() -> &'static CStr {
    *LAST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records wrong use.
pub(crate) fn fault(words: String) {
    print(&words);
    FAULTS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(words);
}

/// One fault, for a test.
pub(crate) fn fault_at(index: usize) -> Option<String> {
    let faults = FAULTS.lock().unwrap_or_else(PoisonError::into_inner);
    faults.get(index).cloned()
}

pub(crate) fn clear_faults() {
    FAULTS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_kept_once() {
        let first = keep("the same words");
        assert!(std::ptr::eq(first, keep("the same words")));
        assert_eq!(keep("a\0b"), c"ab");
    }

    #[test]
    fn codes_have_words() {
        let remote = of_code(ncclResult_t::ncclRemoteError);
        assert_eq!(
            remote,
            c"remote process exited or there was a network error"
        );
        assert_eq!(of_code(ncclResult_t(31337)), c"unknown result code");
    }
}
