//! The error log: why a call was refused, in words. Drivers have it since CUDA 12.9.
//!
//! Measured (R174): the format of a line, and that each failure has a line with its code. Documented: that a hundred
//! lines are kept, and how they are read. A guess: which failures also give a reason.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ffi::{c_char, c_uint};
use std::fmt;
use std::io::{self, Write as _};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use cuda_driver_sys::{CUlogIterator, CUresult};

use crate::export::{Answer, Export, INVALID_VALUE, Out, exports};
use crate::state::check_initialised;
use crate::system::thread_id;

/// Number of lines kept.
const KEPT: usize = 100;

/// Precedes the lines if older ones did not fit.
const CUT: &str = "-- older messages do not fit --\n";

thread_local! {
    /// Why this thread's current call is refused.
    static WHY: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The kept lines, and the number of the next one.
#[derive(Debug)]
struct Lines {
    kept: VecDeque<String>,
    next: CUlogIterator,
}

static LINES: Mutex<Lines> = Mutex::new(Lines {
    kept: VecDeque::new(),
    next: 0,
});

fn lines() -> MutexGuard<'static, Lines> {
    LINES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a line to standard error, at once, so that other output cannot split it. Unlike `eprintln`, it does not panic
/// where nobody reads it any more.
pub(crate) fn say(text: impl fmt::Display) {
    let line = format!("cuda-sim: {text}\n");
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Records why this thread's current call is refused with this code.
pub(crate) fn refuse<T>(code: CUresult, why: impl Into<String>) -> Answer<T> {
    // Has no effect while the thread exits.
    let _ = WHY.try_with(|last| last.replace(Some(why.into())));
    Err(code)
}

/// Logs a failed call: the reason, if recorded, and the code. Unfinished work is not an error.
#[cold]
pub(crate) fn failed(export: &Export, code: CUresult) {
    let why = WHY.try_with(RefCell::take).ok().flatten();
    // In a forked child the lock may be held forever.
    if code == CUresult::CUDA_ERROR_NOT_READY || check_initialised().is_err() {
        return;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let milliseconds = now.map_or(0, |now| now.as_millis() % 86_400_000);
    let (seconds, rest) = (milliseconds / 1000, milliseconds % 1000);
    let thread = thread_id();
    let head = format!(
        "[{:02}:{:02}:{:02}.{rest:03}][{thread}][CUDA][E]",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
    );
    let name = code.name().unwrap_or("an unknown code");
    let returned = format!("Returning {} ({name}) from {}", code.0, export.name);
    let mut lines = lines();
    for words in why.into_iter().chain([returned]) {
        lines.kept.push_back(format!("{head} {words}\n"));
        if lines.kept.len() > KEPT {
            lines.kept.pop_front();
        }
        lines.next = lines.next.wrapping_add(1);
    }
}

impl Lines {
    /// The lines from this number on, or the newest that fit into `room` bytes.
    fn text(&self, from: Option<CUlogIterator>, room: usize) -> Answer<String> {
        let unread = from.map_or(KEPT, |from| self.next.wrapping_sub(from) as usize);
        let mut wanted = self.kept.len().min(unread);
        let read = |count: usize| -> String {
            let newest = self.kept.range(self.kept.len() - count..);
            newest.map(String::as_str).collect()
        };
        let all = read(wanted);
        if all.len() <= room {
            return Ok(all);
        }
        while wanted > 0 {
            wanted -= 1;
            let cut = read(wanted);
            if wanted > 0 && CUT.len() + cut.len() <= room {
                return Ok(CUT.to_owned() + &cut);
            }
        }
        Err(INVALID_VALUE)
    }
}

exports! {
    plain fn cuLogsCurrent(_, out: Out<CUlogIterator>, flags: c_uint) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        out.write(lines().next)
    }

    plain fn cuLogsDumpToMemory(
        _, iterator: Out<CUlogIterator>, buffer: Out<c_char>, size: Out<usize>, flags: c_uint
    ) {
        buffer.required()?;
        let room = size.as_input().read()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let lines = lines();
        let from = iterator.as_input().read().ok();
        // One byte is for the terminating zero.
        let text = room.checked_sub(1).ok_or(INVALID_VALUE).and_then(|room| lines.text(from, room));
        // Documented: if nothing fits, nothing is written.
        size.write(text.as_ref().map_or(0, String::len))?;
        for (at, byte) in text?.bytes().chain([0]).enumerate() {
            buffer.at(at).write(byte as c_char)?;
        }
        iterator.write_if_wanted(lines.next);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(count: usize) -> Lines {
        Lines {
            kept: (0..count)
                .map(|number| format!("line {number}\n"))
                .collect(),
            next: 7 + count as u32,
        }
    }

    #[test]
    fn lines_are_read_from_where_one_was() {
        let lines = lines(3);
        assert_eq!(
            lines.text(None, 100),
            Ok("line 0\nline 1\nline 2\n".to_owned())
        );
        assert_eq!(lines.text(Some(9), 100), Ok("line 2\n".to_owned()));
        assert_eq!(lines.text(Some(10), 100), Ok(String::new()));
        // Discarded lines are left out.
        assert_eq!(lines.text(Some(1), 100).map(|text| text.len()), Ok(21));
    }

    #[test]
    fn what_does_not_fit_is_said_and_the_newest_is_kept() {
        let lines = lines(9);
        let room = CUT.len() + 14;
        assert_eq!(lines.text(None, room), Ok(format!("{CUT}line 7\nline 8\n")));
        assert_eq!(lines.text(None, 6), Err(INVALID_VALUE));
        assert_eq!(lines.text(Some(16), 0), Ok(String::new()));
    }
}
