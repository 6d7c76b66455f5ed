//! Several processes: pins and mappings of one are not usable in another.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;

use cuda_driver_sys::gdr::{gdr_mh_t, gdr_t};

use crate::child::{Child, End, lines};
use crate::environment::{Environment, Kind, SMALL, both, gdr, live, one};

both! { "fork";
    invalidation_fork_access_after_free,
        invalidation_fork_access_after_free_cumemalloc,
        invalidation_fork_access_after_free_vmmalloc, &[];
    invalidation_fork_after_gdr_map,
        invalidation_fork_after_gdr_map_cumemalloc, invalidation_fork_after_gdr_map_vmmalloc, &[];
    invalidation_fork_child_gdr_map_parent,
        invalidation_fork_child_gdr_map_parent_cumemalloc,
        invalidation_fork_child_gdr_map_parent_vmmalloc, &[];
    invalidation_fork_map_and_free,
        invalidation_fork_map_and_free_cumemalloc, invalidation_fork_map_and_free_vmmalloc, &[];
    invalidation_unix_sock_shared_fd_gdr_pin_buffer,
        invalidation_unix_sock_shared_fd_gdr_pin_buffer_cumemalloc,
        invalidation_unix_sock_shared_fd_gdr_pin_buffer_vmmalloc, &[];
    invalidation_unix_sock_shared_fd_gdr_map,
        invalidation_unix_sock_shared_fd_gdr_map_cumemalloc,
        invalidation_unix_sock_shared_fd_gdr_map_vmmalloc, &[];
}

one! { "fork";
    invalidation_fork_child_gdr_pin_parent_with_tokens, &[], pin_parent_with_tokens;
    leakage_pin_pages_fork, &[], pin_pages_fork;
}

/// A process cannot use its old mapping to read what another process writes to memory allocated later.
fn invalidation_fork_access_after_free(kind: Kind) {
    let [here, there] = lines();
    let other = Child::fork(move || {
        assert_eq!(there.hear(), 1);
        let env = Environment::new();
        let buffer = env.alloc(kind, SMALL);
        let opened = env.open();
        let mapped = env.pin_and_map(opened, buffer.at, SMALL);
        mapped.set(0, 77);
        there.tell(77);
        assert_eq!(there.hear(), 1);
        env.free(buffer);
        env.end(opened, mapped, SMALL);
        env.close(opened);
    });
    let env = Environment::new();
    let buffer = env.alloc(kind, SMALL);
    let opened = env.open();
    let mapped = env.pin_and_map(opened, buffer.at, SMALL);
    mapped.set(0, 55);
    env.free(buffer);
    here.tell(1);
    assert_eq!(here.hear(), 77);
    assert!(!mapped.is_there());
    here.tell(1);
    env.end(opened, mapped, SMALL);
    env.close(opened);
    assert_eq!(other.wait(), End::Code(0));
}

/// A child does not inherit its parent's mapping.
fn invalidation_fork_after_gdr_map(kind: Kind) {
    let env = Environment::new();
    let buffer = env.alloc(kind, SMALL);
    let opened = env.open();
    let mapped = env.pin_and_map(opened, buffer.at, SMALL);
    let [here, there] = lines();
    let child = Child::fork(move || {
        assert_eq!(there.hear(), 1);
        mapped.get(0);
    });
    mapped.set(0, 123);
    here.tell(1);
    assert_eq!(child.wait(), End::Signal(libc::SIGSEGV));
    assert_eq!(mapped.get(0), 123);
    env.end(opened, mapped, SMALL);
    env.free(buffer);
    env.close(opened);
}

