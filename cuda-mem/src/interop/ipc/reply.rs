//! The answer to the sender of a buffer that could not be given back properly.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::net::SendFlags;

use super::{socket, wire};
use crate::base::lock::Lock;
use crate::stream::Stream;

/// The kind of the message.
pub(super) const FAILED: u8 = 19;

/// Error texts are cut to this number of bytes.
const MOST_WORDS: usize = 1024;

/// The message that a buffer could not be given back.
pub(super) fn failed(number: u64, words: &str) -> Vec<u8> {
    let mut end = words.len().min(MOST_WORDS);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    let body = [&number.to_le_bytes()[..], &words.as_bytes()[..end]].concat();
    wire::seal(FAILED, &body)
}

/// The socket of a channel, for objects that outlive the channel; `None` when it is closed.
#[derive(Clone, Debug)]
struct Socket(Arc<Lock<Option<RawFd>>>);

/// Part of a channel, dropped before its socket is closed or handed out.
#[derive(Debug)]
pub(super) struct Open(Socket);

impl Open {
    pub(super) fn new(socket: &OwnedFd) -> Self {
        Self(Socket(Arc::new(Lock::new(Some(socket.as_raw_fd())))))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // In a fork this is a copy.
        if let Some(mut open) = self.0.0.lock_unless_forked() {
            *open = None;
        }
    }
}

/// A buffer that was received through a channel: its number, and where to send the answer.
#[derive(Debug)]
pub(super) struct Received {
    pub(super) number: u64,
    socket: Socket,
    /// The failure of the last attempt to give it back.
    failure: Lock<Option<String>>,
}

impl Received {
    pub(super) fn new(open: &Open, number: u64) -> Self {
        Self {
            number,
            socket: open.0.clone(),
            failure: Lock::default(),
        }
    }

    pub(super) fn set_failure(&self, failure: Option<String>) {
        if let Some(mut last) = self.failure.lock_unless_forked() {
            *last = failure;
        }
    }

    /// Called when the buffer is released. If giving it back had failed and was not tried again, the sender is
    /// notified. `stream` has the last work.
    pub(super) fn end(&self, stream: Option<&Stream>) {
        let failure = self.failure.lock_unless_forked();
        let Some(failure) = failure.and_then(|mut failure| failure.take()) else {
            return;
        };
        if let Some(stream) = stream {
            // If this fails too, the end of the work is unknown; the failure says so already.
            let _ = stream.as_ref().wait_unless_captured();
        }
        let Some(open) = self.socket.0.lock_unless_forked() else {
            return;
        };
        let Some(number) = *open else {
            return;
        };
        // SAFETY: the channel is open: it takes the descriptor out under the lock before it is closed.
        let there = unsafe { BorrowedFd::borrow_raw(number) };
        // This may be a destructor, which must not wait for the sender to read.
        let flags = SendFlags::DONTWAIT;
        if socket::send(there, &failed(self.number, &failure), &[], flags).is_err() {
            socket::shut_down(there);
        }
    }
}
