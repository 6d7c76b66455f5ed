//! Captures and waits as a program without this crate makes them.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::Stream;
use cuda_mem::sys::{CUdeviceptr, CUgraph, CUgraphExec, CUresult, CUstreamCaptureMode};

use crate::environment::Environment;

/// The mode of a capture that lets its thread do everything else.
pub const RELAXED: u32 = 2;

/// Begins a capture. The modes are 0 for global, 1 for the thread's, 2 for relaxed.
///
/// # Errors
///
/// If the driver refuses it.
pub fn begin(stream: &Stream, mode: u32) -> Result<()> {
    let table = stream.device().driver().table();
    let begin = table.cuStreamBeginCapture_v2.context("no capture")?;
    // SAFETY: the stream is live.
    let code = unsafe { begin(stream.as_raw(), CUstreamCaptureMode(mode)) };
    ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
    Ok(())
}

/// The capture mode of this thread.
pub(crate) fn capture_mode(env: &Environment) -> Result<u32> {
    let table = env.driver.table();
    let exchange = table.cuThreadExchangeStreamCaptureMode;
    let exchange = exchange.context("no capture modes")?;
    let swap = |mode| -> Result<CUstreamCaptureMode> {
        let mut mode = mode;
        // SAFETY: `mode` is valid for reads and writes.
        let code = unsafe { exchange(&raw mut mode) };
        ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
        Ok(mode)
    };
    let mode = swap(CUstreamCaptureMode(RELAXED))?;
    swap(mode)?;
    Ok(mode.0)
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
///
/// # Errors
///
/// If it is not.
pub fn end_well(stream: &Stream) -> Result<()> {
    let code = end(stream)?;
    ensure!(
        code == CUresult::CUDA_SUCCESS,
        "the capture is lost: {code}"
    );
    Ok(())
}

/// A graph of such a program, to be launched.
#[derive(Debug)]
pub(crate) struct ForeignExec {
    exec: CUgraphExec,
    stream: Stream,
}

/// Ends the capture, which must be as good as before, for launches in `stream`.
pub(crate) fn end_into_exec(captured: &Stream, stream: &Stream) -> Result<ForeignExec> {
    let table = captured.device().driver().table();
    let end = table.cuStreamEndCapture.context("no capture")?;
    let instantiate = table.cuGraphInstantiateWithFlags.context("no graphs")?;
    let destroy = table.cuGraphDestroy.context("no graphs")?;
    let mut graph: CUgraph = std::ptr::null_mut();
    // SAFETY: the stream is live, and `graph` is valid for a write.
    let code = unsafe { end(captured.as_raw(), &raw mut graph) };
    ensure!(
        code == CUresult::CUDA_SUCCESS,
        "the capture is lost: {code}"
    );
    let mut exec: CUgraphExec = std::ptr::null_mut();
    let _current = stream.context().bind()?;
    // SAFETY: the graph was handed out just now, and `exec` is valid for a write.
    let made = unsafe { instantiate(&raw mut exec, graph, 0) };
    // SAFETY: as above; the executable graph does not need it.
    unsafe { destroy(graph) };
    ensure!(made == CUresult::CUDA_SUCCESS, "{made}");
    let stream = stream.clone();
    Ok(ForeignExec { exec, stream })
}

impl ForeignExec {
    /// Launches it and waits.
    pub(crate) fn run(&self) -> Result<()> {
        let table = self.stream.device().driver().table();
        let launch = table.cuGraphLaunch.context("no graphs")?;
        // SAFETY: both are live.
        let code = unsafe { launch(self.exec, self.stream.as_raw()) };
        ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
        Ok(self.stream.synchronize()?)
    }
}

impl Drop for ForeignExec {
    fn drop(&mut self) {
        if let Some(destroy) = self.stream.device().driver().table().cuGraphExecDestroy {
            // SAFETY: nobody else has it, and no launch is under way.
            unsafe { destroy(self.exec) };
        }
    }
}

/// Fills memory in the order of a stream, which may be captured.
pub(crate) fn fill(address: CUdeviceptr, value: u32, count: usize, stream: &Stream) -> Result<()> {
    let table = stream.device().driver().table();
    let fill = table.cuMemsetD32Async.context("no memset")?;
    let _current = stream.context().bind()?;
    // SAFETY: the caller has that memory, and the stream is live.
    let code = unsafe { fill(address, value, count, stream.as_raw()) };
    ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
    Ok(())
}

/// Waits for a stream. This crate does not hear of it.
///
/// # Errors
///
/// As the driver answers.
pub fn synchronize(stream: &Stream) -> Result<()> {
    let table = stream.device().driver().table();
    let synchronize = table.cuStreamSynchronize.context("no streams")?;
    // SAFETY: the stream is live.
    let code = unsafe { synchronize(stream.as_raw()) };
    ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
    Ok(())
}
