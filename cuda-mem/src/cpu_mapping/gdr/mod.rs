//! gdrcopy: its library, opened once, and its pinned mappings.

mod kernel;
mod pinned;

pub use kernel::GdrKernelInfo;
pub(crate) use pinned::GdrMapping;

use std::fmt;
use std::path::Path;
use std::sync::MutexGuard;

use cuda_driver_sys::gdr::{GdrLibrary, GdrTable, gdr_attr_t, gdr_mapping_type_t, gdr_t};

use crate::base::error::{Error, ErrorKind, Result};
use crate::base::lock::{Lock, LockedOnce};
use crate::driver::raw;

/// The library of [gdrcopy](https://github.com/NVIDIA/gdrcopy), open on its kernel module. A cheap handle to copy.
///
/// ```
/// use cuda_mem::ErrorKind;
/// use cuda_mem::cpu_mapping::Gdr;
///
/// match Gdr::load() {
///     Ok(gdr) => println!("gdrcopy {:?}", gdr.runtime_version()?),
///     Err(error) => {
///         assert_eq!(error.kind(), ErrorKind::GdrMissing);
///         println!("{error}"); // what was looked for, and what to do
///     }
/// }
/// # Ok::<(), cuda_mem::Error>(())
/// ```
///
/// [`CpuMapping`](crate::cpu_mapping::CpuMapping)s load it on their own. It stays open until the process exits, and
/// cannot be used in a forked child.
#[derive(Clone, Copy)]
pub struct Gdr(&'static Open);

struct Open {
    library: &'static GdrLibrary,
    handle: Lock<Handle>,
    /// The process that opened it; a forked child has no copy.
    process: u32,
}

/// The library's state, which only one thread may use at a time.
struct Handle(gdr_t);

// SAFETY: the library's state is not tied to a thread, and the lock around it admits one at a time.
unsafe impl Send for Handle {}

impl Gdr {
    /// Opens the library and its kernel module. Later calls return the same handle at once. After a failure of the module
    /// they try again; a library that was not found is not looked for again.
    ///
    /// `CUDA_DRIVER_SYS_GDR_LIBRARY` names a different library to open.
    ///
    /// # Errors
    ///
    /// [`GdrMissing`](ErrorKind::GdrMissing) names what is missing: the library, with everything that was tried, or the
    /// kernel module's device, with the remedy.
    #[doc(alias = "gdr_open")]
    pub fn load() -> Result<Self> {
        static OPEN: LockedOnce<Open> = LockedOnce::new();
        OPEN.get_or_try_init(|| Open::new(cuda_driver_sys::gdr::load()?))
            .map(Gdr)
    }

    /// The name or path by which the library was opened.
    #[must_use]
    pub fn library_path(&self) -> &'static Path {
        self.0.library.path()
    }

    /// The functions of the library, for calls that this crate does not wrap.
    #[must_use]
    pub fn table(&self) -> &'static GdrTable {
        self.0.library.table()
    }

    /// Major and minor version of the library.
    ///
    /// # Errors
    ///
    /// [`SymbolMissing`](ErrorKind::SymbolMissing) before version 2.0.
    #[doc(alias = "gdr_runtime_get_version")]
    pub fn runtime_version(&self) -> Result<(u32, u32)> {
        // SAFETY: the table is gdrcopy's.
        let (major, minor) = unsafe { raw::gdr::runtime_version(self.table()) }?;
        Ok((major.unsigned_abs(), minor.unsigned_abs()))
    }

    /// Major and minor version of the kernel module.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](ErrorKind::NotSupported) if the library works without a kernel module; otherwise any error that
    /// the library reports; [`SymbolMissing`](ErrorKind::SymbolMissing) before version 2.0.
    #[doc(alias = "gdr_driver_get_version")]
    pub fn driver_version(&self) -> Result<(u32, u32)> {
        if self.uses_dma_buf()? {
            return Err(Error::not_supported(
                "the library maps dma-bufs, without a kernel module".to_owned(),
            ));
        }
        let handle = self.handle()?;
        // SAFETY: the handle is open, and this thread holds its lock.
        let (major, minor) = unsafe { raw::gdr::driver_version(self.table(), handle.0) }?;
        Ok((major.unsigned_abs(), minor.unsigned_abs()))
    }

    /// Whether mappings outlive their memory, so that reading one after the memory is freed does not end the process. A
    /// [`CpuMapping`](crate::cpu_mapping::CpuMapping) never lives that long.
    ///
    /// # Errors
    ///
    /// Any error that the library reports. Libraries before 2.5 return `false`.
    #[doc(alias = "GDR_ATTR_USE_PERSISTENT_MAPPING")]
    pub fn is_persistent(&self) -> Result<bool> {
        self.attribute(gdr_attr_t::GDR_ATTR_USE_PERSISTENT_MAPPING)
    }

    /// Whether memory can be pinned for access over PCIe where a coherent link exists. Pinning may still fail.
    ///
    /// # Errors
    ///
    /// As [`is_persistent`](Self::is_persistent).
    #[doc(alias = "GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE")]
    pub fn can_force_pcie(&self) -> Result<bool> {
        self.attribute(gdr_attr_t::GDR_ATTR_SUPPORT_PIN_FLAG_FORCE_PCIE)
    }

    /// Whether the library maps dma-bufs and needs no kernel module, as versions from 2.6 on may.
    ///
    /// # Errors
    ///
    /// As [`is_persistent`](Self::is_persistent).
    #[doc(alias = "GDR_ATTR_USING_DMA_BUF_MMAP")]
    pub fn uses_dma_buf(&self) -> Result<bool> {
        self.attribute(gdr_attr_t::GDR_ATTR_USING_DMA_BUF_MMAP)
    }

    /// Features unknown to an older library are reported as absent.
    fn attribute(&self, attribute: gdr_attr_t) -> Result<bool> {
        let handle = self.handle()?;
        // SAFETY: the handle is open, and this thread holds its lock.
        match unsafe { raw::gdr::attribute(self.table(), handle.0, attribute) } {
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::InvalidValue | ErrorKind::SymbolMissing
                ) =>
            {
                Ok(false)
            }
            value => value.map(|value| value != 0),
        }
    }

    /// The library's name for a kind of mapping.
    ///
    /// # Errors
    ///
    /// Any error that the library reports; [`SymbolMissing`](ErrorKind::SymbolMissing) before version 2.5.
    #[doc(alias = "gdr_get_mapping_type_string")]
    pub fn mapping_name(&self, kind: gdr_mapping_type_t) -> Result<String> {
        // SAFETY: the table is gdrcopy's.
        unsafe { raw::gdr::mapping_name(self.table(), kind) }
    }

    /// What the kernel module reports about itself; `None` where it reports nothing.
    ///
    /// # Errors
    ///
    /// [`System`](ErrorKind::System) if its files cannot be read.
    #[doc(alias = "/proc/driver/gdrdrv")]
    pub fn kernel_info() -> Result<Option<GdrKernelInfo>> {
        GdrKernelInfo::read()
    }

    /// Locks the handle for this thread.
    fn handle(&self) -> Result<MutexGuard<'static, Handle>> {
        // The lock detects only forks after driver initialisation, and gdrcopy works without that.
        if std::process::id() != self.0.process {
            return Err(Error::forked());
        }
        self.0.handle.lock()
    }
}

impl Open {
    fn new(library: &'static GdrLibrary) -> Result<Self> {
        // SAFETY: the library was verified to be gdrcopy's.
        let handle = unsafe { raw::gdr::open(library.table()) }?;
        Ok(Self {
            library,
            handle: Lock::new(Handle(handle)),
            process: std::process::id(),
        })
    }
}

impl fmt::Debug for Gdr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gdr")
            .field("path", &self.library_path())
            .field("version", &self.runtime_version().ok())
            .finish()
    }
}

// The table is constant, and the handle is behind a lock.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Gdr>();
};