/// A child can neither map nor otherwise use its parent's pin.
fn invalidation_fork_child_gdr_map_parent(kind: Kind) {
    let env = Environment::new();
    let buffer = env.alloc(kind, SMALL);
    let opened = env.open();
    let handle = env.pin(opened, buffer.at, SMALL);
    let own = opened.expose_provenance();
    let child = Child::fork(move || {
        let opened: gdr_t = std::ptr::with_exposed_provenance_mut(own);
        let refused = env.try_map(opened, handle, SMALL, 0).map(|_| ());
        assert_eq!(refused, Err(libc::EACCES));
        let pin = env.try_pin(opened, buffer.at, SMALL);
        assert_eq!(pin, Err(libc::EACCES));
        let mut flag = 0;
        let code = gdr!(env, gdr_get_callback_flag(opened, handle, &raw mut flag));
        assert_eq!(code, libc::EACCES);
        assert_eq!(gdr!(env, gdr_close(opened)), libc::EACCES);
    });
    assert_eq!(child.wait(), End::Code(0));
    env.unpin(opened, handle);
    env.free(buffer);
    env.close(opened);
}

/// A free in one process does not affect a mapping in another.
fn invalidation_fork_map_and_free(kind: Kind) {
    let [here, there] = lines();
    let other = Child::fork(move || {
        let env = Environment::new();
        let buffer = env.alloc(kind, SMALL);
        let opened = env.open();
        let mapped = env.pin_and_map(opened, buffer.at, SMALL);
        mapped.set(0, 1);
        env.free(buffer);
        there.tell(1);
        env.end(opened, mapped, SMALL);
        env.close(opened);
    });
    let env = Environment::new();
    let buffer = env.alloc(kind, SMALL);
    let opened = env.open();
    let mapped = env.pin_and_map(opened, buffer.at, SMALL);
    mapped.set(0, 99);
    assert_eq!(here.hear(), 1);
    assert_eq!(mapped.get(0), 99);
    assert_eq!(other.wait(), End::Code(0));
    env.end(opened, mapped, SMALL);
    env.free(buffer);
    env.close(opened);
}

/// A fake of a program's `gdr_t`: it starts with the descriptor of the module's device.
#[repr(C)]
struct Fake {
    descriptor: c_int,
    rest: [u64; 16],
}

impl Fake {
    fn of(descriptor: &OwnedFd) -> Self {
        Self {
            descriptor: descriptor.as_raw_fd(),
            rest: [0; 16],
        }
    }

    fn opened(&mut self) -> gdr_t {
        std::ptr::from_mut(self).cast()
    }
}

/// The descriptor at the start of an open handle.
fn descriptor(opened: gdr_t) -> c_int {
    // SAFETY: an open handle starts with it.
    unsafe { opened.cast::<c_int>().read() }
}

/// Sends a descriptor.
fn send(socket: &UnixDatagram, descriptor: c_int) {
    exchange(socket, descriptor, |socket, message| {
        // SAFETY: the message and what it points at are live.
        unsafe { libc::sendmsg(socket, message, 0) }
    });
}

/// Receives a descriptor.
fn receive(socket: &UnixDatagram) -> OwnedFd {
    let number = exchange(socket, -1, |socket, message| {
        // SAFETY: as above.
        unsafe { libc::recvmsg(socket, message, 0) }
    });
    assert!(number >= 0);
    // SAFETY: the system has just created it for us.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Sends or receives one byte with a descriptor; returns the descriptor in the message afterwards.
fn exchange(
    socket: &UnixDatagram,
    descriptor: c_int,
    run: impl FnOnce(c_int, *mut libc::msghdr) -> isize,
) -> c_int {
    let (mut byte, mut space) = (b'$', [0_u64; 8]);
    let mut bytes = libc::iovec {
        iov_base: (&raw mut byte).cast(),
        iov_len: 1,
    };
    // SAFETY: all zeros are an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut bytes;
    message.msg_iovlen = 1;
    message.msg_control = space.as_mut_ptr().cast();
    // SAFETY: only arithmetic.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as usize;
    // SAFETY: the space is large enough.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    let about = libc::cmsghdr {
        // SAFETY: only arithmetic.
        cmsg_len: unsafe { libc::CMSG_LEN(4) } as usize,
        cmsg_level: libc::SOL_SOCKET,
        cmsg_type: libc::SCM_RIGHTS,
    };
    // SAFETY: the header lies within the space.
    unsafe { header.write(about) };
    // SAFETY: as above.
    let place = unsafe { libc::CMSG_DATA(header) }.cast::<c_int>();
    // SAFETY: as above.
    unsafe { place.write_unaligned(descriptor) };
    assert_eq!(run(socket.as_raw_fd(), &raw mut message), 1);
    // SAFETY: as above.
    unsafe { place.read_unaligned() }
}

