//! Libraries: code that belongs to no context, and is loaded into one on first use there.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use cuda_driver_sys::{
    CUdevice, CUdeviceptr, CUfunc_cache, CUfunction, CUfunction_attribute, CUjit_option, CUkernel,
    CUlibrary, CUlibraryOption, CUmodule, CUresult,
};

use super::image::{self, Logs};
use super::{Kernel, Library, attributes, variable};
use crate::context::wait_for;
use crate::export::{Answer, INVALID_VALUE, In, Out, exports};
use crate::limits::check_cache;
use crate::state::{HandleKind, from_handle, state, to_handle};

/// The arguments of the load functions other than the image.
type Options = (
    (c_uint, Out<CUjit_option>, Out<*mut c_void>),
    (c_uint, Out<CUlibraryOption>),
);

/// Loads an image of at most `len` bytes. Measured: an error in it is only logged now; looking up a kernel returns it.
fn load(out: Out<CUlibrary>, image: *const c_void, len: usize, options: Options) -> Answer {
    out.required()?;
    let ((count, names, values), (library_count, library_options)) = options;
    let logs = Logs::from_options(count, names, values)?;
    for option in library_options
        .as_input()
        .read_all(library_count as usize)?
    {
        // The first option is a table of host functions, which are never called here.
        if option.0 >= CUlibraryOption::CU_LIBRARY_NUM_OPTIONS.0 {
            return Err(INVALID_VALUE);
        }
    }
    if image.is_null() {
        return Err(INVALID_VALUE);
    }
    let code = image::load(image, len, &logs);
    let mut state = state()?;
    let id = state.new_handle(HandleKind::Library);
    let mut kernels = Vec::new();
    if let Ok(code) = &code {
        for entry in 0..code.entries.len() {
            let kernel = Kernel {
                library: id,
                code: Arc::clone(code),
                entry,
            };
            let name = state.new_handle(HandleKind::Kernel);
            state.modules.kernels.insert(name, kernel);
            kernels.push(name);
        }
    }
    let is_good = code.is_ok();
    let library = Library {
        code,
        kernels,
        modules: std::collections::BTreeMap::new(),
        managed: None,
    };
    state.modules.libraries.insert(id, library);
    // Documented: without lazy loading, a library is loaded into all contexts, present and future.
    if is_good && !state.modules.is_lazy {
        let contexts: Vec<_> = state.contexts.keys().copied().collect();
        for context in contexts {
            if let Err(code) = state.copy_of(id, context) {
                state.end_library(id);
                return Err(code);
            }
        }
    }
    out.write(to_handle(id))
}

