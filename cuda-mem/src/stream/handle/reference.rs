//! Streams for the duration of a borrow.

use std::fmt;
use std::thread::ThreadId;

use cuda_driver_sys::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUstream};

use super::{Stream, is_default, note_own_stream};
use crate::base::error::Result;
use crate::driver::raw;
use crate::stream::context::Context;
use crate::stream::deferred::After;
use crate::stream::{after_wait, deferred, waits};

/// A stream owned by other code, for the duration of a borrow.
#[derive(Clone, Copy)]
pub struct StreamRef<'a> {
    pub(super) context: &'a Context,
    pub(super) raw: CUstream,
    /// The thread whose own stream it is.
    pub(super) thread: Option<ThreadId>,
}

impl<'a> StreamRef<'a> {
    /// Borrows a stream by its raw handle.
    ///
    /// # Safety
    ///
    /// `raw` must be a live stream of `context` for as long as the reference is used. Null and `CU_STREAM_LEGACY` name
    /// the legacy default stream, `CU_STREAM_PER_THREAD` names the calling thread's.
    #[must_use]
    pub unsafe fn borrow_raw(context: &'a Context, raw: CUstream) -> Self {
        if raw == CU_STREAM_PER_THREAD {
            note_own_stream(context, None);
        }
        Self {
            context,
            raw: if raw.is_null() { CU_STREAM_LEGACY } else { raw },
            thread: (raw == CU_STREAM_PER_THREAD).then(|| std::thread::current().id()),
        }
    }

    /// The context of this stream.
    #[must_use]
    pub fn context(&self) -> &'a Context {
        self.context
    }

    /// The driver's handle.
    #[must_use]
    pub fn as_raw(&self) -> CUstream {
        self.raw
    }

    /// See [`Stream::synchronize`].
    ///
    /// # Errors
    ///
    /// As for that method.
    #[doc(alias = "cuStreamSynchronize")]
    pub fn synchronize(&self) -> Result<()> {
        self.wait()?;
        deferred::poll(After::Wait);
        after_wait::tell(After::Wait);
        Ok(())
    }

    /// See [`Stream::is_done`].
    ///
    /// # Errors
    ///
    /// As for that method.
    #[doc(alias = "cuStreamQuery")]
    pub fn is_done(&self) -> Result<bool> {
        let open = self.ask()?;
        // SAFETY: the stream is live while the reference is.
        open.relaxed_while_capturing(|queue| unsafe { raw::stream::query(queue) })
    }

    /// As [`synchronize`](Self::synchronize), without releasing anything.
    pub(crate) fn wait(&self) -> Result<()> {
        let open = self.ask()?;
        let _waits = waits::begin()?;
        // SAFETY: the stream is live while the reference is.
        open.relaxed_while_capturing(|queue| unsafe { raw::stream::synchronize(queue) })
    }
}

// SAFETY: stream handles may be used from any thread; the driver locks inside.
unsafe impl Send for StreamRef<'_> {}
// SAFETY: as for `Send`: no method changes anything without the driver's lock.
unsafe impl Sync for StreamRef<'_> {}

impl<'a> From<&'a Stream> for StreamRef<'a> {
    fn from(stream: &'a Stream) -> Self {
        stream.as_ref()
    }
}

impl PartialEq for StreamRef<'_> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        // Handles of two drivers may have the same value, and default streams have the same handle in every context.
        self.raw == other.raw
            && self.context.driver() == other.context.driver()
            && (!is_default(self.raw)
                || (self.thread == other.thread && self.context == other.context))
    }
}

impl Eq for StreamRef<'_> {}

/// As for [`Stream`].
impl fmt::Display for StreamRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {:p} of {}", self.raw, self.context.device())
    }
}

impl fmt::Debug for StreamRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamRef({:p} of {:?})", self.raw, self.context)
    }
}
