//! A channel to another process of the same machine: messages with descriptors over a Unix socket.

use std::fmt;
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use rustix::process::geteuid;

use super::reply::Open;
use super::returns::Returns;
use super::socket::{self, SPACE, gone, system};
use crate::base::error::{Error, Result};

/// Which processes may be at the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Peers {
    /// Those of the same user. Whoever can share memory can also harm: a wrong token can crash the
    /// process that imports it.
    #[default]
    SameUser,
    /// Those of any user who can reach the socket.
    AnyUser,
}

/// One end of a channel to another process of this machine. Messages arrive whole, in order, with the
/// descriptors that were sent along, which are close-on-exec from the start.
///
/// If the other process dies, sending and receiving answer [`PeerGone`](crate::ErrorKind::PeerGone), once
/// what it had sent is read.
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
    /// Before the socket: fields are dropped in this order.
    pub(super) open: Open,
    socket: OwnedFd,
    /// Numbers the buffers that were sent, so that word of one is not taken for that of another.
    sent: AtomicU64,
    /// Which of them came back.
    pub(super) returns: Returns,
}

/// What [`Channel::receive`] brings.
#[derive(Debug)]
#[non_exhaustive]
pub struct Message {
    /// The bytes that were sent.
    pub bytes: Vec<u8>,
    /// Descriptors of this process, for what was sent along.
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
            open: Open::new(&socket),
            socket,
            sent: AtomicU64::new(1),
            returns: Returns::default(),
        }
    }

    /// A number for a buffer that is sent.
    pub(super) fn next_number(&self) -> u64 {
        self.sent.fetch_add(1, Ordering::Relaxed)
    }

    /// The most bytes of one message.
    pub const MAX_BYTES: usize = socket::MAX_BYTES;

    /// The most descriptors of one message.
    pub const MAX_DESCRIPTORS: usize = socket::MAX_DESCRIPTORS;

    /// Two ends. One of them is for a child: made into its standard input, say.
    ///
    /// # Errors
    ///
    /// [`System`](crate::ErrorKind::System) if there are no descriptors left.
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

    /// Connects to the process that [listens](Listener::bind) under `name`, if it is of the same user.
    ///
    /// # Errors
    ///
    /// [`PeerGone`](crate::ErrorKind::PeerGone) if nobody listens;
    /// [`NotPermitted`](crate::ErrorKind::NotPermitted) if it is somebody else's process.
    pub fn connect(name: &str) -> Result<Self> {
        Self::connect_to(name, Peers::SameUser)
    }

    /// As [`connect`](Self::connect), with a choice of whose process may be there.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn connect_to(name: &str, peers: Peers) -> Result<Self> {
        let socket = socket()?;
        retry_on_intr(|| rustix::net::connect(&socket, &address(name)?)).map_err(|error| {
            match error {
                Errno::CONNREFUSED => {
                    Error::peer_gone(format!("nobody listens under the name {name:?}"))
                }
                error => system("connecting a channel", error),
            }
        })?;
        Self::from_fd_of(socket, peers)
    }

    /// Takes over one end of a channel that came by another way, such as standard input, if the process
    /// that made it is of the same user.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the descriptor is something else;
    /// [`NotPermitted`](crate::ErrorKind::NotPermitted) if the other end is somebody else's.
    pub fn from_fd(socket: OwnedFd) -> Result<Self> {
        Self::from_fd_of(socket, Peers::SameUser)
    }

    /// As [`from_fd`](Self::from_fd), with a choice of whose process may be there.
    ///
    /// # Errors
    ///
    /// As there.
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
        Ok(Self::new(socket))
    }

    /// Sends a message, with copies of the descriptors. Waits while the other end has too much to read.
    ///
    /// # Errors
    ///
    /// [`PeerGone`](crate::ErrorKind::PeerGone) if the other end is closed;
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the message is too large.
    #[doc(alias("sendmsg", "SCM_RIGHTS"))]
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        socket::send(self.as_fd(), bytes, descriptors, SendFlags::empty())
    }

    /// Waits for the next message.
    ///
    /// # Errors
    ///
    /// [`PeerGone`](crate::ErrorKind::PeerGone) if the other end is closed and all it sent is read;
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for a message that is too large, or that came
    /// without its descriptors because this process has too many; nothing of it is kept.
    #[doc(alias("recvmsg", "SCM_RIGHTS"))]
    pub fn receive(&self) -> Result<Message> {
        let mut bytes = vec![0; Self::MAX_BYTES + 1];
        let mut space = [MaybeUninit::uninit(); SPACE];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut read = || {
            retry_on_intr(|| {
                let mut parts = [IoSliceMut::new(&mut bytes)];
                let flags = RecvFlags::CMSG_CLOEXEC;
                rustix::net::recvmsg(&self.socket, &mut parts, &mut control, flags)
            })
        };
        // It says once that the other end was closed with messages unread; what that sent before is
        // still there.
        let got = match read() {
            Err(Errno::CONNRESET) => read(),
            got => got,
        }
        .map_err(|error| match error {
            Errno::CONNRESET => gone(),
            error => system("receiving from another process", error),
        })?;
        // Owned before anything else is looked at, so that they are closed whatever comes.
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
        self.socket.as_fd()
    }
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        let Channel { open, socket, .. } = channel;
        drop(open);
        socket
    }
}

impl Listener {
    /// Listens under a name, for processes of the same user. The name is one of Linux's abstract
    /// sockets: no file comes to be, and it is free again when the listener is dropped or its process
    /// dies. Every process of the same network namespace can see it.
    ///
    /// # Errors
    ///
    /// [`InUse`](crate::ErrorKind::InUse) if somebody has the name; [`InvalidValue`](crate::ErrorKind::InvalidValue)
    /// if it is empty or longer than 107 bytes.
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

    /// Chooses whose processes may connect.
    #[must_use]
    pub fn allow(mut self, peers: Peers) -> Self {
        self.peers = peers;
        self
    }

    /// Waits for the next process to connect.
    ///
    /// # Errors
    ///
    /// [`NotPermitted`](crate::ErrorKind::NotPermitted) if it is somebody else's; it is turned away, and
    /// the listener goes on.
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

/// Not by `rustix`, whose answer has no room for a peer without a process number: one that is not
/// connected, or not visible from this container.
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
