//! Models of a program's own kernels: Rust functions that do a kernel's work on the simulator.

use std::any::Any;
use std::error::Error;
use std::ffi::{CStr, CString, c_void};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use bytemuck::Pod;
use cuda_driver_sys::CUresult;

use crate::abi::{LaunchParameter, LaunchRecord};
use crate::control::{Control, ControlError, LaunchFunctions};
use crate::path::library_path;

/// What a model is.
type ModelClosure = dyn Fn(&Launch<'_>) -> Result<(), LaunchError> + Send + Sync;

/// Gives every kernel named `name` a model, in the simulator of [`library_path`]: as [`Control::kernel`], which takes
/// any other simulator.
///
/// ```
/// # use std::ffi::c_void;
/// # use std::ptr::{from_mut, null_mut};
/// const PTX: &std::ffi::CStr = c"
///     .version 7.0
///     .target sm_70
///     .address_size 64
///     .visible .entry vector_add(.param .u64 a, .param .u64 b, .param .u64 sum, .param .u32 count) { ret; }
/// ";
///
/// cuda_sim::kernel("vector_add", |launch| {
///     let [a, b, sum] = [launch.argument(0)?, launch.argument(1)?, launch.argument(2)?];
///     let count = launch.argument::<u32>(3)?.min(launch.threads() as u32) as usize;
///     let a: Vec<f32> = launch.read(a, count)?;
///     let b: Vec<f32> = launch.read(b, count)?;
///     let total: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
///     launch.write(sum, &total)
/// })?;
///
/// let path = cuda_sim::library_path().expect("cargo has built the library");
/// // SAFETY: the simulator's functions have the signatures of the driver.
/// let driver = unsafe { cuda_driver_sys::load_from(&path) }?.table();
/// # macro_rules! cu {
/// #     ($name:ident($($arg:expr),*)) => {{
/// #         let call = driver.$name.expect("every driver has it");
/// #         // SAFETY: the pointers are to live locals.
/// #         let code = unsafe { call($($arg),*) };
/// #         assert_eq!(code, cuda_driver_sys::CUresult::CUDA_SUCCESS);
/// #     }};
/// # }
/// # let (mut context, mut module, mut function) = (null_mut(), null_mut(), null_mut());
/// # cu!(cuInit(0));
/// # cu!(cuDevicePrimaryCtxRetain(from_mut(&mut context), 0));
/// # cu!(cuCtxSetCurrent(context));
/// // `cu!` calls the driver, and wants SUCCESS.
/// cu!(cuModuleLoadData(from_mut(&mut module), PTX.as_ptr().cast()));
/// cu!(cuModuleGetFunction(from_mut(&mut function), module, c"vector_add".as_ptr()));
/// # let [mut a, mut b, mut sum] = [0_u64; 3];
/// # for address in [&mut a, &mut b, &mut sum] {
/// #     cu!(cuMemAlloc_v2(from_mut(address), 64 * 4));
/// # }
/// # cu!(cuMemsetD32_v2(a, 1.5_f32.to_bits(), 64));
/// # cu!(cuMemsetD32_v2(b, 2.5_f32.to_bits(), 64));
/// # let mut count = 64_u32;
/// # let mut arguments: [*mut c_void; 4] = [
/// #     from_mut(&mut a).cast(),
/// #     from_mut(&mut b).cast(),
/// #     from_mut(&mut sum).cast(),
/// #     from_mut(&mut count).cast(),
/// # ];
/// cu!(cuLaunchKernel(function, 2, 1, 1, 32, 1, 1, 0, null_mut(), arguments.as_mut_ptr(), null_mut()));
/// let mut total = [0_f32; 64];
/// cu!(cuMemcpyDtoH_v2(total.as_mut_ptr().cast(), sum, 64 * 4));
/// assert_eq!(total, [4.0; 64]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If the library is not found, or is not the simulator.
///
/// # Panics
///
/// As [`Control::kernel`].
pub fn kernel<M>(name: &str, model: M) -> Result<(), ControlError>
where
    M: Fn(&Launch<'_>) -> Result<(), LaunchError> + Send + Sync + 'static,
{
    let path = library_path().ok_or(ControlError::NotFound)?;
    Control::open(path)?.kernel(name, model);
    Ok(())
}

impl Control {
    /// Gives every kernel named `name` a model: a function that does the work of all threads of a launch. The name is
    /// that of the entry point in PTX, so C++ names are mangled. The parameters are those of the PTX.
    ///
    /// The model runs in stream order, once a launch. It takes the place of an earlier one, or of a built-in kernel,
    /// for launches that are submitted or captured from now on. It is dropped when no launch can use it any more, on any
    /// thread, perhaps while the driver is locked.
    ///
    /// Neither the model nor its drop may call the driver, as with host functions. A panic is reported as an error.
    ///
    /// # Panics
    ///
    /// If no kernel can have this name, because it is empty or contains a zero byte.
    pub fn kernel<M>(&self, name: &str, model: M)
    where
        M: Fn(&Launch<'_>) -> Result<(), LaunchError> + Send + Sync + 'static,
    {
        let named = CString::new(name).ok().filter(|name| !name.is_empty());
        let Some(named) = named else {
            panic!("no kernel can be named {name:?}");
        };
        let registered = Registered {
            model: Box::new(model),
            functions: self.launch_functions,
        };
        let user = Box::into_raw(Box::new(registered)).cast();
        // SAFETY: the name is a zero-terminated string, and `work` and `release` take what `user` is.
        unsafe { (self.register_model)(named.as_ptr(), Some(work), user, Some(release)) };
    }

    /// Removes a model. False if the kernel has none. Launches that were submitted or captured keep it.
    pub fn remove_kernel(&self, name: &str) -> bool {
        let Ok(name) = CString::new(name) else {
            return false;
        };
        // SAFETY: the name is a zero-terminated string; without a function the other arguments are ignored.
        let code =
            unsafe { (self.register_model)(name.as_ptr(), None, std::ptr::null_mut(), None) };
        code == CUresult::CUDA_SUCCESS
    }
}

/// What the simulator keeps for a model.
struct Registered {
    model: Box<ModelClosure>,
    functions: LaunchFunctions,
}

/// Runs a model for the simulator.
unsafe extern "C" fn work(record: *const LaunchRecord, user: *mut c_void) {
    // SAFETY: `Control::kernel` gave this pointer, and the simulator releases it later.
    let registered = unsafe { &*user.cast::<Registered>() };
    // SAFETY: the simulator's record is valid while this runs.
    let record = unsafe { &*record };
    let launch = Launch {
        record,
        functions: registered.functions,
    };
    match catch_unwind(AssertUnwindSafe(|| (registered.model)(&launch))) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => launch.fail(&error.to_string()),
        Err(panic) => launch.fail(&format!("panicked: {}", message(&*panic))),
    }
}

/// Drops a model.
unsafe extern "C" fn release(user: *mut c_void) {
    // SAFETY: `Control::kernel` made this pointer from a box, and the simulator releases it once.
    let registered = unsafe { Box::from_raw(user.cast::<Registered>()) };
    // A panic must not reach the simulator. The program's panic hook has printed it.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(registered)));
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}

/// One launch of a kernel, as its model sees it.
#[derive(Debug)]
pub struct Launch<'a> {
    record: &'a LaunchRecord,
    functions: LaunchFunctions,
}

impl Launch<'_> {
    /// The kernel's name.
    #[must_use]
    pub fn name(&self) -> &str {
        // SAFETY: the simulator gives a zero-terminated string that lives as long as the record.
        let name = unsafe { CStr::from_ptr(self.record.name) };
        // Registered as a `&str`, and found by that.
        name.to_str().unwrap_or_default()
    }

    /// Blocks in each dimension.
    #[must_use]
    pub fn grid(&self) -> [u32; 3] {
        self.record.grid
    }

    /// Threads of a block in each dimension.
    #[must_use]
    pub fn block(&self) -> [u32; 3] {
        self.record.block
    }

    /// Threads of all blocks.
    #[must_use]
    pub fn threads(&self) -> u64 {
        let sizes = self.record.grid.iter().chain(&self.record.block);
        sizes.fold(1, |all, size| all.saturating_mul(u64::from(*size)))
    }

    /// Bytes of dynamic shared memory of a block.
    #[must_use]
    pub fn shared_bytes(&self) -> u32 {
        self.record.shared_bytes
    }

    /// The ordinal of the device.
    #[must_use]
    pub fn device(&self) -> usize {
        self.record.device as usize
    }

    /// Number of arguments.
    #[must_use]
    pub fn argument_count(&self) -> usize {
        self.record.parameter_count
    }

    /// One argument, counted from 0. Pointers are `u64`.
    ///
    /// # Errors
    ///
    /// If there is no such argument, or it has another size.
    pub fn argument<T: Pod>(&self, index: usize) -> Result<T, LaunchError> {
        let wrong = |size| LaunchError::Argument {
            index,
            size,
            wanted: size_of::<T>(),
        };
        let LaunchParameter { offset, size } = self.parameter(index).ok_or(wrong(None))?;
        if size != size_of::<T>() {
            return Err(wrong(Some(size)));
        }
        let place = self.record.arguments.cast::<u8>().wrapping_add(offset);
        // SAFETY: the simulator gives an argument of this size there. Every value of its bytes is a `T`.
        Ok(unsafe { place.cast::<T>().read_unaligned() })
    }

    fn parameter(&self, index: usize) -> Option<LaunchParameter> {
        if index >= self.record.parameter_count {
            return None;
        }
        // SAFETY: the simulator gives so many, which live as long as the record.
        Some(unsafe { self.record.parameters.wrapping_add(index).read() })
    }

    /// Reads `count` elements of the device's memory.
    ///
    /// The launch may access what a kernel on its device could when it was submitted, by its arguments or by addresses
    /// that it finds in memory. The order sanitizer sees each access.
    ///
    /// # Errors
    ///
    /// If the memory is not there, or the address is no multiple of the alignment of `T`. That is reported, and all
    /// later accesses of the launch fail as well: a real device would stop the context.
    pub fn read<T: Pod>(&self, address: u64, count: usize) -> Result<Vec<T>, LaunchError> {
        let bytes = self.straight::<T>(address, count)?;
        let read = |out| {
            // SAFETY: null, or room for so many bytes.
            let code = unsafe { (self.functions.read)(self.record, address, out, bytes) };
            accessed(code, address, bytes)
        };
        // Checked first, because a wrong length may be too large for a vector.
        read(std::ptr::null_mut())?;
        let mut elements = vec![T::zeroed(); count];
        read(elements.as_mut_ptr().cast())?;
        Ok(elements)
    }

    /// Writes elements to the device's memory.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read), also for memory that may only be read.
    pub fn write<T: Pod>(&self, address: u64, elements: &[T]) -> Result<(), LaunchError> {
        let bytes = self.straight::<T>(address, elements.len())?;
        let from = elements.as_ptr().cast();
        // SAFETY: the slice has so many bytes, all of them initialised.
        let code = unsafe { (self.functions.write)(self.record, address, from, bytes) };
        accessed(code, address, bytes)
    }

    /// Address and bytes of a variable of the module that the kernel is in, declared with `.global` or `.const`.
    ///
    /// # Errors
    ///
    /// If it has none of this name.
    pub fn variable(&self, name: &str) -> Result<(u64, usize), LaunchError> {
        let missing = || LaunchError::other(format!("the module has no variable `{name}`"));
        let text = CString::new(name).map_err(|_| missing())?;
        let (mut address, mut bytes) = (0, 0);
        let (to, len) = (&raw mut address, &raw mut bytes);
        // SAFETY: a zero-terminated string, the record of the launch, and room for both results.
        let code = unsafe { (self.functions.variable)(self.record, text.as_ptr(), to, len) };
        match code {
            CUresult::CUDA_SUCCESS => Ok((address, bytes)),
            _ => Err(missing()),
        }
    }

    /// Reads elements, changes them and writes them back.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn update<T: Pod>(
        &self,
        address: u64,
        count: usize,
        change: impl FnOnce(&mut [T]),
    ) -> Result<(), LaunchError> {
        let mut elements = self.read(address, count)?;
        change(&mut elements);
        self.write(address, &elements)
    }

    /// The bytes of an access at a multiple of the elements' alignment.
    fn straight<T>(&self, address: u64, count: usize) -> Result<usize, LaunchError> {
        // A length that overflows exceeds any memory.
        let bytes = count.saturating_mul(size_of::<T>());
        let align = align_of::<T>();
        if address.is_multiple_of(align as u64) {
            return Ok(bytes);
        }
        self.fail(&format!("{address:#x} is no multiple of {align} bytes"));
        Err(LaunchError::Access { address, bytes })
    }

    /// Ends the launch with an error. Only the first one is reported.
    fn fail(&self, why: &str) {
        let why = CString::new(why.replace('\0', "")).unwrap_or_default();
        // SAFETY: a zero-terminated string, and the record of the launch.
        unsafe { (self.functions.fail)(self.record, why.as_ptr()) };
    }
}

