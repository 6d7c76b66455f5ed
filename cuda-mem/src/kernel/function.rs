//! Kernels: resource use and occupancy.

use std::fmt;
use std::sync::Arc;

use cuda_driver_sys::{CUfunction, CUfunction_attribute, CudaVersion};

use super::{Library, Module};
use crate::base::error::{Error, Result};
use crate::driver::raw;
use crate::stream::context::Context;

/// A kernel of one context. A cloneable handle that keeps its code loaded.
#[derive(Clone)]
pub struct Function(Arc<Inner>);

struct Inner {
    raw: CUfunction,
    context: Context,
    name: Box<str>,
    /// Bytes of each parameter; `None` below CUDA 12.4, where the driver does not tell.
    parameters: Option<Box<[usize]>>,
    /// Keeps the handle good.
    _code: Code,
}

/// What a function is of.
pub(super) enum Code {
    Module(#[expect(dead_code, reason = "held")] Module),
    Library(#[expect(dead_code, reason = "held")] Library),
}

impl From<Module> for Code {
    fn from(module: Module) -> Self {
        Self::Module(module)
    }
}

impl From<Library> for Code {
    fn from(library: Library) -> Self {
        Self::Library(library)
    }
}

// SAFETY: function handles may be used from any thread; the context that a call needs is made current there.
unsafe impl Send for Inner {}
// SAFETY: as for `Send`; nothing is changed through a shared handle but in the driver, which locks.
unsafe impl Sync for Inner {}

/// How well a kernel fills a device. From [`Function::occupancy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Occupancy {
    /// Blocks that run at a time on one multiprocessor. 0 if such blocks cannot run at all.
    pub blocks: u32,
    /// Threads of all these blocks.
    pub threads: u32,
}

use CUfunction_attribute as A;

impl Function {
    /// The context must be current.
    pub(super) fn new(raw: CUfunction, context: Context, code: Code, name: &str) -> Result<Self> {
        let table = context.driver().table();
        let tells = context.driver().version() >= CudaVersion::new(12, 4);
        let parameters = if tells {
            let parameter = |index| {
                // SAFETY: the function is of live code, and its context current.
                unsafe { raw::module::parameter(table, raw, index) }.transpose()
            };
            let sizes = (0..).map_while(parameter).map(|found| Ok(found?.1));
            Some(sizes.collect::<Result<Box<[usize]>>>()?)
        } else {
            None
        };
        Ok(Self(Arc::new(Inner {
            raw,
            context,
            name: name.into(),
            parameters,
            _code: code,
        })))
    }

    /// The name by which it was found.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The context that it runs in.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The driver's handle. Valid as long as this function or a clone lives.
    #[must_use]
    pub fn as_raw(&self) -> CUfunction {
        self.0.raw
    }

    /// Bytes of each parameter, in order; `None` if the driver is older than CUDA 12.4, which does not report it.
    #[doc(alias = "cuFuncGetParamInfo")]
    #[must_use]
    pub fn parameters(&self) -> Option<&[usize]> {
        self.0.parameters.as_deref()
    }

    fn attribute(&self, attribute: CUfunction_attribute) -> Result<u32> {
        let _current = self.context().bind()?;
        // SAFETY: the code is held, and its context current.
        let value = unsafe { raw::module::attribute(self.table(), self.as_raw(), attribute) }?;
        Ok(value.unsigned_abs())
    }

    pub(super) fn table(&self) -> &'static raw::Table {
        self.context().driver().table()
    }

