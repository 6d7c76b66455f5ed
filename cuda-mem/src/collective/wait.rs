//! Waiting for others, up to a limit.

use std::time::{Duration, Instant};

use cuda_driver_sys::nccl::{NcclTable, ncclComm_t, ncclResult_t};

use crate::base::error::{Error, ErrorKind, Result};
use crate::driver::raw;

/// Waiting for others, up to a limit. First without giving the processor away: most waits are short.
pub(super) struct Wait {
    what: &'static str,
    limit: Duration,
    start: Instant,
}

impl Wait {
    const BUSY: Duration = Duration::from_micros(200);
    const PAUSE: Duration = Duration::from_micros(100);

    pub(super) fn new(what: &'static str, limit: Duration) -> Self {
        Self {
            what,
            limit,
            start: Instant::now(),
        }
    }

    /// Waits a little; an error if the limit is over.
    pub(super) fn pause(&mut self) -> Result<()> {
        let passed = self.start.elapsed();
        if passed >= self.limit {
            return Err(Error::new(
                ErrorKind::TimedOut,
                format!("{} is not done after {:?}", self.what, self.limit),
            ));
        }
        if passed < Self::BUSY {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Self::PAUSE);
        }
        Ok(())
    }

    /// # Safety
    ///
    /// The communicator must be live.
    pub(super) unsafe fn until_done(
        mut self,
        table: &NcclTable,
        raw: ncclComm_t,
        is_there: impl Fn() -> bool,
    ) -> Result<()> {
        loop {
            // Asked first: what is there was made before the communicator is done.
            let is_there = is_there();
            // SAFETY: the caller's.
            match unsafe { raw::nccl::async_error(table, raw) }? {
                ncclResult_t::ncclSuccess if is_there => return Ok(()),
                ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => self.pause()?,
                code => {
                    let words = raw::nccl::last_words(table);
                    return Err(Error::nccl(self.what, code, words));
                }
            }
        }
    }
}
