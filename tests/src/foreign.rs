//! Captures as a program without this crate begins and ends them.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::Stream;
use cuda_mem::sys::{CUgraph, CUresult, CUstreamCaptureMode};

/// Begins a capture. The modes are 0 for global, 1 for the thread's, 2 for relaxed.
pub(crate) fn begin(stream: &Stream, mode: u32) -> Result<()> {
    let table = stream.device().driver().table();
    let begin = table.cuStreamBeginCapture_v2.context("no capture")?;
    // SAFETY: the stream is live.
    let code = unsafe { begin(stream.as_raw(), CUstreamCaptureMode(mode)) };
    ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
    Ok(())
}

/// Ends the capture, and says how; the graph is destroyed.
pub(crate) fn end(stream: &Stream) -> Result<CUresult> {
    let table = stream.device().driver().table();
    let (end, destroy) = (table.cuStreamEndCapture, table.cuGraphDestroy);
    let (end, destroy) = (end.context("no capture")?, destroy.context("no graphs")?);
    let mut graph: CUgraph = std::ptr::null_mut();
    // SAFETY: the stream is live, and `graph` is valid for a write.
    let code = unsafe { end(stream.as_raw(), &raw mut graph) };
    if !graph.is_null() {
        // SAFETY: the graph was handed out just now.
        unsafe { destroy(graph) };
    }
    Ok(code)
}

/// Ends the capture, which must be as good as before.
pub(crate) fn end_well(stream: &Stream) -> Result<()> {
    let code = end(stream)?;
    ensure!(
        code == CUresult::CUDA_SUCCESS,
        "the capture is lost: {code}"
    );
    Ok(())
}
