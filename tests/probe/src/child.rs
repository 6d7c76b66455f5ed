//! Asking in a process of its own.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use anyhow::Result;

/// A question that takes longer is given up.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// The same for one that asks its parts in processes of their own.
pub(crate) const LIMIT_OF_MANY: Duration = Duration::from_secs(300);

/// Runs `body` in a child; what it prints is the answer. A child that fails, crashes or hangs is
/// said on a line with `name`. Answers whether all went well.
///
/// The caller has one thread and has not started the driver.
pub(crate) fn ask(name: &str, limit: Duration, body: impl FnOnce() -> Result<()>) -> bool {
    Child::start(name, body).is_some_and(|child| child.finish(name, limit))
}

/// A process that this one has started.
#[derive(Debug)]
pub(crate) struct Child {
    pid: libc::pid_t,
    /// It was waited for, so the number may be somebody else's.
    is_gone: Cell<bool>,
}

impl Child {
    /// Runs `body` in a child; if it fails, that is said on a line with `name`.
    pub(crate) fn start(name: &str, body: impl FnOnce() -> Result<()>) -> Option<Self> {
        // SAFETY: this process has one thread, so the child has everything it needs.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            // SAFETY: no pointers; a child that hangs does not outlive this process.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            let outcome = catch_unwind(AssertUnwindSafe(body));
            let code = match outcome {
                Ok(Ok(())) => 0,
                Ok(Err(error)) => {
                    println!("{name}: {error:#}");
                    1
                }
                Err(_) => {
                    println!("{name}: panicked");
                    1
                }
            };
            crate::calls::print(name);
            // SAFETY: ends the child at once: the driver's own clean-up at the end of a program
            // may wait for what a question left behind.
            unsafe { libc::_exit(code) };
        }
        if pid < 0 {
            println!("{name}: no process: {}", std::io::Error::last_os_error());
            return None;
        }
        let is_gone = Cell::new(false);
        Some(Self { pid, is_gone })
    }

    /// Waits for its end; whether all went well.
    pub(crate) fn finish(&self, name: &str, limit: Duration) -> bool {
        if self.is_gone.get() {
            return true;
        }
        self.is_gone.set(true);
        match wait(self.pid, limit) {
            None => {
                println!("{name}: hung");
                false
            }
            Some(status) if libc::WIFSIGNALED(status) => {
                println!("{name}: crashed (signal {})", libc::WTERMSIG(status));
                false
            }
            Some(status) => status == 0,
        }
    }

    pub(crate) fn kill(&self) {
        if !self.is_gone.get() {
            // SAFETY: the child was not waited for, so the number is still its own.
            unsafe { libc::kill(self.pid, libc::SIGKILL) };
        }
    }

    /// Waits for its end, however it comes.
    pub(crate) fn wait_quietly(&self) {
        if !self.is_gone.replace(true) {
            wait(self.pid, LIMIT);
        }
    }
}

/// The end of a child; `None` if it had to be killed.
fn wait(pid: libc::pid_t, limit: Duration) -> Option<libc::c_int> {
    let deadline = Instant::now() + limit;
    let mut status = 0;
    loop {
        // SAFETY: `status` is valid for a write, and the child is this process's.
        let ended = unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) };
        if ended == pid {
            return Some(status);
        }
        if Instant::now() > deadline {
            // SAFETY: the child was not waited for, so the number is still its own.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            // SAFETY: as above.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}
