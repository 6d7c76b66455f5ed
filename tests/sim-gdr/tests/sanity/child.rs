//! Processes started by a test, and how they end.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Code(c_int),
    Signal(c_int),
}

/// A forked process. It is waited for no later than the drop.
pub(crate) struct Child(libc::pid_t);

impl Child {
    /// Forks, and runs this in the child, which exits with 0, or with 1 if it panics.
    pub(crate) fn fork(body: impl FnOnce()) -> Self {
        // SAFETY: the tests fork while no thread of theirs runs but those of the simulator, which the child does not
        // need.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "forked");
        if pid == 0 {
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            // SAFETY: the pointer is valid. A deliberate crash must leave no core file.
            unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
            let is_fine = catch_unwind(AssertUnwindSafe(body)).is_ok();
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe { libc::_exit(c_int::from(!is_fine)) };
        }
        Self(pid)
    }

    pub(crate) fn wait(self) -> End {
        let end = self.end();
        std::mem::forget(self);
        end
    }

    fn end(&self) -> End {
        let mut status = 0;
        // SAFETY: the pointer is valid, and the process is our child.
        let found = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        assert_eq!(found, self.0);
        if libc::WIFSIGNALED(status) {
            End::Signal(libc::WTERMSIG(status))
        } else {
            End::Code(libc::WEXITSTATUS(status))
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: the process is our child, and has not been waited for.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        self.end();
    }
}

/// One end each of two pipes: one to send to the other process, one to receive from it.
pub(crate) struct Line {
    hear: c_int,
    tell: c_int,
}

/// Two connected ends.
pub(crate) fn lines() -> [Line; 2] {
    let pipes = [0, 1].map(|_| {
        let mut ends = [0; 2];
        // SAFETY: the pointer is valid for two numbers.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        ends
    });
    [0, 1].map(|at| Line {
        hear: pipes[at][0],
        tell: pipes[1 - at][1],
    })
}

impl Line {
    pub(crate) fn tell(&self, value: u64) {
        let bytes = value.to_ne_bytes();
        // SAFETY: eight valid bytes.
        let count = unsafe { libc::write(self.tell, bytes.as_ptr().cast(), 8) };
        assert_eq!(count, 8);
    }

    pub(crate) fn hear(&self) -> u64 {
        let mut bytes = [0; 8];
        // SAFETY: the pointer is valid for eight bytes.
        let count = unsafe { libc::read(self.hear, bytes.as_mut_ptr().cast(), 8) };
        assert_eq!(count, 8);
        u64::from_ne_bytes(bytes)
    }
}
