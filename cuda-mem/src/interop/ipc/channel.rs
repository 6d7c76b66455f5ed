//! A channel to another process of the same machine: messages with descriptors over a Unix socket.

use std::fmt;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, FdFlags, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use rustix::process::geteuid;

use super::reply::Open;
use super::returns::Returns;
use super::socket::{self, SPACE, gone, system};
use crate::base::error::{Error, ErrorKind, Result};

/// Which processes are accepted at the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Peers {
    /// Processes of the same user. A process that can share memory can also do harm: a wrong token can crash the
    /// process that imports it.
    #[default]
    SameUser,
    /// Processes of any user who can reach the socket.
    AnyUser,
}

/// One end of a channel to another process of this machine. Messages arrive whole, in order, together with their
/// descriptors, which are close-on-exec from the start.
///
/// If the other process dies, sending and receiving answer [`PeerGone`](crate::ErrorKind::PeerGone), once everything
/// that it had sent has been read. The same if it drops its end, but not before the [lent](Self::lend) buffers that it
/// received through it have been given back: they keep the socket open.
///
/// ```
/// use cuda_mem::interop::Channel;
///
/// let (here, there) = Channel::pair()?;
/// here.send(b"hello", &[])?;
/// assert_eq!(there.receive()?.bytes, b"hello");
/// drop(here);
/// assert_eq!(there.receive().unwrap_err().kind(), cuda_mem::ErrorKind::PeerGone);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Debug)]
pub struct Channel {
    pub(super) open: Open,
    /// Which of the buffers that were sent were given back.
    pub(super) returns: Returns,
}

/// A message from [`Channel::receive`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Message {
    /// The bytes that were sent.
    pub bytes: Vec<u8>,
    /// Descriptors in this process for those that were sent along.
    pub descriptors: Vec<OwnedFd>,
}

/// Waits for other processes to [`connect`](Channel::connect).
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    peers: Peers,
}

impl Channel {
    fn new(socket: OwnedFd) -> Self {
        Self {
            open: Open::new(socket),
            returns: Returns::default(),
        }
    }

    /// The maximum size of one message, in bytes.
    pub const MAX_BYTES: usize = socket::MAX_BYTES;

    /// The maximum number of descriptors in one message.
    pub const MAX_DESCRIPTORS: usize = socket::MAX_DESCRIPTORS;

    /// Two connected ends. One of them is for a child process, for example as its standard input.
    ///
    /// # Errors
    ///
    /// [`System`](crate::ErrorKind::System) if this process has no descriptors left.
    #[doc(alias = "socketpair")]
    pub fn pair() -> Result<(Self, Self)> {
        let (first, second) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|error| system("making a channel", error))?;
        Ok((Self::new(first), Self::new(second)))
    }

    /// Connects to the process that [listens](Listener::bind) under `name`, if it belongs to the same user.
    ///
    /// # Errors
    ///
    /// [`PeerGone`](crate::ErrorKind::PeerGone) if no process listens; [`NotPermitted`](crate::ErrorKind::NotPermitted)
    /// if the process belongs to another user.
    pub fn connect(name: &str) -> Result<Self> {
        Self::connect_to(name, Peers::SameUser)
    }

    /// As [`connect`](Self::connect), with a choice of which processes are accepted.
    ///
    /// # Errors
    ///
    /// The same errors.
    pub fn connect_to(name: &str, peers: Peers) -> Result<Self> {
        let socket = socket()?;
        retry_on_intr(|| rustix::net::connect(&socket, &address(name)?)).map_err(|error| {
            match error {
                Errno::CONNREFUSED => Error::new(
                    ErrorKind::PeerGone,
                    format!("nobody listens under the name {name:?}"),
                ),
                error => system("connecting a channel", error),
            }
        })?;
        Self::from_fd_of(socket, peers)
    }

    /// Takes over one end of a channel that was received in another way, such as standard input, if the process that
    /// made it belongs to the same user. The descriptor becomes close-on-exec.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the descriptor is something else;
    /// [`NotPermitted`](crate::ErrorKind::NotPermitted) if the other end belongs to another user.
    pub fn from_fd(socket: OwnedFd) -> Result<Self> {
        Self::from_fd_of(socket, Peers::SameUser)
    }

    /// As [`from_fd`](Self::from_fd), with a choice of which processes are accepted.
    ///
    /// # Errors
    ///
    /// The same errors.
    pub fn from_fd_of(socket: OwnedFd, peers: Peers) -> Result<Self> {
        let kind = sockopt::socket_type(&socket).and_then(|kind| {
            let domain = sockopt::socket_domain(&socket)?;
            Ok(kind == SocketType::SEQPACKET && domain == AddressFamily::UNIX)
        });
        if kind != Ok(true) {
            return Err(Error::invalid(
                "the descriptor is not one end of a channel".to_owned(),
            ));
        }
        check_peer(&socket, peers)?;
        // One that was inherited is not. A program that inherits it further would keep the channel open after the end of
        // this process.
        rustix::io::fcntl_setfd(&socket, FdFlags::CLOEXEC)
            .map_err(|error| system("keeping a channel from other programs", error))?;
        Ok(Self::new(socket))
    }

    /// Sends a message, with copies of the descriptors. Waits while too many messages are unread at the other end.
    ///
    /// # Errors
    ///
    /// [`PeerGone`](crate::ErrorKind::PeerGone) if the other end is closed;
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the message is too large.
    #[doc(alias("sendmsg", "SCM_RIGHTS"))]
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        socket::send(self.as_fd(), bytes, descriptors)
    }

    /// Waits for the next message. Meanwhile answers to buffers that were dropped here are sent, if too many messages were
    /// unread at the other end before.
    ///
    /// # Errors
    ///
    /// [`PeerGone`](crate::ErrorKind::PeerGone) if the other end is closed and everything that it sent has been read;
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for a message that is too large, or that came without its
    /// descriptors because this process has too many; nothing of it is kept.
    #[doc(alias("recvmsg", "SCM_RIGHTS"))]
    pub fn receive(&self) -> Result<Message> {
        self.send_answers_until_message()?;
        let mut bytes = vec![0; Self::MAX_BYTES + 1];
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut read = || {
            retry_on_intr(|| {
                let mut parts = [IoSliceMut::new(&mut bytes)];
                let flags = RecvFlags::CMSG_CLOEXEC;
                rustix::net::recvmsg(&self.open, &mut parts, &mut control, flags)
            })
        };
        // This error is reported once if the other end was closed with messages unread; messages that it sent before
        // can still be read.
        let got = match read() {
            Err(Errno::CONNRESET) => read(),
            got => got,
        }
        .map_err(|error| match error {
            Errno::CONNRESET => gone(),
            error => system("receiving from another process", error),
        })?;
        // Owned before anything else is examined, so that they are closed in any case.
        let descriptors = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .collect();
        if got.bytes == 0 {
            return Err(gone());
        }
        if got
            .flags
            .intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC)
        {
            return Err(Error::invalid(
                "a message of the other process was cut: it is too large, or this process has too \
                 many open files"
                    .to_owned(),
            ));
        }
        bytes.truncate(got.bytes);
        bytes.remove(0);
        Ok(Message { bytes, descriptors })
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.open.as_fd()
    }
}

