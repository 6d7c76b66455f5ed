//! Whether a thread may wait for other threads to free memory.

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::report;
use crate::stream::Stream;
use crate::stream::deferred::AgainCall;
use crate::stream::recording;

/// An error that says why this thread must not wait for other threads to free memory: the free could depend on this
/// thread, or be impossible.
#[cold]
pub(super) fn refuse_waiting(stream: &Stream) -> Result<()> {
    if report::is_forked() {
        return Err(Error::forked());
    }
    if AgainCall::is_running() {
        let text = "the request has waited before, and is made again after something was released";
        return Err(Error::new(ErrorKind::Other, text));
    }
    // Memory that is dropped meanwhile in the order of the captured stream comes back only after the capture.
    if recording::is_capturing() {
        return Err(Error::capturing(
            "this thread records a stream into a graph".to_owned(),
        ));
    }
    // By another thread, or another library.
    let captured = "the stream of the request is recorded into a graph, or cannot be asked";
    if stream.as_ref().is_captured() {
        return Err(Error::capturing(captured.to_owned()));
    }
    Ok(())
}
