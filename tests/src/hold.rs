//! Holding a stream: a host function in it that does not return until it is released.

use std::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::Stream;
use cuda_mem::sys::CUresult;

/// Work submitted to the stream runs only after this is dropped.
#[derive(Debug)]
pub struct Held {
    /// Closing it releases the stream.
    _open: Sender<()>,
}

/// Holds `stream`, which has reached this point on return.
///
/// # Errors
///
/// As the driver answers.
pub fn hold(stream: &Stream) -> Result<Held> {
    let (held, reached) = submit(stream, None)?;
    reached.recv().context("the stream never got there")?;
    Ok(held)
}

/// Holds `stream` once it reaches this point, and no longer than `patience`: some operations wait on the host for
/// streams that they do not name, and a program must end in any case. Returns without waiting for the stream, which
/// may itself wait for a held one.
pub(crate) fn hold_for(stream: &Stream, patience: Duration) -> Result<Held> {
    // A default stream's context has to be current (R8).
    let _current = stream.context().bind()?;
    Ok(submit(stream, Some(patience))?.0)
}

/// Also returns a channel that tells when the stream has reached this point.
fn submit(stream: &Stream, patience: Option<Duration>) -> Result<(Held, Receiver<()>)> {
    struct Gate {
        reached: Sender<()>,
        open: Receiver<()>,
        patience: Option<Duration>,
    }
    unsafe extern "C" fn wait(gate: *mut c_void) {
        // SAFETY: the pointer is the box leaked below, and the driver calls this once.
        let gate = unsafe { Box::from_raw(gate.cast::<Gate>()) };
        // The test may have given up already.
        let _ = gate.reached.send(());
        // Ends with an error when the sender is dropped, or the time is up.
        let _ = match gate.patience {
            Some(patience) => gate.open.recv_timeout(patience).is_ok(),
            None => gate.open.recv().is_ok(),
        };
    }
    let (open, wait_open) = channel();
    let (reached, wait_reached) = channel();
    let gate = Box::into_raw(Box::new(Gate {
        reached,
        open: wait_open,
        patience,
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
    Ok((Held { _open: open }, wait_reached))
}
