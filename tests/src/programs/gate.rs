//! Holding a stream for a while.

use std::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::Stream;
use cuda_mem::sys::CUresult;

/// What comes after it in the stream waits until this is dropped, or a while has passed: some operations wait on the
/// host for streams that they do not name, and a program must come to its end whatever it does.
#[derive(Debug)]
pub(super) struct Gate {
    /// Closing it lets the stream go.
    _open: Sender<()>,
}

struct Wait {
    open: Receiver<()>,
    patience: Duration,
}

/// Holds a stream from this point on. Unlike [`hold`](crate::hold::hold) it does not wait until the stream has come
/// here, which may wait for another stream that is held.
pub(super) fn hold(stream: &Stream, patience: Duration) -> Result<Gate> {
    unsafe extern "C" fn wait(gate: *mut c_void) {
        // SAFETY: the pointer is the box leaked below, and the driver calls this once.
        let gate = unsafe { Box::from_raw(gate.cast::<Wait>()) };
        // Both ends of the wait are what it is for.
        let _ = gate.open.recv_timeout(gate.patience);
    }
    let (open, wait_open) = channel();
    let gate = Box::into_raw(Box::new(Wait {
        open: wait_open,
        patience,
    }));
    let launch = stream
        .device()
        .driver()
        .table()
        .cuLaunchHostFunc
        .context("the driver has no cuLaunchHostFunc")?;
    // A default stream's context has to be current (R8).
    let _current = stream.context().bind()?;
    // SAFETY: the stream is live, its context current, and `wait` calls no driver function, as host functions must not.
    let code = unsafe { launch(stream.as_raw(), Some(wait), gate.cast()) };
    ensure!(code == CUresult::CUDA_SUCCESS, "cuLaunchHostFunc: {code}");
    Ok(Gate { _open: open })
}