fn accessed(code: CUresult, address: u64, bytes: usize) -> Result<(), LaunchError> {
    if code == CUresult::CUDA_SUCCESS {
        Ok(())
    } else {
        Err(LaunchError::Access { address, bytes })
    }
}

/// Why a model cannot do its work. Returned by the model, it becomes a report.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LaunchError {
    /// Memory that the launch cannot access. The reason is in a report.
    Access {
        /// Where the access begins.
        address: u64,
        /// Its length.
        bytes: usize,
    },
    /// An argument that the kernel does not have.
    Argument {
        /// Counted from 0.
        index: usize,
        /// Its bytes; `None` if there is no such argument.
        size: Option<usize>,
        /// The bytes of the type that was asked for.
        wanted: usize,
    },
    /// What the model says.
    Other(String),
}

impl LaunchError {
    /// An error of the model's own.
    #[must_use]
    pub fn other(why: impl Into<String>) -> Self {
        Self::Other(why.into())
    }
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Access { address, bytes } => {
                write!(f, "{bytes} bytes at {address:#x} cannot be accessed")
            }
            Self::Argument {
                index,
                size: None,
                wanted: _,
            } => write!(f, "there is no argument {index}"),
            Self::Argument {
                index,
                size: Some(size),
                wanted,
            } => write!(f, "argument {index} has {size} bytes, not {wanted}"),
            Self::Other(why) => f.write_str(why),
        }
    }
}

impl Error for LaunchError {}
