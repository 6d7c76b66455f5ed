//! A second process, and a wire between the two.

use std::mem::size_of;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use anyhow::{Context, Result, ensure};
use cuda_driver_sys::*;

use crate::child::{self, Child};
use crate::environment::{Environment, cu};

/// The longest message.
const LONGEST: usize = 256;

/// One end of a socket that keeps messages apart.
#[derive(Debug)]
pub(crate) struct Wire(OwnedFd);

/// Space for the header and one descriptor, aligned as the system wants it.
type Control = [u64; 4];

impl Wire {
    fn pair() -> Result<(Self, Self)> {
        let mut ends = [0; 2];
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        // SAFETY: `ends` has room for two descriptors.
        let status = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) };
        ensure!(status == 0, "no socket");
        // SAFETY: just made, and nobody else's.
        let ends = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
        let [first, second] = ends;
        Ok((Self(first), Self(second)))
    }

    fn header<'a>(part: &'a mut libc::iovec, control: &'a mut Control) -> libc::msghdr {
        // SAFETY: zero is a value of all its fields.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = part;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header
    }

    pub(crate) fn send_with(&self, bytes: &[u8], descriptor: Option<RawFd>) -> Result<()> {
        let mut part = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        let mut control: Control = [0; 4];
        let mut header = Self::header(&mut part, &mut control);
        if let Some(descriptor) = descriptor {
            let size = size_of::<RawFd>() as u32;
            // SAFETY: plain arithmetic.
            header.msg_controllen = unsafe { libc::CMSG_SPACE(size) } as usize;
            // SAFETY: the header describes live buffers.
            let first = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
            // SAFETY: the control buffer is larger than one header with a descriptor.
            let first = unsafe { &mut *first };
            first.cmsg_level = libc::SOL_SOCKET;
            first.cmsg_type = libc::SCM_RIGHTS;
            // SAFETY: plain arithmetic.
            first.cmsg_len = unsafe { libc::CMSG_LEN(size) } as usize;
            // SAFETY: as above.
            let place = unsafe { libc::CMSG_DATA(first) }.cast::<RawFd>();
            // SAFETY: as above.
            unsafe { place.write_unaligned(descriptor) };
        } else {
            header.msg_controllen = 0;
        }
        // SAFETY: the header describes live buffers.
        let sent =
            unsafe { libc::sendmsg(self.0.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) };
        ensure!(
            sent == bytes.len().cast_signed(),
            "the other process is gone"
        );
        Ok(())
    }

    pub(crate) fn receive_with(&self) -> Result<(Vec<u8>, Option<OwnedFd>)> {
        let mut bytes = vec![0_u8; LONGEST];
        let mut part = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        let mut control: Control = [0; 4];
        let mut header = Self::header(&mut part, &mut control);
        header.msg_controllen = size_of::<Control>();
        let flags = libc::MSG_CMSG_CLOEXEC;
        // SAFETY: the header describes live buffers.
        let got = unsafe { libc::recvmsg(self.0.as_raw_fd(), &raw mut header, flags) };
        ensure!(got > 0, "the other process is gone");
        bytes.truncate(got.cast_unsigned());
        // SAFETY: the system has filled the header.
        let first = unsafe { libc::CMSG_FIRSTHDR(&raw const header) };
        // SAFETY: null, or in the control buffer, which lives on.
        let first = unsafe { first.as_ref() };
        let descriptor = first
            .filter(|first| first.cmsg_type == libc::SCM_RIGHTS)
            .map(|first| {
                // SAFETY: a message of this type holds a descriptor.
                let place = unsafe { libc::CMSG_DATA(first) }.cast::<RawFd>();
                // SAFETY: as above.
                let number = unsafe { place.read_unaligned() };
                // SAFETY: the system made it for this process, and nobody else has it.
                unsafe { OwnedFd::from_raw_fd(number) }
            });
        Ok((bytes, descriptor))
    }

    /// Lets the other process go on.
    pub(crate) fn go(&self) -> Result<()> {
        self.send_with(b"go", None)
    }

    /// Waits until the other process says so.
    pub(crate) fn wait(&self) -> Result<()> {
        self.receive_with().map(drop)
    }

    pub(crate) fn send_pool(&self, env: &Environment, pool: CUmemoryPool) -> Result<()> {
        let (code, descriptor) = crate::ipc::export(env, pool, 1, 0);
        env.fine("cuMemPoolExportToShareableHandle", code)?;
        // SAFETY: just made, and nobody else's.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        self.send_with(b"pool", Some(descriptor.as_raw_fd()))
    }

    pub(crate) fn take_descriptor(&self) -> Result<OwnedFd> {
        self.receive_with()?.1.context("no descriptor came")
    }

    pub(crate) fn take_pool(&self, env: &Environment) -> Result<CUmemoryPool> {
        let descriptor = self.take_descriptor()?;
        let (code, pool) = crate::ipc::import(env, descriptor.as_raw_fd(), 1, 0);
        env.fine("cuMemPoolImportFromShareableHandle", code)?;
        Ok(pool)
    }

    pub(crate) fn send_pointer(&self, env: &Environment, address: CUdeviceptr) -> Result<()> {
        let (code, token) = crate::ipc::token(env, address);
        env.fine("cuMemPoolExportPointer", code)?;
        self.send_with(&token.reserved, None)
    }

    pub(crate) fn take_token(&self) -> Result<CUmemPoolPtrExportData> {
        let (bytes, _) = self.receive_with()?;
        let reserved = bytes.try_into().ok().context("64 bytes")?;
        Ok(CUmemPoolPtrExportData_st { reserved })
    }

    pub(crate) fn take_pointer(
        &self,
        env: &Environment,
        pool: CUmemoryPool,
    ) -> Result<CUdeviceptr> {
        let (code, address) = crate::ipc::open(env, pool, &self.take_token()?);
        env.fine("cuMemPoolImportPointer", code)?;
        Ok(address)
    }

    pub(crate) fn send_event(&self, env: &Environment, event: CUevent) -> Result<()> {
        let mut handle = CUipcEventHandle::default();
        let code = cu!(env, cuIpcGetEventHandle(&raw mut handle, event));
        env.fine("cuIpcGetEventHandle", code)?;
        let bytes: [u8; 64] = handle.reserved.map(|byte| byte as _);
        self.send_with(&bytes, None)
    }

    pub(crate) fn take_event_handle(&self) -> Result<CUipcEventHandle> {
        let (bytes, _) = self.receive_with()?;
        let bytes: [u8; 64] = bytes.try_into().ok().context("64 bytes")?;
        let reserved = bytes.map(|byte| byte as _);
        Ok(CUipcEventHandle_st { reserved })
    }

    pub(crate) fn take_event(&self, env: &Environment) -> Result<CUevent> {
        let (code, event) = crate::ipc_events::open(env, self.take_event_handle()?);
        env.fine("cuIpcOpenEventHandle", code)?;
        Ok(event)
    }
}

