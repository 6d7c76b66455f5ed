//! Launches and uploads of graphs, and waits for events beside them.
//!
//! If a thread makes a stream wait for an event while another thread launches or uploads a graph in that stream, and
//! the event is recorded again afterwards, the wait may be lost (R179, measured). So waits in a stream exclude
//! launches and uploads in it, and after the first launch or upload no event is used for a second wait. Graphs of
//! other libraries are not known.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{RwLockReadGuard, RwLockWriteGuard};

use cuda_driver_sys::CUstream;

use crate::base::error::Result;
use crate::base::lock::SharedLock;

/// Streams share these locks.
const LOCKS: usize = 64;

static TURNS: [SharedLock<()>; LOCKS] = [const { SharedLock::new(()) }; LOCKS];

static HAVE_BEEN: AtomicBool = AtomicBool::new(false);

fn turns(stream: CUstream) -> &'static SharedLock<()> {
    // Handles lie some hundred bytes apart.
    let address = stream.addr();
    &TURNS[(address ^ address >> 6 ^ address >> 12) % LOCKS]
}

/// Whether this crate has launched or uploaded a graph in this process.
#[inline]
pub(crate) fn have_been() -> bool {
    HAVE_BEEN.load(Ordering::SeqCst)
}

/// No graph is launched or uploaded in the stream while the guard lives.
pub(crate) fn wait(stream: CUstream) -> Result<RwLockReadGuard<'static, ()>> {
    turns(stream).read()
}

/// The stream is not made to wait for anything while the guard lives.
pub(crate) fn launch(stream: CUstream) -> Result<RwLockWriteGuard<'static, ()>> {
    HAVE_BEEN.store(true, Ordering::SeqCst);
    turns(stream).write()
}
