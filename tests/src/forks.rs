//! Forks of a test's process.

use anyhow::{Result, ensure};

/// Waits for a child, which has to end with exit status 0.
///
/// # Errors
///
/// There is no such child, or it ended otherwise.
pub(crate) fn ends_well(child: libc::pid_t) -> Result<()> {
    ensure!(child > 0, "fork failed");
    let mut status = 0;
    // SAFETY: `status` is valid for a write.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    ensure!(
        waited == child && status == 0,
        "the child ended with {status:#x}"
    );
    Ok(())
}
