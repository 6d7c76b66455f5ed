//! What the driver's log of errors says about a call that was refused.

use cuda_driver_sys::CUresult;

use crate::base::error::Error;
use crate::driver::Driver;
use crate::driver::raw;

impl Driver {
    /// Adds the text of the driver's log, if it has any about this call. Must be called by the thread that made the
    /// call, before it makes another one.
    #[cold]
    pub(crate) fn explain(&self, error: Error) -> Error {
        let (Some(code), Some(function)) = (error.code(), error.function()) else {
            return error;
        };
        // SAFETY: the driver is initialised.
        let Ok(log) = (unsafe { raw::log::lines(self.table()) }) else {
            return error; // Drivers before CUDA 12.9 have none.
        };
        let own = own_names();
        let is_own = |thread: &str| own.is_empty() || own.iter().any(|name| name == thread);
        match about(&log, is_own, function, code) {
            Some(words) => error.with_driver_log(words.to_owned()),
            None => error,
        }
    }
}

/// This thread's names in logs; empty where they are unknown. An H200's driver uses the number of `pthread_self`
/// (R174); the documentation shows kernel thread numbers.
fn own_names() -> Vec<String> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: it has no preconditions.
        let of_posix = unsafe { libc::pthread_self() };
        let of_kernel = rustix::thread::gettid().as_raw_nonzero();
        vec![of_posix.to_string(), of_kernel.to_string()]
    }
    #[cfg(not(target_os = "linux"))]
    Vec::new()
}

/// A line of the log: `[Time][TID][Source][Severity][API Entry Point] Message`. On an H200 the entry point is missing
/// and follows on its own line: `Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuMemAlloc_v2`.
struct Line<'a> {
    thread: &'a str,
    function: Option<&'a str>,
    words: &'a str,
    /// It gives the code, but no reason.
    is_return: bool,
}

impl<'a> Line<'a> {
    fn new(text: &'a str) -> Option<Self> {
        let (mut fields, mut words) = (Vec::new(), text);
        while fields.len() < 5
            && let Some((field, rest)) = words
                .strip_prefix('[')
                .and_then(|rest| rest.split_once(']'))
        {
            fields.push(field);
            words = rest;
        }
        let words = words.trim();
        let is_return = words.starts_with("Returning ");
        let named = words.rsplit_once(" from ").map(|(_, function)| function);
        Some(Self {
            thread: fields.get(1)?,
            function: fields.get(4).copied().or(named.filter(|_| is_return)),
            words,
            is_return,
        })
    }

    fn is_of(&self, function: &str) -> bool {
        // Without the version suffix, which the log may omit.
        let plain = |name: &str| name.split('_').next().map(str::to_owned);
        self.function
            .is_some_and(|named| plain(named) == plain(function))
    }
}

/// The reason in this thread's last lines, if they are about this result of the function.
fn about<'a>(
    log: &'a str,
    is_own: impl Fn(&str) -> bool,
    function: &str,
    code: CUresult,
) -> Option<&'a str> {
    let lines = log.lines().rev().filter_map(Line::new);
    let mut lines = lines.filter(|line| is_own(line.thread));
    let last = lines.next().filter(|line| line.is_of(function))?;
    if !last.is_return {
        return Some(last.words);
    }
    let is_this = last.words.starts_with(&format!("Returning {} ", code.0));
    // After another return line, this one has no reason.
    let before = lines.next().filter(|before| is_this && !before.is_return)?;
    (before.function.is_none() || before.is_of(function)).then_some(before.words)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INVALID: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

    const OLD: &str = "\
[22:21:32.099][25642][CUDA][E][cuLogsDumpToMemory] buffer cannot be NULL
[22:21:32.101][25643][CUDA][E][cuLaunchKernel] of another thread
";

    const NEW: &str = "\
[22:21:32.099][25642][CUDA][E] buffer cannot be NULL
[22:21:32.099][25642][CUDA][E] Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLogsDumpToMemory
";

    fn reason<'a>(log: &'a str, function: &str) -> Option<&'a str> {
        about(log, |thread| thread == "25642", function, INVALID)
    }

    #[test]
    fn both_documented_formats_are_read() {
        for log in [OLD, NEW] {
            let words = reason(log, "cuLogsDumpToMemory");
            assert_eq!(words, Some("buffer cannot be NULL"), "{log}");
            assert_eq!(reason(log, "cuLaunchKernel"), None);
            assert_eq!(
                about(log, |thread| thread == "1", "cuLogsDumpToMemory", INVALID),
                None
            );
        }
        let other = about(OLD, |_| true, "cuLaunchKernel", INVALID);
        assert_eq!(other, Some("of another thread"));
        assert_eq!(reason("", "cuInit"), None);
        assert_eq!(reason("no brackets\n", "cuInit"), None);
    }

    #[test]
    fn an_older_reason_is_not_taken_for_a_newer_one() {
        let code = about(
            NEW,
            |_| true,
            "cuLogsDumpToMemory",
            CUresult::CUDA_ERROR_NOT_SUPPORTED,
        );
        assert_eq!(code, None, "another answer");
        let next = "[22:21:32.100][25642][CUDA][E] Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLogsDumpToMemory\n";
        assert_eq!(reason(&(NEW.to_owned() + next), "cuLogsDumpToMemory"), None);
        let other = "[22:21:32.100][25642][CUDA][E][cuInit] something\n";
        let next = "[22:21:32.100][25642][CUDA][E][cuLogsDumpToMemory] Returning 1 (CUDA_ERROR_INVALID_VALUE)\n";
        assert_eq!(
            reason(&(other.to_owned() + next), "cuLogsDumpToMemory"),
            None
        );
    }

    #[test]
    fn a_name_without_its_version_is_the_same_function() {
        let log = "[1][25642][CUDA][E][cuMemAlloc] too much\n";
        assert_eq!(reason(log, "cuMemAlloc_v2"), Some("too much"));
        assert_eq!(reason(log, "cuMemAllocHost_v2"), None);
    }

    #[test]
    fn the_log_of_an_h200_is_read() {
        let log = include_str!("../../../data/h200-driver-log.txt");
        let start = log.find("dump ").expect("the dump of the log");
        let (launches, _) = log[start..]
            .split_once("[01:25:21.058]")
            .expect("what came after");
        let is_own = |thread: &str| thread == "139863669983104";
        let words = about(launches, is_own, "cuLaunchKernel", INVALID);
        let words = words.expect("the reason of the last launch");
        assert!(
            words.starts_with("Requested dynamic shared memory size of 307200 bytes"),
            "{words}"
        );
    }
}
