//! An anonymous memory file that other processes can map.

use std::ffi::{CStr, c_int};
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use cuda_driver_sys::CUresult;

use super::{Range, SharedHandle};
use crate::export::Answer;
use crate::system::Words;

/// Space for a header behind the memory, which is never mapped.
const HEADER: u64 = 64 << 10;

/// Identifies these files; changes with their layout.
const MAGIC: u64 = 0x6375_6461_5f73_6901;

/// Fixes the size of these files, so that one process cannot make another's access fail.
const SEALS: c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Memory shared through a descriptor.
#[derive(Debug)]
pub(crate) struct SharedFile {
    file: File,
    len: u64,
    /// A number unique to this file.
    pub(crate) identity: u64,
    pub(crate) words: Words,
}

impl SharedFile {
    /// Creates `len` bytes, which cost nothing until accessed.
    pub(crate) fn create(name: &CStr, len: u64, words: Words) -> Answer<Self> {
        let file = anonymous_file(name, len + HEADER)?;
        let identity = RandomState::new().build_hasher().finish();
        let header: Vec<u8> = [MAGIC, identity, len]
            .iter()
            .chain(&words)
            .flat_map(|word| word.to_le_bytes())
            .collect();
        file.write_all_at(&header, len)
            .map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
        Ok(Self {
            file,
            len,
            identity,
            words,
        })
    }

    /// The file behind a descriptor of the program, which keeps its own; `None` if it is something else.
    pub(crate) fn import(number: SharedHandle) -> Option<Self> {
        file_of(number).and_then(Self::adopt)
    }

    /// The file that another process has under this number. Opening it does not block, whatever it is.
    pub(crate) fn of_process(process: u32, number: u32) -> Option<Self> {
        let mut options = File::options();
        options.read(true).write(true);
        options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        let file = options.open(format!("/proc/{process}/fd/{number}"));
        Self::adopt(file.ok()?)
    }

    /// Recognises a file created elsewhere; `None` if it is something else.
    pub(crate) fn adopt(file: File) -> Option<Self> {
        // SAFETY: no pointers.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & SEALS != SEALS {
            return None;
        }
        let len = file.metadata().ok()?.len().checked_sub(HEADER)?;
        let mut header = [0; 7 * 8];
        file.read_exact_at(&mut header, len).ok()?;
        let word = |index: usize| {
            let bytes = header[index * 8..][..8].try_into();
            bytes.map_or(0, u64::from_le_bytes)
        };
        if word(0) != MAGIC || word(2) != len {
            return None;
        }
        Some(Self {
            file,
            len,
            identity: word(1),
            words: [word(3), word(4), word(5), word(6)],
        })
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn number(&self) -> c_int {
        self.file.as_raw_fd()
    }

    /// For [`of_process`](Self::of_process) in another process.
    pub(crate) fn number_in_handles(&self) -> u32 {
        self.number().cast_unsigned()
    }

    /// Maps all of it, accessible or not. The file need not stay open.
    pub(crate) fn map(&self, is_open: bool) -> Answer<Range> {
        let len = usize::try_from(self.len).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Range::of_file(self.number(), len, is_open)
    }

    /// Another descriptor of the file. Measured: a driver does not set close-on-exec.
    pub(crate) fn export(&self) -> Answer<SharedHandle> {
        // SAFETY: no pointers.
        let number = unsafe { libc::fcntl(self.number(), libc::F_DUPFD, 0) };
        if number < 0 {
            return Err(CUresult::CUDA_ERROR_OPERATING_SYSTEM);
        }
        Ok(number)
    }

    /// Discards the bytes of a part in every process; they then read as zero. `_view` is its memory here.
    pub(crate) fn forget(&self, _view: &Range, offset: u64, len: u64) {
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        let (offset, len) = (offset.cast_signed(), len.cast_signed());
        // SAFETY: no pointers. A failure keeps the pages, which is harmless.
        unsafe { libc::fallocate(self.number(), mode, offset, len) };
    }
}

/// A memory file of fixed length. It costs nothing until accessed.
pub(crate) fn anonymous_file(name: &CStr, len: u64) -> Answer<File> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is zero-terminated.
    let descriptor = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    let file = File::from(own(descriptor)?);
    let is_long = file.set_len(len).is_ok();
    // SAFETY: no pointers.
    let sealed = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) };
    if is_long && sealed == 0 {
        Ok(file)
    } else {
        Err(CUresult::CUDA_ERROR_OPERATING_SYSTEM)
    }
}

/// The number of handles that this process can still open, counted up to `most`.
pub(crate) fn openable(most: usize) -> usize {
    let opened: Vec<File> = (0..most)
        .map_while(|_| File::open("/dev/null").ok())
        .collect();
    opened.len()
}

/// The file behind a descriptor of the program, which keeps its own.
fn file_of(number: c_int) -> Option<File> {
    // SAFETY: no pointers; a number that is not open is an error.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
    own(copy).ok().map(File::from)
}

fn own(number: c_int) -> Answer<OwnedFd> {
    if number < 0 {
        return Err(CUresult::CUDA_ERROR_OPERATING_SYSTEM);
    }
    // SAFETY: the system has just created it for this call.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_file_is_known_by_its_descriptor_and_nothing_else_is() {
        let made = SharedFile::create(c"test", 1 << 30, [1, 2, 3, 4]).expect("memory");
        let found = file_of(made.number()).and_then(SharedFile::adopt);
        let found = found.expect("one of ours");
        assert_eq!((found.len(), found.words), (1 << 30, [1, 2, 3, 4]));
        assert_eq!(found.identity, made.identity);
        let other = SharedFile::create(c"test", 1 << 30, [0; 4]).expect("memory");
        assert_ne!(other.identity, made.identity);
        assert!(made.file.set_len(1).is_err(), "its size is sealed");

        assert!(file_of(-1).is_none());
        let exe = File::open("/proc/self/exe").expect("a file");
        assert!(SharedFile::adopt(exe).is_none());
        // SAFETY: the name is a literal.
        let empty = unsafe { libc::memfd_create(c"test".as_ptr(), 0) };
        let empty = File::from(own(empty).expect("memory"));
        assert!(SharedFile::adopt(empty).is_none());
    }
}
