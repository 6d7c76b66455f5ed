//! Modules: code loaded into the current context.

use std::ffi::{c_char, c_uint, c_void};

use cuda_driver_sys::{
    CUdeviceptr, CUfunction, CUjit_option, CUmodule, CUmoduleLoadingMode, CUresult,
};

use super::image::{self, Logs};
use super::variable;
use crate::context::wait_for;
use crate::export::{Answer, INVALID_VALUE, In, Out, exports};
use crate::state::{state, to_handle};

/// Loads an image of at most `len` bytes into the current context.
fn load(out: Out<CUmodule>, image: *const c_void, len: usize, logs: &Logs) -> Answer {
    out.required()?;
    let context = state()?.current()?;
    let code = image::load(image, len, logs)?;
    // Measured: waits for all streams of the context, one of which may be captured; not for other contexts.
    wait_for(context)?;
    let id = state()?.add_module(context, code, None)?;
    out.write(to_handle(id))
}

/// Loads an image whose size the image itself defines.
fn load_at(out: Out<CUmodule>, image: *const c_void, logs: &Logs) -> Answer {
    load(out, image, usize::MAX, logs)
}

exports! {
    plain fn cuModuleLoad(_, out: Out<CUmodule>, path: In<c_char>) {
        out.required()?;
        let path = path.text()?;
        state()?.current()?;
        let file = image::read_file(&path)?;
        load(out, file.as_ptr().cast(), file.len(), &Logs::default())
    }

    plain fn cuModuleLoadData(_, out: Out<CUmodule>, image: *const c_void) {
        load_at(out, image, &Logs::default())
    }

    plain fn cuModuleLoadDataEx(
        _, out: Out<CUmodule>, image: *const c_void, count: c_uint, options: Out<CUjit_option>,
        values: Out<*mut c_void>
    ) {
        load_at(out, image, &Logs::from_options(count, options, values)?)
    }

    plain fn cuModuleLoadFatBinary(_, out: Out<CUmodule>, image: *const c_void) {
        // A guess: it accepts what the other functions accept.
        load_at(out, image, &Logs::default())
    }

    release fn cuModuleUnload(_, module: CUmodule) {
        let (id, context) = {
            let mut state = state()?;
            let (id, module) = state.module(module)?;
            // Measured: a library's own module is unloaded only with the library.
            if module.library.is_some() {
                return Err(CUresult::CUDA_ERROR_NOT_PERMITTED);
            }
            let context = module.context;
            state.refuse_while_recording()?;
            (id, context)
        };
        // Measured: running and queued kernels complete first.
        wait_for(context)?;
        state()?.end_module(id);
        Ok(())
    }

    plain fn cuModuleGetFunction(
        _, out: Out<CUfunction>, module: CUmodule, name: In<c_char>
    ) {
        out.required()?;
        let name = name.text()?;
        if name.is_empty() {
            return Err(INVALID_VALUE);
        }
        let mut state = state()?;
        let (id, module) = state.module(module)?;
        let entry = module.code.find(&name)?;
        let function = state.function_of(id, entry)?;
        // Documented: this loads the kernel's code.
        state.load_function(function);
        out.write(to_handle(function))
    }

    plain fn cuModuleGetFunctionCount(_, out: Out<c_uint>, module: CUmodule) {
        out.required()?;
        let mut state = state()?;
        let (_, module) = state.module(module)?;
        out.write(module.code.entries.len() as c_uint)
    }

    plain fn cuModuleEnumerateFunctions(
        _, out: Out<CUfunction>, room: c_uint, module: CUmodule
    ) {
        out.required()?;
        let mut state = state()?;
        let (id, module) = state.module(module)?;
        let count = module.code.entries.len().min(room as usize);
        // Documented: these need not be loaded.
        for entry in 0..count {
            let function = state.function_of(id, entry)?;
            out.at(entry).write(to_handle(function))?;
        }
        Ok(())
    }

    plain fn cuModuleGetGlobal_v2(
        _, address: Out<CUdeviceptr>, size: Out<usize>, module: CUmodule, name: In<c_char>
    ) {
        let name = variable::name(address, size, name)?;
        let mut state = state()?;
        let (id, _) = state.module(module)?;
        state.variable(id, &name)?.write(address, size);
        Ok(())
    }

    plain fn cuModuleGetLoadingMode(_, out: Out<CUmoduleLoadingMode>) {
        out.required()?;
        out.write(if state()?.modules.is_lazy {
            CUmoduleLoadingMode::CU_MODULE_LAZY_LOADING
        } else {
            CUmoduleLoadingMode::CU_MODULE_EAGER_LOADING
        })
    }
}
