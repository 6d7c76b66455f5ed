//! Socket calls, and their errors.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown};

use crate::base::error::{Error, ErrorKind, Result};

/// The maximum size of one message, in bytes.
pub(super) const MAX_BYTES: usize = 64 << 10;

/// The maximum number of descriptors in one message.
pub(super) const MAX_DESCRIPTORS: usize = 16;

/// Buffer size for the descriptors of one message.
pub(super) const SPACE: usize = rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS));

/// See [`Channel::send`](super::Channel::send).
pub(super) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<()> {
    if bytes.len() > MAX_BYTES || descriptors.len() > MAX_DESCRIPTORS {
        return Err(Error::invalid(format!(
            "a message of {} bytes and {} descriptors; at most {} and {} fit",
            bytes.len(),
            descriptors.len(),
            MAX_BYTES,
            MAX_DESCRIPTORS
        )));
    }
    let mut space = [MaybeUninit::uninit(); SPACE];
    // An extra byte, so that an empty message is not taken for the end of the stream.
    let parts = [IoSlice::new(&[0]), IoSlice::new(bytes)];
    retry_on_intr(|| {
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        rustix::net::sendmsg(socket, &parts, &mut control, flags | SendFlags::NOSIGNAL)
    })
    .map_err(|error| match error {
        Errno::PIPE | Errno::CONNRESET => gone(),
        error => system("sending to another process", error),
    })?;
    Ok(())
}

/// Waits until there is a message, or the other end is closed.
pub(super) fn wait_for_message(socket: BorrowedFd<'_>) -> Result<()> {
    let mut parts = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    let waited = retry_on_intr(|| rustix::event::poll(&mut parts, None));
    waited.map_err(|error| system("waiting for another process", error))?;
    Ok(())
}

/// Closes a channel in both directions: the other end reads what was sent, and then the end of the channel.
pub(super) fn shut_down(socket: BorrowedFd<'_>) {
    // Fails only if the other end is gone already.
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}

#[cold]
pub(super) fn gone() -> Error {
    Error::new(
        ErrorKind::PeerGone,
        "the process at the other end of the channel is gone",
    )
}

#[cold]
pub(super) fn system(what: &'static str, error: Errno) -> Error {
    Error::system(what, error.into())
}
