//! Code: modules, libraries, functions, launches.

use std::ffi::{CStr, CString, c_int, c_uint, c_void};

use cuda_driver_sys::{
    CUfunction, CUfunction_attribute, CUfunctionLoadingState, CUjit_option, CUkernel, CUlibrary,
    CUmodule, CUmoduleLoadingMode, CUresult,
};

use super::{Queue, Table, call};
use crate::base::error::{Error, ErrorKind, Result};

/// Bytes of each log that the compiler of PTX may write.
const LOG: usize = 8 << 10;

/// The options of a load that make the compiler write down its errors.
pub(crate) struct Logs {
    errors: Vec<u8>,
    keys: [CUjit_option; 2],
    values: [*mut c_void; 2],
}

impl Logs {
    fn new() -> Self {
        let mut errors = vec![0_u8; LOG];
        let values = [
            errors.as_mut_ptr().cast(),
            // A number in the place of a pointer, as the driver wants it.
            std::ptr::without_provenance_mut(LOG),
        ];
        Self {
            errors,
            keys: [
                CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
                CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
            ],
            values,
        }
    }

    /// Adds the compiler's output.
    pub(crate) fn explain(&self, error: Error) -> Error {
        let end = self.errors.iter().position(|byte| *byte == 0);
        let said = &self.errors[..end.unwrap_or(LOG)];
        error.with_jit_log(String::from_utf8_lossy(said).trim_end().to_owned())
    }
}

/// # Safety
/// A live context must be current: the module belongs to it. `image` must be PTX that ends in 0, or a whole
/// cubin or fatbin; it is only read.
pub(crate) unsafe fn load(table: &Table, image: &[u8]) -> Result<CUmodule> {
    let mut module = std::ptr::null_mut();
    let mut logs = Logs::new();
    let image = image.as_ptr().cast();
    let (count, keys, values) = (2, logs.keys.as_mut_ptr(), logs.values.as_mut_ptr());
    // SAFETY: the arrays have two entries each, and the log as many bytes as the second says.
    let loaded = unsafe {
        call!(
            table,
            cuModuleLoadDataEx(&raw mut module, image, count, keys, values)
        )
    };
    match loaded {
        Ok(()) => Ok(module),
        Err(error) => Err(logs.explain(error)),
    }
}

/// # Safety
/// `module` must be live, its context current, and nothing of it used afterwards.
pub(crate) unsafe fn unload(table: &Table, module: CUmodule) -> Result<()> {
    // SAFETY: the caller gives up the handle.
    unsafe { call!(table, cuModuleUnload(module)) }
}

/// # Safety
/// `module` must be live and its context current.
pub(crate) unsafe fn function(table: &Table, module: CUmodule, name: &CStr) -> Result<CUfunction> {
    let mut function = std::ptr::null_mut();
    // SAFETY: `function` is valid for a write, the name ends in 0.
    unsafe {
        call!(
            table,
            cuModuleGetFunction(&raw mut function, module, name.as_ptr())
        )
    }?;
    Ok(function)
}

/// # Safety
/// There must be an initialised driver behind the table.
pub(crate) unsafe fn loading_mode(table: &Table) -> Result<CUmoduleLoadingMode> {
    let mut mode = CUmoduleLoadingMode(0);
    // SAFETY: `mode` is valid for a write.
    unsafe { call!(table, cuModuleGetLoadingMode(&raw mut mode)) }?;
    Ok(mode)
}

/// No context is needed, and none is touched under lazy loading. The logs must stay as long as the library: the
/// driver may write to them whenever it compiles.
///
/// # Safety
/// As [`load`] asks of `image`.
pub(crate) unsafe fn load_library(table: &Table, image: &[u8]) -> Result<(CUlibrary, Box<Logs>)> {
    let mut library = std::ptr::null_mut();
    let mut logs = Box::new(Logs::new());
    let image = image.as_ptr().cast();
    let (keys, values) = (logs.keys.as_mut_ptr(), logs.values.as_mut_ptr());
    let (no_keys, no_values) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: as in `load`; there are no options of the library.
    let loaded = unsafe {
        call!(
            table,
            cuLibraryLoadData(
                &raw mut library,
                image,
                keys,
                values,
                2,
                no_keys,
                no_values,
                0
            )
        )
    };
    loaded.map_err(|error| logs.explain(error))?;
    // The driver compiles now and tells only those who want a kernel (R154); no kernel has this name.
    // SAFETY: the library is loaded.
    match unsafe { kernel(table, library, c"") } {
        Err(error) if error.kind() == ErrorKind::InvalidImage => {
            // SAFETY: nobody else knows the library. That its end fails is told less than why it is useless.
            let _ = unsafe { unload_library(table, library) };
            Err(logs.explain(error))
        }
        _ => Ok((library, logs)),
    }
}

/// # Safety
/// `library` must be live, and nothing of it used afterwards.
pub(crate) unsafe fn unload_library(table: &Table, library: CUlibrary) -> Result<()> {
    // SAFETY: the caller gives up the handle.
    unsafe { call!(table, cuLibraryUnload(library)) }
}

