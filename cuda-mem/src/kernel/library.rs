//! Code that belongs to no context until it is used in one.

use std::fmt;
use std::sync::Arc;

use cuda_driver_sys::{CUlibrary, CudaVersion};

use super::{Function, Image, LoadingMode, c_name, not_found};
use crate::base::error::{Error, ErrorKind, Result, took_effect};
use crate::base::lock::Lock;
use crate::base::report;
use crate::driver::Driver;
use crate::driver::device::Device;
use crate::driver::raw;
use crate::ledger::{self, Item, LedgerKind};
use crate::stream::context::Context;
use crate::stream::recording;

/// Code that is loaded once and copied to a device when a function is first requested for it. Needs CUDA 12.0; for
/// older drivers there is [`Context::load`](crate::Context::load). Unloaded when its last handle or function is
/// dropped, which waits as for a [`Module`](crate::kernel::Module).
///
/// ```
/// use cuda_mem::Driver;
/// use cuda_mem::kernel::Image;
///
/// # cuda_sim::use_if_no_driver();
/// # let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/data/kernels.ptx"));
/// let driver = Driver::load()?;
/// let library = driver.load_library(&Image::ptx(text)?)?;
/// assert!(library.devices().is_empty()); // nowhere yet
///
/// let context = driver.device(0)?.primary_context()?;
/// let fill = library.function("fill", &context)?;
/// assert_eq!(library.devices(), [context.device()]);
/// # drop(fill);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone)]
pub struct Library(Arc<Loaded>);

struct Loaded {
    driver: Driver,
    raw: CUlibrary,
    /// Where the compiler writes what is wrong. Locked while it may do so.
    logs: Lock<Box<raw::module::Logs>>,
    /// Where functions were taken for.
    devices: Lock<Vec<Device>>,
}

// SAFETY: library handles may be used from any thread; the logs point to themselves, and nowhere else.
unsafe impl Send for Loaded {}
// SAFETY: as for `Send`; the list and the logs are behind locks.
unsafe impl Sync for Loaded {}

impl Loaded {
    fn item(&self) -> Item {
        Item::new(LedgerKind::Library, self.raw).of(self.driver)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let item = self.item();
        let ended = ledger::remove(&item);
        let table = self.driver.table();
        report::release("library", || {
            let unloaded = recording::with_relaxed_capture_mode(table, || {
                // SAFETY: functions hold a handle, so none is left. As a module's, its kernels may still run (R151).
                unsafe { raw::module::unload_library(table, self.raw) }
            });
            if !took_effect(&unloaded) {
                ledger::restore(&item, ended);
            }
            unloaded
        });
    }
}

impl Driver {
    /// Loads code for all devices on which it will be used, without using any device yet.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) below CUDA 12.0, and if the driver loads eagerly
    /// ([`LoadingMode::Eager`]): it would load the code into all contexts of the process.
    /// [`InvalidImage`](crate::ErrorKind::InvalidImage) as for [`Context::load`](crate::Context::load). A driver that
    /// compiles later reports this when a function is requested.
    #[doc(alias("cuLibraryLoadData", "cuLibraryLoadFromFile"))]
    #[track_caller]
    pub fn load_library(&self, image: &Image<'_>) -> Result<Library> {
        self.require_version("loading code for no context", CudaVersion::new(12, 0))?;
        if self.loading_mode()? == LoadingMode::Eager {
            let text = "with eager loading a library is loaded into every context of the process; leave \
                        CUDA_MODULE_LOADING at LAZY, or take `Context::load`";
            return Err(Error::not_supported(text.to_owned()));
        }
        // What is useless is unloaded, which would spoil this thread's capture (R155).
        let loaded = recording::relaxed_while_capturing(self.table(), || {
            // SAFETY: the driver is initialised; PTX ends in 0, and for a binary its maker has vouched.
            unsafe { raw::module::load_library(self.table(), image.bytes()) }
        });
        let (raw, logs) = loaded.map_err(|error| {
            let error = self.explain(error);
            error.asked(|| format!("{image} as a library"))
        })?;
        let loaded = Loaded {
            driver: *self,
            raw,
            logs: Lock::new(logs),
            devices: Lock::default(),
        };
        ledger::insert(loaded.item());
        Ok(Library(Arc::new(loaded)))
    }
}

impl Library {
    /// The kernel of this name, for streams of this context. The first request for a context loads the code there, and
    /// waits for all work submitted to streams of the context.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is none; [`InvalidValue`](crate::ErrorKind::InvalidValue) if
    /// the context is of another driver; otherwise any driver error.
    #[doc(alias("cuLibraryGetKernel", "cuKernelGetFunction"))]
    pub fn function(&self, name: &str, context: &Context) -> Result<Function> {
        let Loaded { driver, raw, .. } = &*self.0;
        driver.require_same(
            context.driver(),
            format_args!("the library and the context"),
        )?;
        let text = c_name(name)?;
        let logs = self.0.logs.lock()?;
        let asked = |error: Error| {
            let error = match error.kind() {
                ErrorKind::InvalidImage => logs.explain(error),
                _ => error,
            };
            not_found(name, &"the library", driver.explain(error))
        };
        // SAFETY: the library is loaded.
        let kernel = unsafe { raw::module::kernel(driver.table(), *raw, &text) }.map_err(asked)?;
        let _current = context.bind()?;
        // SAFETY: the kernel is of this library, and the context is current.
        let function =
            unsafe { raw::module::function_of(driver.table(), kernel) }.map_err(asked)?;
        drop(logs);
        let mut devices = self.0.devices.lock()?;
        if !devices.contains(&context.device()) {
            devices.push(context.device());
        }
        drop(devices);
        Function::new(function, context.clone(), self.clone().into(), name)
    }

    /// The devices for which a function was requested, in that order. The library has code on no other device, nor on
    /// one whose context has since ended. Empty in a forked child.
    #[must_use]
    pub fn devices(&self) -> Vec<Device> {
        let devices = self.0.devices.lock_unless_forked();
        devices.map(|devices| devices.clone()).unwrap_or_default()
    }

    /// The driver's handle. Valid as long as this library or a clone lives.
    #[must_use]
    pub fn as_raw(&self) -> CUlibrary {
        self.0.raw
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Library({:p})", self.0.raw)
    }
}