exports! {
    plain fn cuLibraryLoadData(
        _, out: Out<CUlibrary>, image: *const c_void,
        options: Out<CUjit_option>, values: Out<*mut c_void>, count: c_uint,
        library_options: Out<CUlibraryOption>, _library_values: Out<*mut c_void>,
        library_count: c_uint
    ) {
        let options = ((count, options, values), (library_count, library_options));
        load(out, image, usize::MAX, options)
    }

    plain fn cuLibraryLoadFromFile(
        _, out: Out<CUlibrary>, path: In<c_char>,
        options: Out<CUjit_option>, values: Out<*mut c_void>, count: c_uint,
        library_options: Out<CUlibraryOption>, _library_values: Out<*mut c_void>,
        library_count: c_uint
    ) {
        out.required()?;
        let file = image::read_file(&path.text()?)?;
        let options = ((count, options, values), (library_count, library_options));
        load(out, file.as_ptr().cast(), file.len(), options)
    }

    release fn cuLibraryUnload(_, library: CUlibrary) {
        let (id, copies) = {
            let mut state = state()?;
            let (id, library) = state.library(library)?;
            let copies = library.modules.clone();
            state.refuse_while_recording()?;
            (id, copies)
        };
        // Measured: as with a module, in each context where the library is loaded.
        for context in copies.keys() {
            wait_for(*context)?;
        }
        state()?.end_library(id);
        Ok(())
    }

    plain fn cuLibraryGetKernel(
        _, out: Out<CUkernel>, library: CUlibrary, name: In<c_char>
    ) {
        out.required()?;
        let name = name.text()?;
        let state = state()?;
        let (_, library) = state.library(library)?;
        let code = library.code.as_ref().map_err(|code| *code)?;
        let entry = code.find(&name)?;
        out.write(to_handle(library.kernels[entry]))
    }

    plain fn cuLibraryGetKernelCount(_, out: Out<c_uint>, library: CUlibrary) {
        out.required()?;
        let state = state()?;
        let (_, library) = state.library(library)?;
        out.write(library.kernels.len() as c_uint)
    }

    plain fn cuLibraryEnumerateKernels(
        _, out: Out<CUkernel>, room: c_uint, library: CUlibrary
    ) {
        out.required()?;
        let state = state()?;
        let (_, library) = state.library(library)?;
        for (index, kernel) in library.kernels.iter().take(room as usize).enumerate() {
            out.at(index).write(to_handle(*kernel))?;
        }
        Ok(())
    }

    plain fn cuLibraryGetModule(_, out: Out<CUmodule>, library: CUlibrary) {
        out.required()?;
        let mut state = state()?;
        let context = state.current()?;
        let (id, _) = state.library(library)?;
        out.write(to_handle(state.copy_of(id, context)?))
    }

    plain fn cuLibraryGetGlobal(
        _, address: Out<CUdeviceptr>, size: Out<usize>, library: CUlibrary, name: In<c_char>
    ) {
        let name = variable::name(address, size, name)?;
        let (id, context) = {
            let state = state()?;
            let (id, library) = state.library(library)?;
            library.code.as_ref().map_err(|code| *code)?;
            (id, state.current()?)
        };
        // A guess: this waits as `cuKernelGetFunction` does.
        if !state()?.has_copy(id, context) {
            wait_for(context)?;
        }
        let mut state = state()?;
        let copy = state.copy_of(id, context)?;
        state.variable(copy, &name)?.write(address, size);
        Ok(())
    }

    plain fn cuLibraryGetManaged(
        _, address: Out<CUdeviceptr>, size: Out<usize>, library: CUlibrary, name: In<c_char>
    ) {
        let name = variable::name(address, size, name)?;
        let mut state = state()?;
        let (id, _) = state.library(library)?;
        let managed = state.managed_variables_of(id)?;
        let found = managed.iter().find(|it| it.is_named(&name));
        found.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?.write(address, size);
        Ok(())
    }

    plain fn cuKernelGetFunction(_, out: Out<CUfunction>, kernel: CUkernel) {
        out.required()?;
        let context = state()?.current()?;
        let library = state()?.kernel(kernel)?.library;
        // Measured: getting the first function in a context waits for its streams, as loading a module does.
        if !state()?.has_copy(library, context) {
            wait_for(context)?;
        }
        let mut state = state()?;
        let function = state.bind(from_handle(kernel), context)?;
        // Measured: as with `cuModuleGetFunction`, this loads the kernel's code.
        state.load_function(function);
        out.write(to_handle(function))
    }

    plain fn cuKernelGetLibrary(_, out: Out<CUlibrary>, kernel: CUkernel) {
        out.required()?;
        out.write(to_handle(state()?.kernel(kernel)?.library))
    }

    plain fn cuKernelGetName(_, out: Out<*const c_char>, kernel: CUkernel) {
        out.required()?;
        // Measured of null; other functions answer INVALID_HANDLE.
        if kernel.is_null() {
            return Err(INVALID_VALUE);
        }
        // Valid as long as the library is loaded.
        out.write(state()?.kernel(kernel)?.entry()?.name.as_ptr())
    }

    plain fn cuKernelGetParamInfo(
        _, kernel: CUkernel, index: usize, offset: Out<usize>, size: Out<usize>
    ) {
        let state = state()?;
        attributes::write_parameter(state.kernel(kernel)?.entry()?, index, offset, size)
    }

    plain fn cuKernelGetParamCount(_, kernel: CUkernel, out: Out<usize>) {
        out.required()?;
        out.write(state()?.kernel(kernel)?.entry()?.parameters.len())
    }

    plain fn cuKernelSetCacheConfig(
        _, kernel: CUkernel, wanted: CUfunc_cache, device: CUdevice
    ) {
        let state = state()?;
        state.kernel(kernel)?;
        state.device(device)?;
        check_cache(wanted)
    }

    plain fn cuKernelGetAttribute(
        _, out: Out<c_int>, attribute: CUfunction_attribute, kernel: CUkernel, device: c_int
    ) {
        out.required()?;
        let state = state()?;
        let entry = state.kernel(kernel)?.entry()?;
        state.device(device)?;
        let value = attributes::value(attribute.0, entry, None, state.configuration.version);
        out.write(value.ok_or(INVALID_VALUE)?)
    }
}
