//! Sections of the page file, which other processes can map.
//!
//! A section begins with a page for the simulator's header; the memory follows. Its pages are committed one by one, in
//! all processes at once, so that a section as large as a device costs nothing.

use std::ffi::{CStr, c_void};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::windows::io::{AsRawHandle, FromRawHandle, OwnedHandle};
use std::ptr::{null, null_mut};

use cuda_driver_sys::CUresult;
use windows_sys::Win32::Foundation::{
    DUPLICATE_SAME_ACCESS, DuplicateHandle, HANDLE, INVALID_HANDLE_VALUE,
};
use windows_sys::Win32::System::Memory::{
    CreateFileMappingW, FILE_MAP_READ, FILE_MAP_WRITE, MEM_COMMIT, MEMORY_BASIC_INFORMATION,
    MapViewOfFileEx, PAGE_READWRITE, SEC_RESERVE, VirtualQuery,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, OpenProcess, PROCESS_DUP_HANDLE};

use super::range::{Range, commit, unmap_view};
use super::{SharedHandle, Source};
use crate::export::Answer;
use crate::memory::{bytes, pointer};
use crate::system::Words;

/// Space for the header, as large as the steps in which sections are mapped.
const HEADER: u64 = 64 << 10;

/// Identifies these sections; changes with their layout.
const MAGIC: u64 = 0x6375_6461_5f73_6901;

/// Words of a header: what it is, the identity, the length, and the owner's.
const HEADER_WORDS: usize = 7;

/// Memory shared through a handle.
#[derive(Debug)]
pub(crate) struct SharedFile {
    section: OwnedHandle,
    len: u64,
    /// A number unique to this section.
    pub(crate) identity: u64,
    pub(crate) words: Words,
}

impl SharedFile {
    /// Creates `len` bytes, which cost nothing until they are committed.
    pub(crate) fn create(_name: &CStr, len: u64, words: Words) -> Answer<Self> {
        let size = len
            .checked_add(HEADER)
            .ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let section = section(size)?;
        let identity = RandomState::new().build_hasher().finish();
        let base = map(&section, 0, HEADER, None)?;
        let header = Range::of_view(base, HEADER as usize);
        header.commit(base, HEADER as usize)?;
        let all = [MAGIC, identity, len].into_iter().chain(words);
        let all: Vec<u8> = all.flat_map(u64::to_le_bytes).collect();
        bytes::write(base, &all);
        Ok(Self {
            section,
            len,
            identity,
            words,
        })
    }

    /// The section behind a handle of the program, which keeps its own; `None` if it is something else.
    pub(crate) fn import(handle: SharedHandle) -> Option<Self> {
        Self::adopt(duplicate(handle)?)
    }

    fn adopt(section: OwnedHandle) -> Option<Self> {
        // Fails for what is no section.
        let base = map(&section, 0, HEADER, None).ok()?;
        let header = Range::of_view(base, HEADER as usize);
        // Changes nothing in a section of the simulator. Fails for some that are not.
        header.commit(base, HEADER as usize).ok()?;
        let header = bytes::read(header.base(), HEADER_WORDS * 8);
        let word = |index: usize| {
            let bytes = header[index * 8..][..8].try_into();
            bytes.map_or(0, u64::from_le_bytes)
        };
        (word(0) == MAGIC).then(|| Self {
            section,
            len: word(2),
            identity: word(1),
            words: [word(3), word(4), word(5), word(6)],
        })
    }

    /// The section that another process has under this number.
    pub(crate) fn of_process(process: u32, number: u32) -> Option<Self> {
        // SAFETY: no pointers.
        let process = unsafe { OpenProcess(PROCESS_DUP_HANDLE, 0, process) };
        if process.is_null() {
            return None;
        }
        // SAFETY: the system has just opened it for this call.
        let process = unsafe { OwnedHandle::from_raw_handle(process) };
        let handle = std::ptr::without_provenance_mut(number as usize);
        let section = duplicate_from(process.as_raw_handle(), handle)?;
        Self::adopt(section)
    }

