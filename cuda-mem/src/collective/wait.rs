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

    pub(super) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// An error if the limit is over.
    pub(super) fn check(&self) -> Result<()> {
        if self.elapsed() < self.limit {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::TimedOut,
            format!("{} is not done after {:?}", self.what, self.limit),
        ))
    }

    /// Waits a little.
    pub(super) fn rest(&self) {
        if self.elapsed() < Self::BUSY {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Self::PAUSE);
        }
    }

    /// Waits a little; an error if the limit is over.
    pub(super) fn pause(&self) -> Result<()> {
        self.check()?;
        self.rest();
        Ok(())
    }

    /// Asks whether the last call of a communicator is over, and what it made is there. `None` if not.
    ///
    /// # Safety
    ///
    /// The communicator must be live.
    pub(super) unsafe fn ask(
        &self,
        table: &NcclTable,
        raw: ncclComm_t,
        is_there: impl Fn() -> bool,
    ) -> Option<Result<()>> {
        // Asked first: what is there was made before the communicator is done.
        let is_there = is_there();
        // SAFETY: the caller's.
        match unsafe { raw::nccl::async_error(table, raw) } {
            Err(error) => Some(Err(error)),
            Ok(ncclResult_t::ncclSuccess) if is_there => Some(Ok(())),
            Ok(ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress) => {
                self.check().err().map(Err)
            }
            Ok(code) => {
                let words = raw::nccl::last_words(table);
                Some(Err(Error::nccl(self.what, code, words)))
            }
        }
    }

    /// Asks until it is over.
    ///
    /// # Safety
    ///
    /// The communicator must be live.
    pub(super) unsafe fn until_done(self, table: &NcclTable, raw: ncclComm_t) -> Result<()> {
        loop {
            // SAFETY: the caller's.
            if let Some(done) = unsafe { self.ask(table, raw, || true) } {
                return done;
            }
            self.rest();
        }
    }
}
