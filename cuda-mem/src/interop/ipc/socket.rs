//! Socket calls, and their errors.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown};

use crate::base::error::{Error, ErrorKind, Result};

/// The maximum size of one message, in bytes.
pub(super) const MAX_BYTES: usize = 64 << 10;

/// The maximum number of descriptors in one message.
pub(super) const MAX_DESCRIPTORS: usize = 16;

/// Buffer size for the descriptors of one message.
pub(super) const SPACE: usize = rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS));

/// Between two attempts at what a socket refuses.
pub(super) const PAUSE: Duration = Duration::from_millis(10);

/// See [`Channel::send`](super::Channel::send).
pub(super) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<()> {
    send_with(socket, bytes, descriptors, SendFlags::empty())?
        .map_err(|error| system("sending to another process", error))
}

/// Sends a message without waiting. Returns whether it is sent: it is not if too many messages are unread at the other
/// end.
pub(super) fn send_now(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<bool> {
    match send_with(socket, bytes, &[], SendFlags::DONTWAIT)? {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN) => Ok(false),
        Err(error) => Err(system("sending to another process", error)),
    }
}

/// The inner error is that of a socket whose other end is open.
fn send_with(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<Result<(), Errno>> {
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
    let sent = retry_on_intr(|| {
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        rustix::net::sendmsg(socket, &parts, &mut control, flags | SendFlags::NOSIGNAL)
    });
    match sent {
        Err(Errno::PIPE | Errno::CONNRESET) => Err(gone()),
        sent => Ok(sent.map(drop)),
    }
}

/// Waits until there is a message, or the other end is closed.
pub(super) fn wait_for_message(socket: BorrowedFd<'_>) -> Result<()> {
    wait(socket, PollFlags::IN, None).map(drop)
}

/// Waits for one of these events, or the end of the other end, but no longer than `limit`. Returns what has come.
pub(super) fn wait(
    socket: BorrowedFd<'_>,
    events: PollFlags,
    limit: Option<Duration>,
) -> Result<PollFlags> {
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    let mut parts = [PollFd::from_borrowed_fd(socket, events)];
    let waited = retry_on_intr(|| rustix::event::poll(&mut parts, limit.as_ref()));
    waited.map_err(|error| system("waiting for another process", error))?;
    Ok(parts[0].revents())
}

/// Whether the program has made the socket one that does not wait.
pub(super) fn never_waits(socket: BorrowedFd<'_>) -> bool {
    // SAFETY: the descriptor is open, and no pointers are passed.
    let flags = unsafe { libc::fcntl(socket.as_raw_fd(), libc::F_GETFL) };
    flags != -1 && flags & libc::O_NONBLOCK != 0
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