/// The other process, to whoever started it.
#[derive(Debug)]
pub(crate) struct Other {
    pub(crate) wire: Wire,
    child: Child,
}

impl Other {
    /// Kills it, and waits until it is gone.
    pub(crate) fn kill(&self) {
        self.child.kill();
        self.child.wait_quietly();
    }
}

/// Asks one part that takes two processes, each with a driver of its own. `first` runs in a
/// process that starts that of `second`, and outlives it.
pub(crate) fn pair(
    env: &Environment,
    part: &str,
    first: impl FnOnce(&Other) -> Result<()>,
    second: impl FnOnce(&Wire) -> Result<()>,
) {
    let label = env.label(part);
    child::ask(&label, child::LIMIT, || {
        let (ours, theirs) = Wire::pair()?;
        let name = format!("{label}, other process");
        let closed_there = ours.0.as_raw_fd();
        let child = Child::start(&name, || {
            // SAFETY: the copy that this process has inherited, which nothing here uses: the end
            // of the first process must be seen.
            unsafe { libc::close(closed_there) };
            env.start()?;
            second(&theirs)
        });
        let child = child.context("no second process")?;
        drop(theirs);
        env.start()?;
        let other = Other { wire: ours, child };
        let outcome = first(&other);
        drop(other.wire);
        other.child.finish(&name, child::LIMIT);
        outcome
    });
}
