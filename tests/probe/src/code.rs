//! Code for the questions: the kernels of `tests/data/kernels.ptx`.

use std::ffi::{CStr, c_void};

use anyhow::{Result, ensure};
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name};

/// The text without the zero that ends it for the driver.
pub(crate) const PTX: &str = include_str!("../../data/kernels.ptx");

/// A text as the driver wants it.
pub(crate) fn ended(text: &str) -> Vec<u8> {
    [text.as_bytes(), &[0]].concat()
}

pub(crate) fn try_load(env: &Environment, image: &[u8]) -> (CUresult, CUmodule) {
    let mut module = std::ptr::null_mut();
    let code = cu!(
        env,
        cuModuleLoadData(&raw mut module, image.as_ptr().cast())
    );
    (code, module)
}

pub(crate) fn load(env: &Environment) -> Result<CUmodule> {
    let (code, module) = try_load(env, &ended(PTX));
    env.fine("cuModuleLoadData", code)?;
    Ok(module)
}

pub(crate) fn try_load_library(env: &Environment, image: &[u8]) -> (CUresult, CUlibrary) {
    let (mut library, null) = (std::ptr::null_mut(), std::ptr::null_mut());
    let code = cu!(
        env,
        cuLibraryLoadData(
            &raw mut library,
            image.as_ptr().cast(),
            std::ptr::null_mut(),
            null,
            0,
            std::ptr::null_mut(),
            null,
            0
        )
    );
    (code, library)
}

pub(crate) fn load_library(env: &Environment) -> Result<CUlibrary> {
    let (code, library) = try_load_library(env, &ended(PTX));
    env.fine("cuLibraryLoadData", code)?;
    Ok(library)
}

pub(crate) fn try_function(
    env: &Environment,
    module: CUmodule,
    of: &CStr,
) -> (CUresult, CUfunction) {
    let mut function = std::ptr::null_mut();
    let code = cu!(
        env,
        cuModuleGetFunction(&raw mut function, module, of.as_ptr())
    );
    (code, function)
}

pub(crate) fn function(env: &Environment, module: CUmodule, of: &CStr) -> Result<CUfunction> {
    let (code, function) = try_function(env, module, of);
    env.fine("cuModuleGetFunction", code)?;
    Ok(function)
}

pub(crate) fn try_kernel(env: &Environment, library: CUlibrary, of: &CStr) -> (CUresult, CUkernel) {
    let mut kernel = std::ptr::null_mut();
    let code = cu!(
        env,
        cuLibraryGetKernel(&raw mut kernel, library, of.as_ptr())
    );
    (code, kernel)
}

pub(crate) fn kernel(env: &Environment, library: CUlibrary, of: &CStr) -> Result<CUkernel> {
    let (code, kernel) = try_kernel(env, library, of);
    env.fine("cuLibraryGetKernel", code)?;
    Ok(kernel)
}

pub(crate) fn try_function_of(env: &Environment, kernel: CUkernel) -> (CUresult, CUfunction) {
    let mut function = std::ptr::null_mut();
    let code = cu!(env, cuKernelGetFunction(&raw mut function, kernel));
    (code, function)
}

/// Whether the code of a function is on the device, or a code.
pub(crate) fn is_loaded(env: &Environment, function: CUfunction) -> String {
    let mut state = CUfunctionLoadingState(77);
    let code = cu!(env, cuFuncIsLoaded(&raw mut state, function));
    match (code, state.0) {
        (OK, 0) => "not loaded".into(),
        (OK, 1) => "loaded".into(),
        (OK, other) => format!("state {other}"),
        (code, _) => name(code),
    }
}

/// A grid and a block in one dimension, with this shared memory.
pub(crate) fn launch(
    env: &Environment,
    function: CUfunction,
    [grid, block, shared]: [u32; 3],
    stream: CUstream,
    arguments: *mut *mut c_void,
) -> CUresult {
    let extra = std::ptr::null_mut();
    cu!(
        env,
        cuLaunchKernel(
            function, grid, 1, 1, block, 1, 1, shared, stream, arguments, extra
        )
    )
}

/// Launches `fill` over this many words.
pub(crate) fn fill(
    env: &Environment,
    function: CUfunction,
    stream: CUstream,
    (mut to, mut value, mut words): (CUdeviceptr, u32, u64),
) -> CUresult {
    let mut arguments = [
        (&raw mut to).cast(),
        (&raw mut value).cast(),
        (&raw mut words).cast(),
    ];
    launch(env, function, [1, 64, 0], stream, arguments.as_mut_ptr())
}

/// The arguments of `fill`, which the driver reads when a node is added or changed.
pub(crate) struct FillArguments {
    to: CUdeviceptr,
    pub(crate) value: u32,
    words: u64,
    list: [*mut c_void; 3],
}

impl FillArguments {
    pub(crate) fn new(to: CUdeviceptr, value: u32) -> Box<Self> {
        let mut all = Box::new(Self {
            to,
            value,
            words: 64,
            list: [std::ptr::null_mut(); 3],
        });
        all.list = [
            (&raw mut all.to).cast(),
            (&raw mut all.value).cast(),
            (&raw mut all.words).cast(),
        ];
        all
    }

    /// A kernel node that fills.
    pub(crate) fn params(&mut self, function: CUfunction) -> CUDA_KERNEL_NODE_PARAMS {
        CUDA_KERNEL_NODE_PARAMS {
            func: function,
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 64,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            kernelParams: self.list.as_mut_ptr(),
            ..CUDA_KERNEL_NODE_PARAMS::default()
        }
    }
}

/// Launches `spin`, which takes so long.
pub(crate) fn spin(
    env: &Environment,
    function: CUfunction,
    stream: CUstream,
    mut nanoseconds: u64,
) -> CUresult {
    let mut arguments = [(&raw mut nanoseconds).cast()];
    launch(env, function, [1, 1, 0], stream, arguments.as_mut_ptr())
}

/// The first word there, or a code. Waits for everything.
pub(crate) fn word(env: &Environment, from: CUdeviceptr) -> String {
    let code = cu!(env, cuCtxSynchronize());
    if code != OK {
        return name(code);
    }
    let mut word = 0_u32;
    match cu!(env, cuMemcpyDtoH_v2((&raw mut word).cast(), from, 4)) {
        OK => word.to_string(),
        code => name(code),
    }
}

/// Another context of the first device. It is not current, and not on the stack.
pub(crate) fn other_context(env: &Environment) -> Result<CUcontext> {
    let mut context = std::ptr::null_mut();
    let code = cu!(env, cuCtxCreate_v2(&raw mut context, 0, 0));
    env.fine("cuCtxCreate", code)?;
    let mut popped = std::ptr::null_mut();
    let code = cu!(env, cuCtxPopCurrent_v2(&raw mut popped));
    env.fine("cuCtxPopCurrent", code)?;
    ensure!(popped == context, "another context was on the stack");
    Ok(context)
}
