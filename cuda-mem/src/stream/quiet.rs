//! Waiting for a stream while somebody captures another one.

use super::StreamRef;
use crate::error::{Error, Result};
use crate::{recording, report};

impl StreamRef<'_> {
    /// Waits for the stream without disturbing any capture. If it is captured itself, nothing is done and the
    /// answer says so. For another thread's own stream this waits for its whole context.
    pub(crate) fn wait_quietly(self) -> Result<()> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        let table = self.context().driver().table();
        if self.is_elsewhere() {
            return recording::harmlessly(table, || self.wait_elsewhere());
        }
        self.refuse_captured()?;
        recording::harmlessly(table, || self.synchronize())
    }

    /// Whether all in the stream is done, asked without disturbing any capture.
    pub(crate) fn is_done_quietly(self) -> Result<bool> {
        self.refuse_captured()?;
        recording::harmlessly(self.context().driver().table(), || self.is_done())
    }

    /// An error if anybody captures the stream, which cannot be waited for then.
    pub(crate) fn refuse_captured(self) -> Result<()> {
        let table = self.context().driver().table();
        let _current = self.enter()?;
        // SAFETY: the stream is live while the reference is.
        if unsafe { recording::is_captured(table, self.as_raw()) } {
            return Err(Error::capturing(
                "the stream that has the memory is being captured into a graph, and cannot be waited for; \
                 take the memory back before or after"
                    .to_owned(),
            ));
        }
        Ok(())
    }
}