    /// For [`of_process`](Self::of_process) in another process. The system's handles have no more bits.
    pub(crate) fn number_in_handles(&self) -> u32 {
        self.section.as_raw_handle().addr() as u32
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Maps all of it. A part is accessible once it is committed here, and then is what other processes have there.
    pub(crate) fn map(&self, _is_open: bool) -> Answer<Range> {
        let len = usize::try_from(self.len).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        let range = Range::of_view(map(&self.section, HEADER, self.len, None)?, len);
        Ok(range)
    }

    /// Another handle of the section, for the program, which may duplicate it into other processes.
    pub(crate) fn export(&self) -> Answer<SharedHandle> {
        let copy = duplicate(self.section.as_raw_handle());
        let copy = copy.ok_or(CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
        let raw = copy.as_raw_handle();
        std::mem::forget(copy);
        Ok(raw)
    }

    /// The bytes of a part read as zero in every process. Pages of a section cannot be given back, so they are
    /// overwritten. `view` is its memory here.
    pub(crate) fn forget(&self, view: &Range, offset: u64, len: u64) {
        let end = (view.base() + offset + len).min(view.base() + view.len() as u64);
        let mut at = view.base() + offset;
        while at < end {
            let Some(about) = query(at) else {
                return;
            };
            let region_end = about.BaseAddress.addr() as u64 + about.RegionSize as u64;
            let stop = region_end.min(end);
            if about.State == MEM_COMMIT {
                bytes::fill(at, 0_u8, (stop - at) as usize);
            }
            at = stop;
        }
    }

    /// To map it at reserved addresses.
    pub(crate) fn source(&self) -> Source<'_> {
        Source(&self.section, HEADER)
    }
}

/// A section of the page file whose pages are committed later.
pub(super) fn section(len: u64) -> Answer<OwnedHandle> {
    let (high, low) = ((len >> 32) as u32, len as u32);
    let kind = PAGE_READWRITE | SEC_RESERVE;
    // SAFETY: no pointers but null ones, which the function allows.
    let handle =
        unsafe { CreateFileMappingW(INVALID_HANDLE_VALUE, null(), kind, high, low, null()) };
    if handle.is_null() {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    // SAFETY: the system has just created it for this call.
    Ok(unsafe { OwnedHandle::from_raw_handle(handle) })
}

/// Maps a part of a section, at this address or where there is room.
pub(super) fn map(section: &OwnedHandle, offset: u64, len: u64, at: Option<u64>) -> Answer<u64> {
    let access = FILE_MAP_READ | FILE_MAP_WRITE;
    let (high, low) = ((offset >> 32) as u32, offset as u32);
    let place: *mut c_void = at.map_or(null_mut(), pointer);
    // SAFETY: an open handle. The system maps nothing over anything else.
    let view = unsafe {
        MapViewOfFileEx(
            section.as_raw_handle(),
            access,
            high,
            low,
            len as usize,
            place,
        )
    };
    if view.Value.is_null() {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    Ok(view.Value.expose_provenance() as u64)
}

/// As [`map`], with all its pages.
pub(super) fn map_all(section: &OwnedHandle, offset: u64, len: u64, at: u64) -> Answer {
    let base = map(section, offset, len, Some(at))?;
    commit(base, len as usize).inspect_err(|_| unmap_view(base))
}

fn query(at: u64) -> Option<MEMORY_BASIC_INFORMATION> {
    let mut about = MEMORY_BASIC_INFORMATION::default();
    let size = size_of_val(&about);
    // SAFETY: any address is allowed, and the place is as large as the size says.
    let written = unsafe { VirtualQuery(pointer(at), &raw mut about, size) };
    (written == size).then_some(about)
}

fn duplicate(handle: SharedHandle) -> Option<OwnedHandle> {
    // SAFETY: no preconditions.
    duplicate_from(unsafe { GetCurrentProcess() }, handle)
}

/// A handle of this process for what another process has under a number.
fn duplicate_from(process: HANDLE, handle: SharedHandle) -> Option<OwnedHandle> {
    // SAFETY: no preconditions.
    let own = unsafe { GetCurrentProcess() };
    let mut copy = null_mut();
    // SAFETY: a number that is no handle is an error, and the place is valid for a write.
    let done = unsafe {
        DuplicateHandle(
            process,
            handle,
            own,
            &raw mut copy,
            0,
            0,
            DUPLICATE_SAME_ACCESS,
        )
    };
    if done == 0 || copy.is_null() {
        return None;
    }
    // SAFETY: the system has just created it for this call.
    Some(unsafe { OwnedHandle::from_raw_handle(copy) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_known_by_its_handle_and_nothing_else_is() {
        let made = SharedFile::create(c"test", 1 << 30, [1, 2, 3, 4]).expect("memory");
        let handle = made.export().expect("a handle");
        let found = SharedFile::import(handle).expect("one of ours");
        assert_eq!((found.len(), found.words), (1 << 30, [1, 2, 3, 4]));
        assert_eq!(found.identity, made.identity);

        let own = made.map(false).expect("address space");
        own.commit(own.base() + HEADER, 4096).expect("memory");
        bytes::fill(own.base() + HEADER, 7_u8, 4096);
        let theirs = found.map(true).expect("address space");
        theirs.commit(theirs.base() + HEADER, 4096).expect("memory");
        assert_eq!(bytes::read(theirs.base() + HEADER, 2)[..], [7, 7]);
        made.forget(&own, 0, 1 << 30);
        assert_eq!(bytes::read(theirs.base() + HEADER, 2)[..], [0, 0]);

        let empty = section(HEADER).expect("memory");
        assert!(SharedFile::import(empty.as_raw_handle()).is_none());
        assert!(SharedFile::import(null_mut()).is_none());
        // SAFETY: `made.export` has handed it out, and nothing else owns it.
        drop(unsafe { OwnedHandle::from_raw_handle(handle) });
    }
}
