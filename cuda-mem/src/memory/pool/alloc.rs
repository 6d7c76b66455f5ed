//! Allocation from a pool, as an address.

use cuda_driver_sys::{CUdeviceptr, CUresult};

use super::Pool;
use super::free::free;
use crate::base::error::{Error, ErrorKind, OutOfMemory, Result};
use crate::base::telemetry::event;
use crate::driver::raw;
use crate::memory::reclaim;
use crate::stream::{Stream, recording};

impl Pool {
    /// The memory of a buffer, without the buffer: the caller has to free it. Not generic, so it is compiled only
    /// once.
    pub(crate) fn alloc_bytes(&self, stream: &Stream, bytes: usize) -> Result<CUdeviceptr> {
        if bytes == 0 || bytes >= TOO_MUCH {
            return self.answer_for_the_driver(stream, bytes);
        }
        let may_lose_writes = self.may_lose_writes();
        if may_lose_writes {
            self.refuse_captured(stream)?;
        }
        stream.release_deferred();
        let place = self.place_in_reach(stream.device());
        let address = match self.ask_plainly(stream, bytes, place) {
            Some(Ok(address)) => address,
            refused => self.ask_thoroughly(stream, bytes, refused)?,
        };
        // Checked again: access may be revoked while no memory is handed out, which may have been the case until
        // just now.
        if !self.is_in_reach(place) {
            self.require_reach_or_free(address, stream)?;
        }
        if may_lose_writes {
            return self.renewed(address, bytes, stream);
        }
        Ok(address)
    }

    /// Asks the driver directly if no checks are needed before; otherwise `None`. In a fork the call itself is
    /// refused.
    #[inline(always)]
    fn ask_plainly(
        &self,
        stream: &Stream,
        bytes: usize,
        place: u64,
    ) -> Option<Result<CUdeviceptr>> {
        if !self.is_in_reach(place) {
            return None;
        }
        let open = stream.as_ref().submit_plainly()?;
        // SAFETY: as in `ask`.
        Some(unsafe { raw::alloc::from_pool(open.queue(), bytes, self.as_raw()) })
    }

    /// Asks the driver, unless it has refused already, and retries once beside a capture that has just begun, and once
    /// if other resources released memory.
    #[cold]
    #[inline(never)]
    fn ask_thoroughly(
        &self,
        stream: &Stream,
        bytes: usize,
        refused: Option<Result<CUdeviceptr>>,
    ) -> Result<CUdeviceptr> {
        let answer = match refused {
            Some(Err(error)) if error.kind() == ErrorKind::Forked => return Err(error),
            Some(answer) => answer.map_err(|error| explain(error, bytes, self, stream)),
            None => self.ask(stream, bytes),
        };
        let answer = match answer {
            Err(error) if is_refused_beside_capture(&error, stream) => self.ask(stream, bytes),
            answer => answer,
        };
        match answer {
            Err(error) if reclaim::helps(&error, self.device(), stream, bytes) => {
                self.ask(stream, bytes)
            }
            answer => answer,
        }
    }

    #[cold]
    fn ask(&self, stream: &Stream, bytes: usize) -> Result<CUdeviceptr> {
        stream.as_ref().require_reach(self)?;
        let open = stream.as_ref().submit()?;
        // SAFETY: pool and stream are live and of one driver (R7: they need not be of one device);
        // the caller frees the address once, and uses it only in this stream or in one ordered with it.
        open.relaxed_while_capturing(|queue| unsafe {
            raw::alloc::from_pool(queue, bytes, self.as_raw())
        })
        .map_err(|error| explain(error, bytes, self, stream))
    }

    /// Handles zero bytes, and more than any machine can have.
    #[cold]
    #[inline(never)]
    fn answer_for_the_driver(&self, stream: &Stream, bytes: usize) -> Result<CUdeviceptr> {
        if bytes == 0 {
            stream.as_ref().require_reach(self)?;
            return Ok(0);
        }
        let error = too_much(bytes);
        Err(error.and_memory(|memory| *memory = report(bytes, self, stream)))
    }

    /// Frees the memory, with an error, if the stream's device has no access to it any more.
    #[cold]
    fn require_reach_or_free(&self, address: CUdeviceptr, stream: &Stream) -> Result<()> {
        let reached = stream.as_ref().require_reach(self);
        if reached.is_err() {
            // SAFETY: allocated just now in this stream; no other code has the address.
            crate::base::report::release("buffer", || unsafe { free(address, stream) });
        }
        reached
    }
}

/// Whether a request was refused because this crate began to capture another stream after its capture mode was chosen.
/// In relaxed mode, which is the choice from now on, it is not.
#[cold]
pub(crate) fn is_refused_beside_capture(error: &Error, stream: &Stream) -> bool {
    error.code() == Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        && recording::any()
        && !stream.as_ref().is_captured()
}

/// Adds the numbers to an out-of-memory error. If querying them fails, they are left out.
#[cold]
fn explain(error: Error, bytes: usize, pool: &Pool, stream: &Stream) -> Error {
    let error = error
        .asked(|| format!("{bytes} bytes from {pool}"))
        .with_memory(|| report(bytes, pool, stream));
    if error.is_out_of_memory() {
        event!(WARN, error = %error, "out of memory");
    }
    error
}

fn report(bytes: usize, pool: &Pool, stream: &Stream) -> OutOfMemory {
    let stats = pool.stats().ok();
    let device = if pool.device() == Some(stream.device()) {
        stream.context().memory_info().ok()
    } else {
        None
    };
    OutOfMemory {
        asked: bytes as u64,
        pool_used: stats.map(|stats| stats.used.current),
        pool_used_high: stats.map(|stats| stats.used.high),
        pool_reserved: stats.map(|stats| stats.reserved.current),
        pool_reserved_high: stats.map(|stats| stats.reserved.high),
        device_free: device.map(|device| device.free),
        device_total: device.map(|device| device.total),
        ..OutOfMemory::default()
    }
}

/// More bytes than any machine has: addresses have 57 bits at most. The driver is not asked for this much: for a
/// size near 2^63 it has returned success with an invalid address (R173).
pub(crate) const TOO_MUCH: usize = 1 << 57;

/// Out of memory, without asking the driver.
#[cold]
pub(crate) fn too_much(bytes: usize) -> Error {
    Error::new(
        ErrorKind::OutOfMemory,
        format!("{bytes} bytes are more than any machine has addresses for"),
    )
    .with_asked(bytes as u64)
}
