//! Exporting a pool, and importing one.

use std::fmt;
use std::fs::File;
#[cfg(target_os = "linux")]
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
#[cfg(windows)]
use std::os::windows::io::{AsHandle, AsRawHandle, OwnedHandle};
use std::sync::Arc;

use cuda_driver_sys::{CUmemAccess_flags, CUmemAccessDesc, CUmemoryPool, CUresult};

use super::handles::FabricHandle;
use super::registry;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::report;
use crate::driver::Driver;
use crate::driver::device::{Device, HandleTypes};
use crate::driver::location::Location;
use crate::driver::raw;
use crate::ledger::{self, Item, LedgerKind};
use crate::memory::pool::Access;
use crate::memory::pool::{self, MemoryPool};
use crate::stream::recording;

impl MemoryPool {
    /// A descriptor of this pool for another process, which imports it with
    /// [`ImportedPool::from_fd`]. Each call makes a new one. The pool must have been built with
    /// [`HandleTypes::POSIX_FILE_DESCRIPTOR`].
    ///
    /// It is close-on-exec. The driver creates it without that flag (measured), so a program that another thread starts
    /// at that very moment can inherit it.
    ///
    /// A default pool cannot be exported:
    ///
    /// ```compile_fail,E0599
    /// # fn example(device: cuda_mem::Device) -> Result<(), cuda_mem::Error> {
    /// device.default_pool()?.export_fd()?; // error: no such method
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](ErrorKind::InvalidValue) if the pool was built without that handle type;
    /// [`NotPermitted`](ErrorKind::NotPermitted) for a pool that can also be exported to a fabric, on a machine without
    /// one; [`System`](ErrorKind::System) if this process cannot open two more descriptors, which is checked first and
    /// changes nothing; [`Capturing`](ErrorKind::Capturing) if a capture of other code forbids it, which changes nothing
    /// either; otherwise any driver error. **After any other driver error the pool serves no more, and the driver keeps
    /// it until the process ends**, which is reported where it is dropped: it might not survive more. The pool's buffers
    /// stay, and another pool is built.
    ///
    /// ```
    /// use cuda_mem::{Driver, MemoryPool};
    /// use cuda_mem::driver::HandleTypes;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let pool = MemoryPool::builder(&device)
    ///     .handle_types(HandleTypes::POSIX_FILE_DESCRIPTOR)
    ///     .build()?;
    /// let descriptor: std::os::fd::OwnedFd = pool.export_fd()?;
    /// # drop(descriptor);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[cfg(target_os = "linux")]
    #[doc(alias = "cuMemPoolExportToShareableHandle")]
    pub fn export_fd(&self) -> Result<OwnedFd> {
        self.export("POSIX_FILE_DESCRIPTOR", || {
            require_descriptors()?;
            // SAFETY: the pool is live, and no pool ends meanwhile.
            unsafe { raw::ipc::export_fd(self.driver().table(), self.as_raw()) }
        })
    }

    /// A handle of this pool for another process, which imports it with [`ImportedPool::from_handle`]. Each call makes a
    /// new one. The pool must have been built with [`HandleTypes::WIN32`]. Needs CUDA 11.2.
    ///
    /// It is a handle of this process. To be of use in another one, it has to be duplicated into it: by `DuplicateHandle`
    /// of Windows, here or there. Processes of the same user may open it.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](ErrorKind::InvalidValue) if the pool was built without that handle type;
    /// [`NotPermitted`](ErrorKind::NotPermitted) for a pool that can also be exported to a fabric, on a machine without
    /// one; [`Capturing`](ErrorKind::Capturing) if a capture of other code forbids it, which changes nothing; otherwise
    /// any driver error. **After any other driver error the pool serves no more, and the driver keeps it until the
    /// process ends:** it might not survive more.
    #[cfg(windows)]
    #[doc(alias = "cuMemPoolExportToShareableHandle")]
    pub fn export_handle(&self) -> Result<OwnedHandle> {
        self.export("WIN32", || {
            // SAFETY: the pool is live, and no pool ends meanwhile.
            unsafe { raw::ipc::export_handle(self.driver().table(), self.as_raw()) }
        })
    }

    /// A handle of this pool for processes on all machines of its NVLink fabric. The pool must have been built with
    /// [`HandleTypes::FABRIC`]. Needs CUDA 12.3.
    ///
    /// # Errors
    ///
    /// [`NotPermitted`](ErrorKind::NotPermitted) on a machine without a fabric, or where this process may not use it;
    /// [`InvalidValue`](ErrorKind::InvalidValue) if the pool was built without that handle type.
    #[doc(alias = "cuMemPoolExportToShareableHandle")]
    pub fn export_fabric(&self) -> Result<FabricHandle> {
        self.export("FABRIC", || {
            // SAFETY: the pool is live, no pool ends meanwhile, and no export of it has failed.
            unsafe { raw::ipc::export_fabric(self.driver().table(), self.as_raw()) }
        })
        .map(FabricHandle)
    }

    fn export<T>(&self, kind: &str, export: impl FnOnce() -> Result<T>) -> Result<T> {
        self.require_healthy()?;
        // The driver would answer NOT_PERMITTED, and the next allocation from the pool would crash (measured, R127).
        if self.handle_types().contains(HandleTypes::FABRIC) && !has_fabric() {
            return Err(Error::not_permitted(format!(
                "{} has fabric handles, and this process may use no channel in {CHANNELS}; build a pool with \
                 other kinds of handle only",
                **self
            )));
        }
        let _ends = pool::no_pool_ends()?;
        // Checked again, now that no other thread exports it.
        self.require_healthy()?;
        // As for the access of imported pools, see `beside_captures`.
        recording::relaxed_while_capturing(self.driver().table(), export).map_err(|error| {
            // With any kind of handle (measured, R127, R192). What a capture of other code refuses can be tried again.
            let is_harmless =
                matches!(error.kind(), ErrorKind::InvalidValue | ErrorKind::Capturing);
            if error.code().is_some() && !is_harmless {
                self.note_failed_export();
            }
            error.asked(|| format!("{}, which must be built with HandleTypes::{kind}", **self))
        })
    }
}

