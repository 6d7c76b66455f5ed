//! Threads: their end, their numbers, waiting and waking; and processes: forks, and which run.

use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;

use cuda_driver_sys::CUresult;

use crate::export::Answer;

/// How long a wait sleeps before it checks again, if it is not woken.
static NAP: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Sleeps while the word has this value, and for a short time at most. Other processes may map the word.
pub(crate) fn wait_while(word: &AtomicU32, value: u32) {
    let (place, nap) = (word.as_ptr(), &raw const NAP);
    // SAFETY: the word is borrowed, and the time is a constant; the system reads both.
    unsafe { libc::syscall(libc::SYS_futex, place, libc::FUTEX_WAIT, value, nap) };
}

/// Wakes all that wait for the word to change, also in other processes.
pub(crate) fn wake_all(word: &AtomicU32) {
    let (place, all) = (word.as_ptr(), i32::MAX);
    // SAFETY: the word is borrowed.
    unsafe { libc::syscall(libc::SYS_futex, place, libc::FUTEX_WAKE, all) };
}

/// Calls `end` with `value` when this thread ends, after the destructors of thread-local values. `end` is the same on
/// every call. Returns whether it will.
pub(crate) fn end_with_thread(end: extern "C" fn(*mut c_void), value: *mut c_void) -> bool {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    let key = *KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: `key` is valid for a write, and `end` may be called on any thread.
        let code = unsafe { libc::pthread_key_create(&raw mut key, Some(end)) };
        (code == 0).then_some(key)
    });
    // SAFETY: the key is never deleted.
    key.is_some_and(|key| unsafe { libc::pthread_setspecific(key, value) == 0 })
}

/// Whether a process with this ID is running, whichever user owns it.
pub(crate) fn is_running(process: u32) -> bool {
    std::path::Path::new("/proc")
        .join(process.to_string())
        .exists()
}

/// Locks a file while it is open, unless another process has locked it.
pub(crate) fn try_lock(file: &File) -> bool {
    // SAFETY: the descriptor is open.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

/// The number of the calling thread in the error log.
pub(crate) fn thread_id() -> u64 {
    // SAFETY: pthread_self has no preconditions.
    unsafe { libc::pthread_self() }
}

/// Calls `mark` in every process forked from this one. Children created by `clone` instead of `fork` are not detected.
pub(crate) fn watch_forks(mark: extern "C" fn()) -> Answer {
    // SAFETY: `mark` only touches atomics, which a fork handler may do, and lives as long as this library.
    match unsafe { libc::pthread_atfork(None, None, Some(mark)) } {
        0 => Ok(()),
        _ => Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY),
    }
}
