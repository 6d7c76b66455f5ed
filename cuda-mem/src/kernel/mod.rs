//! Code on devices, loaded only where requested.

mod argument;
mod function;
mod image;
mod launch;
mod library;

use std::fmt;
use std::sync::Arc;

use cuda_driver_sys::{CUmodule, CUmoduleLoadingMode, CudaVersion};

pub use argument::{Argument, Arguments, Value};
pub use function::{Function, Occupancy};
pub use image::Image;
pub use launch::Launch;
pub use library::Library;

use crate::base::error::{Error, ErrorKind, Result, took_effect};
use crate::base::report;
use crate::driver::Driver;
use crate::driver::raw;
use crate::ledger::{self, Item, LedgerKind};
use crate::stream::context::Context;
use crate::stream::recording;

/// Code that is loaded into one context, and so on one device. Unloaded when its last handle or function is dropped.
/// Loading and unloading wait for all work submitted to streams of the context, so a stream must not depend on
/// something that happens only after them.
///
/// ```
/// use cuda_mem::{Driver, MemoryPool};
/// use cuda_mem::kernel::{Image, Launch};
///
/// # cuda_sim::use_if_no_driver();
/// # let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/data/kernels.ptx"));
/// let device = Driver::load()?.device(0)?;
/// let context = device.primary_context()?;
/// let stream = context.stream()?;
///
/// let module = context.load(&Image::ptx(text)?)?; // on this device only
/// let add = module.function("add")?;
///
/// let pool = MemoryPool::builder(&device).build()?;
/// let a = pool.alloc_from(&stream, &[1.0f32, 2.0, 3.0])?;
/// let b = pool.alloc_from(&stream, &[10.0f32, 20.0, 30.0])?;
/// let mut sum = pool.alloc::<f32>(&stream, 3)?;
///
/// // SAFETY: `add` takes three addresses of so many f32, and their number.
/// unsafe { add.launch(&stream, Launch::over(3, 256), (&mut sum, &a, &b, 3u64)) }?;
/// assert_eq!(sum.to_vec()?, [11.0, 22.0, 33.0]);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone)]
pub struct Module(Arc<Loaded>);

struct Loaded {
    context: Context,
    raw: CUmodule,
}

// SAFETY: module handles may be used from any thread; the context that a call needs is made current there.
unsafe impl Send for Loaded {}
// SAFETY: as for `Send`; nothing is changed through a shared handle.
unsafe impl Sync for Loaded {}

impl Loaded {
    fn item(&self) -> Item {
        let device = self.context.device();
        Item::new(LedgerKind::Module, self.raw)
            .of(device.driver())
            .on(device)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        let item = self.item();
        let ended = ledger::remove(&item);
        let table = self.context.driver().table();
        report::release("module", || {
            let unloaded = self.context.bind().and_then(|_current| {
                // Any code may be capturing (R155).
                recording::with_relaxed_capture_mode(table, || {
                    // SAFETY: functions hold a handle, so none is left, and its context is current. A kernel that still
                    // runs is no obstacle (R151).
                    unsafe { raw::module::unload(table, self.raw) }
                })
            });
            if !took_effect(&unloaded) {
                ledger::restore(&item, ended);
            }
            unloaded
        });
    }
}

/// When code is loaded onto a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadingMode {
    /// A kernel is loaded when it is first used, which may wait for the device. The default since CUDA 12.2.
    Lazy,
    /// All code is loaded at once; that of a [`Library`] into all existing and future contexts.
    Eager,
}

impl Driver {
    /// Whether code is loaded at once or when it is used, as `CUDA_MODULE_LOADING` and the driver's default
    /// decide. Needs CUDA 11.7; older drivers load at once.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias("cuModuleGetLoadingMode", "CUDA_MODULE_LOADING"))]
    pub fn loading_mode(&self) -> Result<LoadingMode> {
        if self.version() < CudaVersion::new(11, 7) {
            return Ok(LoadingMode::Eager);
        }
        // SAFETY: the driver is initialised.
        let mode = unsafe { raw::module::loading_mode(self.table()) }?;
        Ok(if mode == CUmoduleLoadingMode::CU_MODULE_EAGER_LOADING {
            LoadingMode::Eager
        } else {
            LoadingMode::Lazy
        })
    }
}

impl Context {
    /// Loads code into this context only. Waits for all work submitted to streams of the context.
    ///
    /// # Errors
    ///
    /// [`InvalidImage`](crate::ErrorKind::InvalidImage) if it does not suit this device or driver, or is not code; the
    /// compiler's output is in [`Error::jit_log`]. Otherwise any driver error.
    #[doc(alias("cuModuleLoadData", "cuModuleLoadDataEx", "cuModuleLoad"))]
    #[track_caller]
    pub fn load(&self, image: &Image<'_>) -> Result<Module> {
        let table = self.driver().table();
        let _current = self.bind()?;
        // SAFETY: the context is current; PTX ends in 0, and for a binary its maker has vouched.
        let raw = unsafe { raw::module::load(table, image.bytes()) }.map_err(|error| {
            let error = self.driver().explain(error);
            error.asked(|| format!("{image} for {}", self.device()))
        })?;
        let loaded = Loaded {
            context: self.clone(),
            raw,
        };
        ledger::insert(loaded.item());
        Ok(Module(Arc::new(loaded)))
    }
}

impl Module {
    /// The kernel with this name, as written after `.entry`: C++ names are mangled unless they are `extern "C"`.
    ///
    /// # Errors
    ///
    /// [`NotFound`](crate::ErrorKind::NotFound) if there is none; otherwise any driver error.
    #[doc(alias = "cuModuleGetFunction")]
    pub fn function(&self, name: &str) -> Result<Function> {
        let Loaded { context, raw } = &*self.0;
        let text = c_name(name)?;
        let _current = context.bind()?;
        // SAFETY: the module is loaded, and its context current.
        let function = unsafe { raw::module::function(context.driver().table(), *raw, &text) }
            .map_err(|error| {
                let code = format!("code on {}", context.device());
                not_found(name, &code, context.driver().explain(error))
            })?;
        Function::new(function, context.clone(), self.clone().into(), name)
    }

    /// The context that the code is loaded into.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The driver's handle. Valid as long as this module or a clone lives.
    #[must_use]
    pub fn as_raw(&self) -> CUmodule {
        self.0.raw
    }
}

impl fmt::Debug for Module {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Module({:?})", self.context().device())
    }
}

/// Adds which kernel was looked for.
#[cold]
fn not_found(name: &str, code: &dyn fmt::Display, error: Error) -> Error {
    let hint = match error.kind() {
        ErrorKind::NotFound => {
            "; the name is that after `.entry`, and C++ names are mangled unless they are `extern \"C\"`"
        }
        _ => "",
    };
    error.asked(|| format!("kernel {name:?} of {code}{hint}"))
}

/// A name for the driver.
fn c_name(name: &str) -> Result<std::ffi::CString> {
    raw::module::name(name)
        .ok_or_else(|| Error::invalid(format!("no kernel is called {name:?}: there is a 0 inside")))
}
