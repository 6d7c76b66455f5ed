//! Address space that maps device memory.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::driver::Part;
use crate::export::{Answer, last_errno};

/// A mapping. It is not unmapped when dropped: the program owns it and decides whether to unmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) base: u64,
    pub(crate) len: u64,
}

fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

impl Window {
    /// Maps memory like the module: a forked child does not inherit it.
    pub(crate) fn new(parts: &[Part]) -> Answer<Self> {
        let len = parts.iter().map(|part| part.len).sum();
        let none = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, which replaces nothing.
        let base = unsafe { libc::mmap(pointer(0), len as usize, libc::PROT_NONE, none, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(last_errno());
        }
        let window = Self {
            base: base.expose_provenance() as u64,
            len,
        };
        let mut at = window.base;
        for part in parts {
            window.put(at, part.len, part.file.as_raw_fd(), part.offset)?;
            at += part.len;
        }
        window.keep_from_children();
        Ok(window)
    }

    /// Maps a dma-buf, like any file.
    pub(crate) fn of_file(file: &OwnedFd, offset: u64, len: u64) -> Answer<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (number, offset) = (file.as_raw_fd(), offset.cast_signed());
        // SAFETY: a new mapping, which replaces nothing.
        let base = unsafe {
            libc::mmap(
                pointer(0),
                len as usize,
                access,
                libc::MAP_SHARED,
                number,
                offset,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(last_errno());
        }
        Ok(Self {
            base: base.expose_provenance() as u64,
            len,
        })
    }

    fn put(&self, at: u64, len: u64, file: c_int, offset: u64) -> Answer {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let offset = offset.cast_signed();
        // SAFETY: the range belongs to this mapping, which the program uses only by its address.
        let base = unsafe { libc::mmap(pointer(at), len as usize, access, kind, file, offset) };
        if base == libc::MAP_FAILED {
            return Err(last_errno());
        }
        Ok(())
    }

    fn keep_from_children(&self) {
        // SAFETY: advice on our own mapping.
        unsafe { libc::madvise(pointer(self.base), self.len as usize, libc::MADV_DONTFORK) };
    }

    /// Later accesses raise SIGBUS: the addresses stay, without memory.
    pub(crate) fn invalidate(&self) {
        // SAFETY: the name is a zero-terminated literal.
        let number = unsafe { libc::memfd_create(c"cuda-sim-gdr".as_ptr(), libc::MFD_CLOEXEC) };
        if number < 0 {
            return;
        }
        // SAFETY: the system has just created it for this call.
        let nothing = unsafe { OwnedFd::from_raw_fd(number) };
        // A failure leaves the mapping as it is.
        let _ = self.put(self.base, self.len, nothing.as_raw_fd(), 0);
        self.keep_from_children();
    }

    pub(crate) fn unmap(&self) -> Answer {
        // SAFETY: the mapping is ours, and the program has declared that it no longer uses it.
        match unsafe { libc::munmap(pointer(self.base), self.len as usize) } {
            0 => Ok(()),
            _ => Err(last_errno()),
        }
    }
}
