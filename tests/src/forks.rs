//! Forks of a test's process, where the system has them.

use std::time::Duration;

use anyhow::Result;

use crate::environment::Skip;

pub(crate) use system::{end_child, fork};

/// Longer than any child works.
const PATIENCE: Duration = Duration::from_secs(60);

/// A skip where the system has no forks.
///
/// # Errors
///
/// [`Skip`].
pub(crate) fn need() -> Result<()> {
    if cfg!(unix) {
        return Ok(());
    }
    Err(Skip("this system has no forks".to_owned()).into())
}

/// Waits for a child, which has to end with success.
///
/// # Errors
///
/// There is no such child, or it ended otherwise.
pub(crate) fn ends_well(child: i32) -> Result<()> {
    ends_within(child, PATIENCE)
}

/// The same. A child that takes longer is killed.
///
/// # Errors
///
/// As there, or it was killed.
pub(crate) fn ends_within(child: i32, patience: Duration) -> Result<()> {
    system::wait(child, patience)
}

#[cfg(unix)]
mod system {
    use std::thread;
    use std::time::{Duration, Instant};

    use anyhow::{Result, bail, ensure};

    /// Forks this process: 0 in the child, which has to end with [`end_child`], and its number in the parent.
    ///
    /// # Errors
    ///
    /// [`Skip`](crate::environment::Skip) where the system has no forks.
    ///
    /// # Safety
    ///
    /// The child has this thread alone, and may use nothing that another one had in its hands.
    pub(crate) unsafe fn fork() -> Result<i32> {
        // SAFETY: the caller's.
        let child = unsafe { libc::fork() };
        ensure!(child >= 0, "fork failed");
        Ok(child)
    }

    /// Ends a child, without the exit handlers of the parent.
    pub(crate) fn end_child(is_fine: bool) -> ! {
        // SAFETY: nothing runs in the process after this.
        unsafe { libc::_exit(i32::from(!is_fine)) }
    }

    pub(super) fn wait(child: i32, patience: Duration) -> Result<()> {
        let (began, mut status) = (Instant::now(), 0);
        let waited = loop {
            // SAFETY: `status` is valid for a write.
            let waited = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
            if waited != 0 {
                break waited;
            }
            if began.elapsed() > patience {
                // SAFETY: the child is ours, and has not been waited for.
                unsafe { libc::kill(child, libc::SIGKILL) };
                // SAFETY: `status` is valid for a write.
                unsafe { libc::waitpid(child, &raw mut status, 0) };
                bail!("the child hangs");
            }
            thread::sleep(Duration::from_millis(1));
        };
        ensure!(
            waited == child && status == 0,
            "the child ended with {status:#x}"
        );
        Ok(())
    }
}

#[cfg(not(unix))]
mod system {
    use std::time::Duration;

    use anyhow::Result;

    /// Skips the test.
    ///
    /// # Errors
    ///
    /// [`Skip`], always.
    ///
    /// # Safety
    ///
    /// None is needed here.
    pub(crate) unsafe fn fork() -> Result<i32> {
        super::need()?;
        unreachable!("there are no forks")
    }

    pub(crate) fn end_child(_is_fine: bool) -> ! {
        unreachable!("there are no children")
    }

    pub(super) fn wait(_child: i32, _patience: Duration) -> Result<()> {
        Ok(())
    }
}