/// An error if this process cannot open the two descriptors that the first export of a pool takes: without them the
/// driver would crash where the pool is destroyed (R192).
#[cfg(target_os = "linux")]
fn require_descriptors() -> Result<()> {
    let opened = std::io::pipe().map(drop);
    opened.map_err(|error| Error::system("exporting a pool takes two descriptors", error))
}

/// The driver's answer to a descriptor or handle of anything else.
fn no_pool(error: Error, why: &'static str) -> Error {
    error.meaning(CUresult::CUDA_ERROR_UNKNOWN, ErrorKind::InvalidValue, why)
}

/// The directory of the channels that fabric handles need, as NVIDIA's driver creates it.
const CHANNELS: &str = "/dev/nvidia-caps-imex-channels";

/// Whether this process may use any of them.
fn has_fabric() -> bool {
    let open = |path| File::options().read(true).write(true).open(path);
    let channels = std::fs::read_dir(CHANNELS).into_iter().flatten().flatten();
    channels
        .map(|entry| open(entry.path()))
        .any(|file| file.is_ok())
}

/// A pool of another process, from which its buffers are imported.
///
/// A handle that can be cloned. The memory still belongs to the exporter: nothing can be allocated here, no attribute
/// set, and dropping this pool frees nothing (R53, R59). Imported buffers keep the pool alive. If the exporter is gone,
/// imported memory stays valid.
///
/// ```compile_fail,E0599
/// # fn example(pool: cuda_mem::interop::ImportedPool, stream: cuda_mem::Stream) -> Result<(), cuda_mem::Error> {
/// pool.alloc::<u8>(&stream, 1)?; // error: no such method
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail,E0599
/// # fn example(pool: cuda_mem::interop::ImportedPool) -> Result<(), cuda_mem::Error> {
/// pool.export_fd()?; // error: no such method
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail,E0308
/// # fn example(pool: cuda_mem::interop::ImportedPool, device: cuda_mem::Device) -> Result<(), cuda_mem::Error> {
/// device.set_current_pool(&pool)?; // error: expected a pool of this process
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ImportedPool(Arc<Inner>);

struct Inner {
    device: Device,
    raw: CUmemoryPool,
}

// SAFETY: pools belong to no thread, as those of this process.
unsafe impl Send for Inner {}
// SAFETY: as for `Send`.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        ledger::remove(&self.item());
        let (driver, pool) = (self.device.driver(), self.raw);
        report::release("imported pool", || registry::release_pool(driver, pool));
    }
}

impl ImportedPool {
    /// Imports the pool that a descriptor from [`MemoryPool::export_fd`] names, to use its memory on `device`. Does not
    /// take ownership of the descriptor. Importing one pool twice gives two handles of one import. Needs CUDA 11.2.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](ErrorKind::InvalidValue) if the descriptor is of something else;
    /// [`NotSupported`](ErrorKind::NotSupported) if it is of physical memory, or if `device` cannot access the memory;
    /// otherwise any driver error.
    #[cfg(target_os = "linux")]
    #[doc(alias = "cuMemPoolImportFromShareableHandle")]
    #[track_caller]
    pub fn from_fd(device: &Device, descriptor: impl AsFd) -> Result<Self> {
        let number = descriptor.as_fd().as_raw_fd();
        Self::open(device, || {
            // SAFETY: the descriptor is open, and no pool ends meanwhile.
            unsafe { raw::ipc::import_fd(device.driver().table(), number) }
                // Measured: the driver's answer to a descriptor of anything else.
                .map_err(|error| no_pool(error, "the descriptor is not that of a pool"))
        })
    }

