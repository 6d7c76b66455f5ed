//! The path of small copies that the host waits for: pinned memory, and a separate stream, so that the copies do not
//! queue up behind a kernel that waits for them.
//!
//! Creating the two takes most of a millisecond, and freeing pinned memory waits for the device (R131), so contexts
//! keep unused stages. That is why a stage does not own the context: it would keep it alive.

use std::ptr::NonNull;

use cuda_driver_sys::{CUstream, CUstream_flags};

use crate::base::error::{Error, Result};
use crate::base::report;
use crate::driver::raw::{self, Table};
use crate::stream::recording;

/// Bytes of pinned memory. Larger copies do as well without it: the driver does the same for them.
const STAGE: usize = 64 << 10;

/// Belongs to one context, which outlives it.
#[derive(Debug)]
pub(crate) struct Stage {
    table: &'static Table,
    stream: CUstream,
    /// [`STAGE`] bytes with no other owner, all of them written once.
    pinned: NonNull<u8>,
}

// SAFETY: handles of streams may be used from any thread, and the memory is its own.
unsafe impl Send for Stage {}

impl Stage {
    /// # Safety
    ///
    /// A context must be current, and live until this is dropped.
    pub(crate) unsafe fn new(table: &'static Table) -> Result<Self> {
        // SAFETY: the caller's.
        let at = recording::relaxed_while_capturing(table, || unsafe {
            raw::host::allocate(table, STAGE, 0)
        })
        .map_err(|error| error.asked(|| format!("{STAGE} bytes of pinned memory for copies")))?;
        let pinned = NonNull::new(at.cast::<u8>())
            .ok_or_else(|| Error::invalid("the driver gave no address".to_owned()))?;
        // SAFETY: so many bytes were handed out just now.
        unsafe { pinned.write_bytes(0, STAGE) };
        // As soon as there is memory it has an owner.
        let mut made = Self {
            table,
            stream: std::ptr::null_mut(),
            pinned,
        };
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING.0;
        // SAFETY: the caller's.
        made.stream = unsafe { raw::stream::create(table, flags) }?;
        Ok(made)
    }

    /// Does not synchronise with the legacy default stream.
    pub(crate) fn stream(&self) -> CUstream {
        self.stream
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: its own, as many as are there, and all of them were written.
        unsafe { std::slice::from_raw_parts_mut(self.pinned.as_ptr(), STAGE) }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if !self.stream.is_null() {
            // SAFETY: it was made here, and nobody else has it.
            report::release("stream", || unsafe {
                raw::stream::destroy(self.table, self.stream)
            });
        }
        let at = self.pinned.as_ptr().cast();
        report::release("pinned memory", || {
            // SAFETY: it was made here; every copy from or to it was waited for.
            recording::with_relaxed_capture_mode(self.table, || unsafe {
                raw::host::free(self.table, at)
            })
        });
    }
}
