//! Threads: their end, their numbers, waiting and waking; and processes: no forks, and which run.

use std::cell::RefCell;
use std::ffi::c_void;
use std::fs::File;
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use windows_sys::Win32::Foundation::{ERROR_INVALID_PARAMETER, GetLastError, WAIT_OBJECT_0};
use windows_sys::Win32::System::Threading::{
    GetCurrentThreadId, OpenProcess, PROCESS_SYNCHRONIZE, WaitForSingleObject,
};

use crate::export::Answer;

/// How long a wait sleeps before it checks again. Nothing wakes threads of other processes.
const NAP: Duration = Duration::from_millis(1);

/// Sleeps while the word has this value, and for a short time at most. Other processes may map the word.
pub(crate) fn wait_while(word: &AtomicU32, value: u32) {
    if word.load(Ordering::SeqCst) == value {
        std::thread::sleep(NAP);
    }
}

/// Those that wait look again by themselves.
pub(crate) fn wake_all(_word: &AtomicU32) {}

type End = extern "C" fn(*mut c_void);

struct Ends(Vec<(End, *mut c_void)>);

#[link(name = "ntdll")]
unsafe extern "system" {
    /// Whether the process is ending.
    fn RtlDllShutdownInProgress() -> u8;
}

impl Drop for Ends {
    fn drop(&mut self) {
        // The other threads were ended where they were, one of them perhaps while it had the lock that is wanted here.
        // SAFETY: no preconditions.
        if unsafe { RtlDllShutdownInProgress() } != 0 {
            return;
        }
        for (end, value) in self.0.drain(..) {
            end(value);
        }
    }
}

thread_local! {
    static ENDS: RefCell<Ends> = const { RefCell::new(Ends(Vec::new())) };
}

/// Calls `end` with `value` when this thread ends, among the destructors of thread-local values. Returns whether it will.
pub(crate) fn end_with_thread(end: End, value: *mut c_void) -> bool {
    let pushed = ENDS.try_with(|ends| ends.borrow_mut().0.push((end, value)));
    pushed.is_ok()
}

/// Whether a process with this ID is running, whichever user owns it. If the system does not tell, it counts as running.
pub(crate) fn is_running(process: u32) -> bool {
    // SAFETY: no pointers.
    let handle = unsafe { OpenProcess(PROCESS_SYNCHRONIZE, 0, process) };
    if handle.is_null() {
        // SAFETY: no preconditions.
        return unsafe { GetLastError() } != ERROR_INVALID_PARAMETER;
    }
    // SAFETY: the system has just opened it for this call.
    let handle = unsafe { OwnedHandle::from_raw_handle(handle) };
    // A handle outlives its process, and is signalled at its end.
    // SAFETY: the handle is open.
    unsafe { WaitForSingleObject(handle.as_raw_handle(), 0) != WAIT_OBJECT_0 }
}

/// Locks nothing: all processes there have numbers that [`is_running`] knows.
pub(crate) fn try_lock(_file: &File) -> bool {
    true
}

/// The number of the calling thread in the error log.
pub(crate) fn thread_id() -> u64 {
    // SAFETY: no preconditions.
    u64::from(unsafe { GetCurrentThreadId() })
}

/// There are none to call `mark` in.
pub(crate) fn watch_forks(_mark: extern "C" fn()) -> Answer {
    Ok(())
}
