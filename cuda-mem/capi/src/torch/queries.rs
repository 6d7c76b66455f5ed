//! What the driver says of a stream. Answers change nothing, also while streams are captured.

use cuda_mem::Driver;
use cuda_mem::sys::{CUresult, CUstream, CUstreamCaptureStatus};

/// Whether any code captures the stream; an invalidated capture counts until it is ended. `None` if the driver does not say.
///
/// # Safety
///
/// `stream` is live; if it is a default stream, its context is current.
pub(super) unsafe fn is_captured(stream: CUstream) -> Option<bool> {
    let ask = Driver::load().ok()?.table().cuStreamIsCapturing?;
    let none = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let mut status = none;
    // SAFETY: the function of the driver, with a stream as the caller promises, and a place for the answer.
    let result = unsafe { ask(stream, &raw mut status) };
    (result == CUresult::CUDA_SUCCESS).then_some(status != none)
}