    /// Imports the pool that a handle from [`MemoryPool::export_handle`] names, to use its memory on `device`. The handle
    /// must be one of this process, into which it was duplicated. Does not take ownership of it. Importing one pool twice
    /// gives two handles of one import. Needs CUDA 11.2.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](ErrorKind::InvalidValue) if the handle is of something else;
    /// [`NotSupported`](ErrorKind::NotSupported) if it is of physical memory, or if `device` cannot access the memory;
    /// otherwise any driver error.
    #[cfg(windows)]
    #[doc(alias = "cuMemPoolImportFromShareableHandle")]
    #[track_caller]
    pub fn from_handle(device: &Device, handle: impl AsHandle) -> Result<Self> {
        let handle = handle.as_handle().as_raw_handle();
        Self::open(device, || {
            // SAFETY: the handle is open, and no pool ends meanwhile.
            unsafe { raw::ipc::import_handle(device.driver().table(), handle) }
                .map_err(|error| no_pool(error, "the handle is not that of a pool"))
        })
    }

    /// Imports the pool that a handle from [`MemoryPool::export_fabric`] names. Needs CUDA 12.3.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](ErrorKind::NotSupported) on a machine without a fabric, or if `device` cannot access the memory;
    /// otherwise any driver error.
    #[doc(alias = "cuMemPoolImportFromShareableHandle")]
    #[track_caller]
    pub fn from_fabric(device: &Device, handle: &FabricHandle) -> Result<Self> {
        Self::open(device, || {
            // SAFETY: no pool ends meanwhile. A driver wrote the handle: handles come from
            // `export_fabric`, or from `from_bytes` and `from_raw`, whose callers vouch for it.
            unsafe { raw::ipc::import_fabric(device.driver().table(), handle.0) }
        })
    }

    #[track_caller]
    fn open(device: &Device, import: impl FnOnce() -> Result<CUmemoryPool>) -> Result<Self> {
        let driver = device.driver();
        let raw = registry::import_pool(driver, || {
            recording::relaxed_while_capturing(driver.table(), import)
        })?;
        // Owned from here, so that a failure below releases it.
        let pool = Self(Arc::new(Inner {
            device: *device,
            raw,
        }));
        ledger::insert(pool.0.item());
        // The exporter's access is not inherited (R54).
        pool.set_access([(*device, Access::ReadWrite)])?;
        Ok(pool)
    }

    /// The driver that the import belongs to.
    #[must_use]
    pub fn driver(&self) -> Driver {
        self.0.device.driver()
    }

    /// The device that it was imported for.
    #[must_use]
    pub fn device(&self) -> Device {
        self.0.device
    }

    /// The driver's handle. It stays valid while this import, or a clone or a second one, lives.
    #[must_use]
    pub fn as_raw(&self) -> CUmemoryPool {
        self.0.raw
    }

    /// Gives other devices read and write access to the memory.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](ErrorKind::NotSupported) for any other access; [`InvalidValue`](ErrorKind::InvalidValue) for a
    /// device of another driver; as the driver answers for a device that is not a peer.
    #[doc(alias = "cuMemPoolSetAccess")]
    pub fn set_access(&self, access: impl IntoIterator<Item = (Device, Access)>) -> Result<()> {
        for (device, access) in access {
            if access != Access::ReadWrite {
                let text = "an imported pool gives read and write access, and takes none back";
                return Err(Error::not_supported(text.to_owned()));
            }
            if !self.0.reaches(&device)? {
                self.0.grant(&device)?;
            }
        }
        Ok(())
    }

    pub(super) fn reaches(&self, device: &Device) -> Result<bool> {
        self.0.reaches(device)
    }
}

impl Inner {
    /// Identified by its own address: importing a pool twice gives the same handle.
    fn item(&self) -> Item {
        Item::new(LedgerKind::ImportedPool, std::ptr::from_ref(self)).on(self.device)
    }

    fn reaches(&self, device: &Device) -> Result<bool> {
        self.check_driver(device)?;
        let location = Location::Device(*device).to_raw();
        let flags = self.beside_captures(|table| {
            // SAFETY: the pool is live.
            unsafe { raw::pool::access(table, self.raw, location) }
        })?;
        Ok(flags == CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    }

    fn grant(&self, device: &Device) -> Result<()> {
        self.check_driver(device)?;
        let wish = CUmemAccessDesc {
            location: Location::Device(*device).to_raw(),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        self.beside_captures(|table| {
            // SAFETY: the pool is live, and the device of its driver.
            unsafe { raw::pool::set_access(table, self.raw, &[wish]) }
        })
        .map_err(|error| error.asked(|| format!("{device} and a pool of another process")))
    }

    /// As for pools of this process (R113).
    fn beside_captures<T>(&self, call: impl FnOnce(&raw::Table) -> Result<T>) -> Result<T> {
        let table = self.device.driver().table();
        recording::relaxed_while_capturing(table, || call(table))
    }

    fn check_driver(&self, device: &Device) -> Result<()> {
        self.device.driver().require_same(
            device.driver(),
            format_args!("the imported pool and the device"),
        )
    }
}

/// Two handles are equal if they are the same import.
impl PartialEq for ImportedPool {
    fn eq(&self, other: &Self) -> bool {
        self.as_raw() == other.as_raw() && self.driver() == other.driver()
    }
}

impl Eq for ImportedPool {}

/// Its handle and device, as text.
impl fmt::Display for ImportedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "imported pool {:p} on {}", self.0.raw, self.0.device)
    }
}

impl fmt::Debug for ImportedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImportedPool({:p} on {:?})", self.0.raw, self.0.device)
    }
}