/// # Safety
/// `library` must be live.
pub(crate) unsafe fn kernel(table: &Table, library: CUlibrary, name: &CStr) -> Result<CUkernel> {
    let mut kernel = std::ptr::null_mut();
    // SAFETY: `kernel` is valid for a write, the name ends in 0.
    unsafe {
        call!(
            table,
            cuLibraryGetKernel(&raw mut kernel, library, name.as_ptr())
        )
    }?;
    Ok(kernel)
}

/// # Safety
/// `kernel` must be of a live library; a context must be current, to which the function will belong.
pub(crate) unsafe fn function_of(table: &Table, kernel: CUkernel) -> Result<CUfunction> {
    let mut function = std::ptr::null_mut();
    // SAFETY: `function` is valid for a write.
    unsafe { call!(table, cuKernelGetFunction(&raw mut function, kernel)) }?;
    Ok(function)
}

/// # Safety
/// `function` must be of live code, with its context current.
pub(crate) unsafe fn attribute(
    table: &Table,
    function: CUfunction,
    attribute: CUfunction_attribute,
) -> Result<c_int> {
    let mut value = 0;
    // SAFETY: `value` is valid for a write.
    unsafe {
        call!(
            table,
            cuFuncGetAttribute(&raw mut value, attribute, function)
        )
    }?;
    Ok(value)
}

/// # Safety
/// As [`attribute`].
pub(crate) unsafe fn set_attribute(
    table: &Table,
    function: CUfunction,
    attribute: CUfunction_attribute,
    value: c_int,
) -> Result<()> {
    // SAFETY: the caller vouches for the handle.
    unsafe { call!(table, cuFuncSetAttribute(function, attribute, value)) }
}

/// The offset of this parameter in the parameter block, and its size in bytes; `None` past the last one.
///
/// # Safety
/// As [`attribute`].
pub(crate) unsafe fn parameter(
    table: &Table,
    function: CUfunction,
    index: usize,
) -> Result<Option<(usize, usize)>> {
    let (mut offset, mut size) = (0, 0);
    // SAFETY: both are valid for a write.
    let answer = unsafe {
        call!(
            table,
            cuFuncGetParamInfo(function, index, &raw mut offset, &raw mut size)
        )
    };
    match answer {
        Err(error) if error.code() == Some(CUresult::CUDA_ERROR_INVALID_VALUE) => Ok(None),
        answer => answer.map(|()| Some((offset, size))),
    }
}

/// # Safety
/// As [`attribute`].
pub(crate) unsafe fn is_loaded(table: &Table, function: CUfunction) -> Result<bool> {
    let mut state = CUfunctionLoadingState(0);
    // SAFETY: `state` is valid for a write.
    unsafe { call!(table, cuFuncIsLoaded(&raw mut state, function)) }?;
    Ok(state == CUfunctionLoadingState::CU_FUNCTION_LOADING_STATE_LOADED)
}

/// # Safety
/// As [`attribute`].
pub(crate) unsafe fn preload(table: &Table, function: CUfunction) -> Result<()> {
    // SAFETY: the caller vouches for the handle.
    unsafe { call!(table, cuFuncLoad(function)) }
}

/// Blocks that run at the same time on one multiprocessor.
///
/// # Safety
/// As [`attribute`].
pub(crate) unsafe fn occupancy(
    table: &Table,
    function: CUfunction,
    threads: c_int,
    shared: usize,
) -> Result<c_int> {
    let mut blocks = 0;
    // SAFETY: `blocks` is valid for a write.
    unsafe {
        call!(
            table,
            cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, function, threads, shared)
        )
    }?;
    Ok(blocks)
}

/// The blocks that fill the device, and the threads of each, for the best occupancy.
///
/// # Safety
/// As [`attribute`].
pub(crate) unsafe fn best_block(
    table: &Table,
    function: CUfunction,
    shared: usize,
) -> Result<(c_int, c_int)> {
    let (mut grid, mut block) = (0, 0);
    // SAFETY: both are valid for a write; without a callback the shared memory is the same for each size.
    unsafe {
        call!(
            table,
            cuOccupancyMaxPotentialBlockSize(
                &raw mut grid,
                &raw mut block,
                function,
                None,
                shared,
                0
            )
        )
    }?;
    Ok((grid, block))
}

/// # Safety
/// `function` must be of live code of the stream's context, which must be current; `arguments` must point to
/// one value for each parameter, of its size. The driver takes the values before it returns. What the
/// kernel touches must be there, and stay until it has run.
pub(crate) unsafe fn launch(
    queue: Queue<'_>,
    function: CUfunction,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared: c_uint,
    arguments: &mut [*mut c_void],
) -> Result<()> {
    // SAFETY: the caller vouches for the code and what it touches; there are no `extra` options.
    unsafe {
        call!(
            queue.table,
            cuLaunchKernel(
                function,
                grid[0],
                grid[1],
                grid[2],
                block[0],
                block[1],
                block[2],
                shared,
                queue.stream,
                arguments.as_mut_ptr(),
                std::ptr::null_mut()
            )
        )
    }
}

/// A name for the driver; `None` if it contains a 0, as no kernel's name does.
pub(crate) fn name(name: &str) -> Option<CString> {
    CString::new(name).ok()
}
