//! Holding a stream: a host function in it that does not return until it is let go.

use std::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::Stream;
use cuda_mem::sys::CUresult;

/// What is submitted to the stream from now on runs only after this is dropped.
#[derive(Debug)]
pub struct Held {
    /// Closing it lets the stream go.
    _open: Sender<()>,
}

/// Holds `stream`, which has reached this point when the call returns.
///
/// # Errors
///
/// As the driver answers.
pub fn hold(stream: &Stream) -> Result<Held> {
    struct Gate {
        reached: Sender<()>,
        open: Receiver<()>,
    }
    unsafe extern "C" fn wait(gate: *mut c_void) {
        // SAFETY: the pointer is the box leaked below, and the driver calls this once.
        let gate = unsafe { Box::from_raw(gate.cast::<Gate>()) };
        // The test may have given up already; then there is nobody to tell.
        let _ = gate.reached.send(());
        // Ends with an error when the sender is dropped: that is the signal.
        let _ = gate.open.recv();
    }
    let (open, wait_open) = channel();
    let (reached, wait_reached) = channel();
    let gate = Box::into_raw(Box::new(Gate {
        reached,
        open: wait_open,
    }));
    let launch = stream
        .device()
        .driver()
        .table()
        .cuLaunchHostFunc
        .context("the driver has no cuLaunchHostFunc")?;
    // SAFETY: the stream is live, and `wait` calls no driver function, as host functions must not.
    let code = unsafe { launch(stream.as_raw(), Some(wait), gate.cast()) };
    ensure!(code == CUresult::CUDA_SUCCESS, "cuLaunchHostFunc: {code}");
    wait_reached.recv().context("the stream never got there")?;
    Ok(Held { _open: open })
}
