//! The end of a pool, after which it is kept for reuse or destroyed ([`spare`]).
//!
//! NVIDIA documents that a pool may be destroyed at any time, and that its memory is released when the last
//! allocation is freed. On an H200 with driver 580 that corrupts the driver: destroying a pool while a block of it
//! is alive, or while a free of it has not been carried out, ends the process with a signal some pools later (R26,
//! measured). So a pool without handles ends only once the driver reports that nothing of it is outstanding; until
//! then it waits.

use cuda_driver_sys::{CUmemPool_attribute, CUmemoryPool, CudaVersion};

use super::{access, default, sharing, spare};
use crate::base::error::{Error, ErrorKind, Result};
use crate::driver::Driver;
use crate::driver::device::Device;
use crate::driver::location::{AllocationType, Location};
use crate::driver::raw;
use crate::stream::deferred::{self, Deferred, Outcome};
use crate::stream::recording;

/// The result of ending a pool.
#[derive(Debug)]
pub(super) enum End {
    /// The pool has ended. An error if the access of other devices could not be taken back before, or if it is left to
    /// the driver.
    Ended(Result<()>),
    /// A thread is waiting through this crate, so the pool could not be destroyed.
    NotYet,
}

/// What is left of a pool without handles.
#[derive(Debug)]
pub(super) struct PendingDestroy {
    pub(super) driver: Driver,
    pub(super) place: (Location, AllocationType),
    pub(super) raw: CUmemoryPool,
    /// The devices that this crate granted access.
    pub(super) granted: Vec<Device>,
    /// The kind of pool it can be reused for.
    pub(super) kind: Option<spare::Kind>,
    /// Whether the driver keeps it for good: an export failed, and destroying it might crash the process (R192).
    pub(super) stays: bool,
    /// Whether the driver failed to report if anything is outstanding.
    pub(super) has_failed: bool,
    /// Whether it is no longer the current pool of its location.
    pub(super) has_stepped_down: bool,
}

// SAFETY: as for pools with handles: they belong to no thread.
unsafe impl Send for PendingDestroy {}

impl PendingDestroy {
    /// Whether every block is freed and every free is known to have completed. This releases the pool's unused
    /// memory: afterwards the pool holds none exactly if nothing is outstanding (R36).
    pub(super) fn is_idle(&self) -> Result<bool> {
        // Before 11.3 this cannot be queried, and the measurements are from newer drivers.
        if self.driver.version() < CudaVersion::new(11, 3) {
            return Ok(true);
        }
        // SAFETY: the pool is live.
        unsafe { is_idle(self.driver, self.raw) }
    }

    /// Only for an idle pool.
    pub(super) fn end(&self) -> Result<End> {
        if self.stays {
            let error = Error::not_permitted(format!(
                "the pool {:p} on {} stays with the driver until the process ends: it could not be exported \
                 before, and the driver might not survive its end",
                self.raw, self.place.0
            ));
            return Ok(End::Ended(Err(error)));
        }
        let mut alone = None;
        if self.kind.is_none() {
            alone = sharing::alone()?;
            if alone.is_none() {
                return Ok(End::NotYet);
            }
        }
        let withdrawn = access::withdraw(self);
        if let Err(error) = &withdrawn
            && error.kind() == ErrorKind::Capturing
        {
            // As above: the driver refuses the change until the capture ends.
            return Ok(End::NotYet);
        }
        if let (Ok(()), Some(kind)) = (&withdrawn, self.kind) {
            self.give_back_later()?;
            spare::keep(kind, self.raw)?;
            return Ok(End::Ended(withdrawn));
        }
        // Other devices can still access the memory of this pool, so it cannot be reused. It cannot be destroyed
        // during a wait either; in that case it is leaked.
        if alone.is_none() {
            alone = sharing::alone()?;
        }
        let Some(_alone) = alone else {
            return Ok(End::Ended(withdrawn));
        };
        let table = self.driver.table();
        recording::with_relaxed_capture_mode(table, || {
            // SAFETY: the pool has no handle and no outstanding memory (R26). No memory is being shared between
            // processes (R28), and no thread waits through this crate (R178).
            unsafe { raw::pool::destroy(table, self.raw) }
        })
        .map_err(|error| error.asked(|| format!("the pool {:p} on {}", self.raw, self.place.0)))?;
        Ok(End::Ended(withdrawn))
    }

    /// Before 11.3 it is unknown whether blocks are alive. Memory freed later is returned to the driver.
    fn give_back_later(&self) -> Result<()> {
        if self.driver.version() >= CudaVersion::new(11, 3) {
            return Ok(());
        }
        let table = self.driver.table();
        let threshold = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        recording::with_relaxed_capture_mode(table, || {
            // SAFETY: the pool is live, and the attribute is 8 bytes wide.
            unsafe { raw::pool::set_wide_attribute(table, self.raw, threshold, 0) }?;
            // SAFETY: the pool is live.
            unsafe { raw::pool::trim(table, self.raw, 0) }
        })
    }

    /// Whether nothing is outstanding and nothing more can be allocated. If so, the pool is not current any more.
    pub(super) fn is_at_rest(&mut self) -> Result<bool> {
        if !self.has_stepped_down {
            let unset = || default::unset_current(self.driver, self.place, self.raw);
            match recording::with_relaxed_capture_mode(self.driver.table(), unset) {
                // As in `is_idle`.
                Err(error) if error.kind() == ErrorKind::Capturing => return Ok(false),
                unset => unset?,
            }
            self.has_stepped_down = true;
        }
        self.is_idle()
    }

    /// Ends the pool, now or once its memory has been freed.
    pub(super) fn destroy_deferred(mut self) -> Result<()> {
        let outcome = match self.is_at_rest() {
            Ok(true) => match self.end()? {
                End::Ended(withdrawn) => return withdrawn,
                End::NotYet => Ok(()),
            },
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        deferred::defer(Box::new(self));
        outcome
    }
}

/// See [`PendingDestroy::is_idle`].
///
/// # Safety
/// The pool must be live, and the driver of CUDA 11.3 or newer.
pub(super) unsafe fn is_idle(driver: Driver, pool: CUmemoryPool) -> Result<bool> {
    let table = driver.table();
    let ask = || -> Result<bool> {
        // SAFETY: the pool is live.
        unsafe { raw::pool::trim(table, pool, 0) }?;
        let reserved = CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
        // SAFETY: the pool is live, and the attribute is 8 bytes wide.
        let reserved = unsafe { raw::pool::wide_attribute(table, pool, reserved) }?;
        Ok(reserved == 0)
    };
    // Not only beside captures of this crate: one of another thread or of other code may go on unknown.
    match recording::with_relaxed_capture_mode(table, ask) {
        // The thread could not be set to relaxed mode; the next try may succeed.
        Err(error) if error.kind() == ErrorKind::Capturing => Ok(false),
        quiet => quiet,
    }
}

impl Deferred for PendingDestroy {
    fn name(&self) -> &'static str {
        "memory pool"
    }

    fn try_release(&mut self) -> Outcome {
        match self.is_at_rest() {
            Ok(true) => match self.end() {
                Ok(End::Ended(Ok(()))) => Outcome::Done,
                Ok(End::NotYet) => Outcome::NotYet,
                Ok(End::Ended(Err(error))) | Err(error) => Outcome::GivenUp(error),
            },
            Ok(false) => Outcome::NotYet,
            Err(error) if self.has_failed => Outcome::GivenUp(error),
            Err(error) => {
                self.has_failed = true;
                Outcome::Again(error)
            }
        }
    }
}
