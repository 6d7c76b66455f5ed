//! The library, and what ranks find each other by.

use std::fmt;
use std::path::Path;

use cuda_driver_sys::nccl::{NcclLibrary, NcclTable, ncclUniqueId};

use super::group::Group;
use super::join::{CommunicatorBuilder, CommunicatorsBuilder};
use crate::base::error::{Error, Result};
use crate::base::report;
use crate::driver::raw;
use crate::stream::Context;

/// NCCL, opened. A cheap handle.
#[derive(Clone, Copy)]
pub struct Nccl(&'static NcclLibrary);

impl Nccl {
    /// Opens NCCL. Later calls return the same at once.
    ///
    /// `CUDA_DRIVER_SYS_NCCL_LIBRARY` may name another library to open, such as the `libnccl.so.2` of the Python packages
    /// `nvidia-nccl-cu13` or `torch`.
    ///
    /// # Errors
    ///
    /// [`NcclMissing`](crate::ErrorKind::NcclMissing) lists everything that was tried.
    /// [`Forked`](crate::ErrorKind::Forked) in a child of a process that used the driver.
    pub fn load() -> Result<Self> {
        // A child waits for ever for a thread of the parent that is opening the library.
        if report::is_forked() {
            return Err(Error::forked());
        }
        let _watched = report::watch_forks_for_now();
        Ok(Self(cuda_driver_sys::nccl::load()?))
    }

    /// Opens the library at `path`, and only that.
    ///
    /// Each call opens it anew; keep the handle.
    ///
    /// # Safety
    ///
    /// The file's initialisers run, and it must be NCCL, or something that behaves like it.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Self> {
        // SAFETY: the caller vouches for the file.
        Ok(Self(unsafe { cuda_driver_sys::nccl::load_from(path) }?))
    }

    /// The name or path by which the library was opened.
    #[must_use]
    pub fn library_path(&self) -> &'static Path {
        self.0.path()
    }

    /// The functions of the library, for calls that this crate does not wrap.
    #[must_use]
    pub fn table(&self) -> &'static NcclTable {
        self.0.table()
    }

    /// The version of the library.
    ///
    /// # Errors
    ///
    /// Any error that NCCL reports.
    #[doc(alias = "ncclGetVersion")]
    pub fn version(&self) -> Result<NcclVersion> {
        // SAFETY: the table is NCCL's, by the contract of every function that makes one of these.
        let version = unsafe { raw::nccl::version(self.table()) }?;
        Ok(NcclVersion(version.unsigned_abs()))
    }

    /// An id for a new communicator. One rank asks for it and gives it to the others, which
    /// [join](Self::communicator) by it. It can be used once.
    ///
    /// # Errors
    ///
    /// Any error that NCCL reports; it opens a socket.
    #[doc(alias = "ncclGetUniqueId")]
    pub fn unique_id(&self) -> Result<UniqueId> {
        // SAFETY: as above.
        let id = unsafe { raw::nccl::unique_id(self.table()) }?;
        Ok(UniqueId(id))
    }

    /// Settings of this process's, or this thread's, end of a communicator of `ranks` ranks: `rank` counts from 0, and the
    /// device is that of `context`.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use cuda_mem::Driver;
    /// use cuda_mem::collective::{Nccl, UniqueId};
    ///
    /// # let (rank, bytes) = (0, [0; 128]);
    /// let context = Driver::load()?.device(rank)?.primary_context()?;
    /// let id = UniqueId::from_bytes(bytes); // rank 0 made it and has sent it
    /// let communicator = Nccl::load()?
    ///     .communicator(&context, 2, rank as usize)
    ///     .timeout(Duration::from_secs(30))
    ///     .join(&id)?;
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn communicator(
        &self,
        context: &Context,
        ranks: usize,
        rank: usize,
    ) -> CommunicatorBuilder {
        CommunicatorBuilder::new(*self, context, ranks, rank)
    }

    /// Settings of one communicator with a rank in each of these contexts, all of this process: the n-th result is rank n. Ranks that one
    /// thread drives must start operations that need each other in a [`Group`].
    #[doc(alias = "ncclCommInitAll")]
    pub fn communicators(&self, contexts: &[Context]) -> CommunicatorsBuilder {
        CommunicatorsBuilder::new(*self, contexts)
    }

    /// An empty group.
    pub fn group<'a>(&self) -> Group<'a> {
        Group::new(*self)
    }
}

/// Two handles are equal if they refer to the same library, opened by the same call.
impl PartialEq for Nccl {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Nccl {}

impl fmt::Debug for Nccl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.0, f)
    }
}

/// A version of NCCL.
///
/// ```
/// use cuda_mem::collective::NcclVersion;
/// assert!(NcclVersion::new(2, 28, 9) > NcclVersion::new(2, 27, 0));
/// assert_eq!(NcclVersion::new(2, 28, 9).to_string(), "2.28.9");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NcclVersion(u32);

impl NcclVersion {
    /// For 2.9 and newer.
    #[must_use]
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self(cuda_driver_sys::nccl::NCCL_VERSION(major, minor, patch))
    }
}

impl fmt::Display for NcclVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(code) = *self;
        // Up to 2.8, versions were counted in thousands.
        let (major, rest) = if code < 10_000 {
            (code / 1000, code % 1000)
        } else {
            (code / 10_000, code % 10_000)
        };
        write!(f, "{major}.{}.{}", rest / 100, rest % 100)
    }
}

/// What the ranks of a new communicator find each other by: 128 bytes, to be sent in any way.
#[derive(Clone, Copy)]
pub struct UniqueId(pub(super) ncclUniqueId);

impl UniqueId {
    /// The id with these bytes, which [`to_bytes`](Self::to_bytes) gave in another process.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 128]) -> Self {
        Self(ncclUniqueId {
            internal: bytes.map(|byte| byte as std::ffi::c_char),
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 128] {
        self.0.internal.map(|byte| byte as _)
    }
}

impl PartialEq for UniqueId {
    fn eq(&self, other: &Self) -> bool {
        self.0.internal == other.0.internal
    }
}

impl Eq for UniqueId {}

/// Not its bytes: whoever knows them can join.
impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UniqueId(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_as_bytes_and_is_not_printed() {
        let bytes = std::array::from_fn(|at| at as u8 + 100);
        let id = UniqueId::from_bytes(bytes);
        assert_eq!(id.to_bytes(), bytes);
        assert_eq!(UniqueId::from_bytes(id.to_bytes()), id);
        assert_eq!(format!("{id:?}"), "UniqueId(..)");
    }

    #[test]
    fn old_versions_are_shown_too() {
        assert_eq!(NcclVersion(2804).to_string(), "2.8.4");
        assert_eq!(NcclVersion(21403).to_string(), "2.14.3");
    }
}