/// A descriptor of another process cannot be used to pin.
fn invalidation_unix_sock_shared_fd_gdr_pin_buffer(kind: Kind) {
    let (here, there) = UnixDatagram::pair().expect("a pair");
    let child = Child::fork(move || {
        let env = Environment::new();
        let buffer = env.alloc(kind, SMALL);
        let descriptor = receive(&there);
        let mut fake = Fake::of(&descriptor);
        assert!(env.try_pin(fake.opened(), buffer.at, SMALL).is_err());
    });
    let env = Environment::new();
    let opened = env.open();
    send(&here, descriptor(opened));
    assert_eq!(child.wait(), End::Code(0));
    env.close(opened);
}

/// Nor to map that process's pin.
fn invalidation_unix_sock_shared_fd_gdr_map(kind: Kind) {
    let (here, there) = UnixDatagram::pair().expect("a pair");
    let [line, other_line] = lines();
    let child = Child::fork(move || {
        let env = Environment::new();
        let descriptor = receive(&there);
        let handle = gdr_mh_t {
            h: other_line.hear(),
        };
        let mut fake = Fake::of(&descriptor);
        assert!(env.try_map(fake.opened(), handle, SMALL, 0).is_err());
        // Nor does a handle of this process work.
        let opened = env.open();
        assert!(env.try_map(opened, handle, SMALL, 0).is_err());
    });
    let env = Environment::new();
    let buffer = env.alloc(kind, SMALL);
    let opened = env.open();
    let handle = env.pin(opened, buffer.at, SMALL);
    send(&here, descriptor(opened));
    line.tell(handle.h);
    assert_eq!(child.wait(), End::Code(0));
    env.unpin(opened, handle);
    env.close(opened);
    env.free(buffer);
}

/// An address of another process and its tokens mean nothing here.
fn pin_parent_with_tokens() {
    let [here, there] = lines();
    let child = Child::fork(move || {
        let env = Environment::new();
        let opened = env.open();
        let (at, mut handle) = (there.hear(), gdr_mh_t::default());
        let place = &raw mut handle;
        let code = gdr!(env, gdr_pin_buffer(opened, at, SMALL as usize, 0, 0, place));
        assert_eq!(code, libc::EINVAL);
    });
    let env = Environment::new();
    // Larger than what the child has itself.
    let buffer = env.alloc(Kind::Cumemalloc, 64 << 20);
    here.tell(buffer.at);
    assert_eq!(child.wait(), End::Code(0));
    env.free(buffer);
}

/// A pin that exists at a fork is unpinned once, by the process that made it.
fn pin_pages_fork() {
    let env = Environment::new();
    let buffer = env.alloc(Kind::Cumemalloc, SMALL);
    let opened = env.open();
    assert_eq!(live(), [0, 0]);
    let mapped = env.pin_and_map(opened, buffer.at, SMALL);
    assert_eq!(live(), [1, 1]);
    let child = Child::fork(|| {});
    assert_eq!(child.wait(), End::Code(0));
    assert_eq!(live(), [1, 1]);
    mapped.set(0, 5);
    assert_eq!(env.read(buffer.at, 4), [5, 0, 0, 0]);
    env.close(opened);
    assert_eq!(live(), [0, 0]);
    env.free(buffer);
}