/// Lent buffers that were received through the channel are still answered, through a copy of the socket; unless this process
/// has no descriptor left for that: then the other end waits until the socket is closed.
impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.open.into_socket()
    }
}

impl Listener {
    /// Listens under a name, for processes of the same user. The name is an abstract socket name of Linux: no file is
    /// created, and the name is free again when the listener is dropped or its process dies. It is visible to every
    /// process of the same network namespace.
    ///
    /// # Errors
    ///
    /// [`InUse`](crate::ErrorKind::InUse) if the name is taken; [`InvalidValue`](crate::ErrorKind::InvalidValue) if it
    /// is empty or longer than 107 bytes.
    pub fn bind(name: &str) -> Result<Self> {
        if name.is_empty() || name.len() > 107 {
            return Err(Error::invalid(format!(
                "{name:?} is no name for a channel: it takes 1 to 107 bytes"
            )));
        }
        let socket = socket()?;
        let bound = address(name).and_then(|address| rustix::net::bind(&socket, &address));
        bound.map_err(|error| match error {
            Errno::ADDRINUSE => Error::in_use("the name of the channel", 1),
            error => system("naming a channel", error),
        })?;
        rustix::net::listen(&socket, 16).map_err(|error| system("listening", error))?;
        let peers = Peers::SameUser;
        Ok(Self { socket, peers })
    }

    /// Chooses which processes may connect.
    #[must_use]
    pub fn allow(mut self, peers: Peers) -> Self {
        self.peers = peers;
        self
    }

    /// Waits for the next process to connect.
    ///
    /// # Errors
    ///
    /// [`NotPermitted`](crate::ErrorKind::NotPermitted) if the process is not accepted; it is disconnected, and the
    /// listener stays open.
    pub fn accept(&self) -> Result<Channel> {
        let socket = retry_on_intr(|| rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC))
            .map_err(|error| system("accepting a channel", error))?;
        check_peer(&socket, self.peers)?;
        Ok(Channel::new(socket))
    }
}

fn socket() -> Result<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)
        .map_err(|error| system("making a channel", error))
}

fn address(name: &str) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

fn check_peer(socket: &OwnedFd, peers: Peers) -> Result<()> {
    if peers == Peers::AnyUser {
        return Ok(());
    }
    let theirs = peer_uid(socket)?;
    let ours = geteuid();
    if theirs == ours.as_raw() {
        return Ok(());
    }
    Err(Error::not_permitted(format!(
        "the process at the other end belongs to user {}, this one to user {}; allow it with \
         Peers::AnyUser if it is to be trusted",
        theirs,
        ours.as_raw()
    )))
}

/// Does not use `rustix`, whose result cannot represent a peer without a process number: one that is not connected, or
/// not visible from this container.
fn peer_uid(socket: &OwnedFd) -> Result<u32> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: u32::MAX,
        gid: u32::MAX,
    };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and both pointers are to live values of the sizes that are told.
    let answer = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if answer != 0 {
        let error = std::io::Error::last_os_error();
        return Err(Error::system("asking who is at the other end", error));
    }
    Ok(peer.uid)
}

impl fmt::Display for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SameUser => "processes of the same user",
            Self::AnyUser => "processes of any user",
        })
    }
}