    /// Maximum number of threads per block.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuFuncGetAttribute")]
    pub fn max_threads(&self) -> Result<u32> {
        self.attribute(A::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
    }

    /// Registers per thread.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuFuncGetAttribute")]
    pub fn registers(&self) -> Result<u32> {
        self.attribute(A::CU_FUNC_ATTRIBUTE_NUM_REGS)
    }

    /// Bytes of static shared memory per block.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuFuncGetAttribute")]
    pub fn static_shared(&self) -> Result<u32> {
        self.attribute(A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)
    }

    /// Maximum bytes of dynamic shared memory per block.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuFuncGetAttribute")]
    pub fn max_dynamic_shared(&self) -> Result<u32> {
        self.attribute(A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
    }

    /// Allows launches to request this many bytes of dynamic shared memory per block. Needed above 48 KiB.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the device has less; otherwise any error that the driver
    /// reports.
    #[doc(alias = "cuFuncSetAttribute")]
    pub fn set_max_dynamic_shared(&self, bytes: u32) -> Result<()> {
        let value = i32::try_from(bytes)
            .map_err(|_| Error::invalid(format!("no block has {bytes} bytes of shared memory")))?;
        let attribute = A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let _current = self.context().bind()?;
        // SAFETY: the code is held, and its context current.
        unsafe { raw::module::set_attribute(self.table(), self.as_raw(), attribute, value) }
            .map_err(|error| {
                let error = self.context().driver().explain(error);
                error.asked(|| format!("{bytes} bytes a block of {self}"))
            })
    }

    /// How many blocks with this many threads and bytes of dynamic shared memory run at a time on a multiprocessor.
    ///
    /// # Errors
    ///
    /// Any driver error, for example for blocks that are too large.
    #[doc(alias = "cuOccupancyMaxActiveBlocksPerMultiprocessor")]
    pub fn occupancy(&self, threads: u32, shared: usize) -> Result<Occupancy> {
        let asked = i32::try_from(threads)
            .map_err(|_| Error::invalid(format!("no block has {threads} threads")))?;
        let _current = self.context().bind()?;
        // SAFETY: the code is held, and its context current.
        let blocks = unsafe { raw::module::occupancy(self.table(), self.as_raw(), asked, shared) }
            .map_err(|error| error.asked(|| format!("{threads} threads a block of {self}")))?
            .unsigned_abs();
        Ok(Occupancy {
            blocks,
            threads: blocks.saturating_mul(threads),
        })
    }

    /// The block size with the highest occupancy, and the number of blocks that is then sufficient.
    ///
    /// # Errors
    ///
    /// Any driver error.
    ///
    /// ```
    /// # use cuda_mem::Driver;
    /// # use cuda_mem::kernel::{Image, Launch};
    /// # cuda_sim::use_if_no_driver();
    /// # let text = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/data/kernels.ptx"));
    /// # let context = Driver::load()?.device(0)?.primary_context()?;
    /// let fill = context.load(&Image::ptx(text)?)?.function("fill")?;
    /// let (threads, blocks) = fill.best_block(0)?;
    /// assert!(threads <= fill.max_threads()? && blocks > 0);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuOccupancyMaxPotentialBlockSize")]
    pub fn best_block(&self, shared: usize) -> Result<(u32, u32)> {
        let _current = self.context().bind()?;
        // SAFETY: the code is held, and its context current.
        let (grid, block) =
            unsafe { raw::module::best_block(self.table(), self.as_raw(), shared) }?;
        Ok((block.unsigned_abs(), grid.unsigned_abs()))
    }

    /// Whether its code is already on the device. Needs CUDA 12.4.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) with an older driver; otherwise any error that it reports.
    #[doc(alias = "cuFuncIsLoaded")]
    pub fn is_loaded(&self) -> Result<bool> {
        self.require_12_4("asking whether a kernel is loaded")?;
        let _current = self.context().bind()?;
        // SAFETY: the code is held, and its context current.
        unsafe { raw::module::is_loaded(self.table(), self.as_raw()) }
    }

    /// Loads its code onto the device now. Under lazy loading the first launch would otherwise do that and might wait
    /// for the device, so call this before measuring time or capturing a stream. Needs CUDA 12.4.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) with an older driver, where
    /// `CUDA_MODULE_LOADING=EAGER` does the same; otherwise any driver error.
    #[doc(alias = "cuFuncLoad")]
    pub fn preload(&self) -> Result<()> {
        self.require_12_4("loading a kernel before its first launch")?;
        let _current = self.context().bind()?;
        // SAFETY: the code is held, and its context current.
        unsafe { raw::module::preload(self.table(), self.as_raw()) }
    }

    fn require_12_4(&self, what: &'static str) -> Result<()> {
        let driver = self.context().driver();
        driver.require_version(what, CudaVersion::new(12, 4))
    }
}

/// Writes its name and device.
impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel {:?} on {}", self.name(), self.context().device())
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Function({}, {:?})",
            self.name(),
            self.context().device()
        )
    }
}

// Asserted where it is justified: see `Inner`.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Function>();
    shared::<Module>();
    shared::<Library>();
};
