//! Waiting for work of a background thread.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

/// An arena's background thread is done within this time, beside whatever else runs.
const SOON: Duration = Duration::from_secs(3);

/// Whether the condition becomes true soon.
pub(super) fn eventually(mut is_so: impl FnMut() -> Result<bool>) -> Result<bool> {
    let start = Instant::now();
    loop {
        if is_so()? {
            return Ok(true);
        }
        if start.elapsed() > SOON {
            return Ok(false);
        }
        thread::yield_now();
    }
}
