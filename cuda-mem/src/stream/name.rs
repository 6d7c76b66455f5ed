//! Which stream it is.

#![forbid(unsafe_code)]

use std::thread::ThreadId;

/// Which stream it is, whatever handle of this crate it is named by. The driver's handles of default streams are the
/// same in all contexts and threads. Only while the stream exists: then another one may get its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StreamName {
    /// The address of the context's handle.
    pub(crate) context: usize,
    /// The address of the stream's handle.
    pub(crate) stream: usize,
    /// The thread whose own stream it is.
    pub(crate) thread: Option<ThreadId>,
}
