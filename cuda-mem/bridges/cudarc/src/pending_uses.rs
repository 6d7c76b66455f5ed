//! Uses of a buffer's memory on other streams than its own.
//!
//! cudarc asks a buffer for its address and names the stream of the use; when the use is submitted, it drops a guard. The
//! guard is cudarc's own type and can do one of two things: record an event in that stream, or wait for the stream on the
//! host. So a use on another stream begins with that stream waiting for the buffer's, and ends with an event; the buffer's
//! stream waits for the event before the memory's next use, and before the memory is freed.

use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaEvent, CudaStream, DriverError, SyncOnDrop};

use crate::error::Result;
use crate::stream::is_per_thread;

/// The buffer's stream, and uses on other streams that it does not wait for yet.
#[derive(Debug)]
pub(crate) struct PendingUses {
    stream: Arc<CudaStream>,
    /// One for each other stream that reads, and one for each that writes. Guards borrow the events, so none is removed
    /// while the buffer is shared. Most buffers have no list.
    uses: OnceLock<Box<boxcar::Vec<Use>>>,
}

/// The last use on a stream.
#[derive(Debug)]
struct Use {
    /// The handle, as a number. Another stream may get the same one later.
    stream: usize,
    writes: bool,
    /// Always there: the guard wants an option.
    end: Option<CudaEvent>,
}

impl Use {
    /// Makes the stream wait for the end of the use. An event that has not been recorded is not waited for.
    fn make_wait(&self, stream: &CudaStream) -> Result<(), DriverError> {
        self.end.iter().try_for_each(|end| stream.wait(end))
    }
}

impl PendingUses {
    pub(crate) fn new(stream: Arc<CudaStream>) -> Self {
        Self {
            stream,
            uses: OnceLock::new(),
        }
    }

    /// The buffer's stream.
    pub(crate) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    fn list(&self) -> impl Iterator<Item = &Use> {
        let lists = self.uses.get().into_iter();
        lists.flat_map(|uses| uses.iter().map(|(_, pending)| pending))
    }

    /// Makes the buffer's stream wait for writers on other streams, and for readers too if the memory is to be written.
    /// The uses stay in the list: while the buffer is shared, some of them may be going on.
    pub(crate) fn wait(&self, writes: bool) -> Result<()> {
        for pending in self.list() {
            if writes || pending.writes {
                pending.make_wait(&self.stream)?;
            }
        }
        Ok(())
    }

    /// As [`wait`](Self::wait) for all uses, and forgets them: the exclusive borrow shows that none is going on.
    pub(crate) fn settle(&mut self) -> Result<()> {
        self.wait(true)?;
        self.uses.take();
        Ok(())
    }

    /// Begins a use on a stream, which waits for the buffer's. It ends when the result is dropped.
    pub(crate) fn lend<'a>(
        &'a self,
        other: &'a CudaStream,
        writes: bool,
    ) -> Result<SyncOnDrop<'a>> {
        self.wait(writes)?;
        if *other == *self.stream {
            return Ok(SyncOnDrop::Sync(None));
        }
        other.join(&self.stream)?;
        if !self.records_in(other) {
            return Ok(SyncOnDrop::sync_stream(other));
        }
        let stream = other.cu_stream().addr();
        let is_known = |it: &&Use| it.stream == stream && it.writes == writes;
        let pending = match self.list().find(is_known) {
            Some(pending) => {
                // The event is recorded again, and will stand for both uses. If the handle was another stream's, that
                // one has to be waited for; before a write the buffer's stream has done so already.
                if !writes {
                    pending.make_wait(other)?;
                }
                pending
            }
            None => {
                let end = Some(self.stream.context().new_event(None)?);
                let uses = self.uses.get_or_init(Box::default);
                let at = uses.push(Use {
                    stream,
                    writes,
                    end,
                });
                &uses[at]
            }
        };
        Ok(SyncOnDrop::record_event(&pending.end, other))
    }

    /// Whether the guard would record the buffer's event in that stream. It does not without cudarc's event tracking, which
    /// begins with the first stream that a context makes; and not in a stream of another device. The per-thread stream of
    /// a thread would share its event with those of others.
    ///
    /// The tracking ends with the last stream that the context made. That is not before the guard if one of the two streams
    /// is such a stream: the buffer keeps its own, and the guard borrows the other. The two default streams wait for each
    /// other anyway. What is left are wrapped streams of other code.
    fn records_in(&self, other: &CudaStream) -> bool {
        let context = other.context();
        context == self.stream.context()
            && context.is_managing_stream_synchronization()
            && !is_per_thread(other)
    }
}

/// Dropped just before the memory: the free that follows comes after all uses.
impl Drop for PendingUses {
    fn drop(&mut self) {
        // Kept until the end: with an error in the context, its next call fails.
        let mut failed = Ok(());
        for pending in self.list() {
            if let Err(error) = pending.make_wait(&self.stream) {
                // If this fails as well, the context is lost, and its work with it.
                let waited = pending.end.iter().try_for_each(CudaEvent::synchronize);
                failed = waited.and(Err(error));
            }
        }
        self.stream.context().record_err(failed);
    }
}
