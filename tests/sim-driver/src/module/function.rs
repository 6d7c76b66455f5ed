//! Functions: kernels in a context.

use std::ffi::{c_char, c_int};

use cuda_driver_sys::{
    CUfunc_cache, CUfunction, CUfunction_attribute, CUfunctionLoadingState, CUmodule,
    CUsharedconfig,
};

use super::attributes;
use crate::export::{INVALID_VALUE, Out, exports};
use crate::limits::{check_banks, check_cache};
use crate::state::{from_handle, state, to_handle};

exports! {
    plain fn cuFuncGetName(_, out: Out<*const c_char>, function: CUfunction) {
        out.required()?;
        // Measured of null; other functions answer INVALID_HANDLE.
        if function.is_null() {
            return Err(INVALID_VALUE);
        }
        // Valid as long as the module is loaded.
        out.write(state()?.function(function)?.entry()?.name.as_ptr())
    }

    plain fn cuFuncGetModule(_, out: Out<CUmodule>, function: CUfunction) {
        out.required()?;
        out.write(to_handle(state()?.function(function)?.module))
    }

    plain fn cuFuncGetParamInfo(
        _, function: CUfunction, index: usize, offset: Out<usize>, size: Out<usize>
    ) {
        let mut state = state()?;
        attributes::write_parameter(state.function(function)?.entry()?, index, offset, size)
    }

    plain fn cuFuncGetParamCount(_, function: CUfunction, out: Out<usize>) {
        out.required()?;
        out.write(state()?.function(function)?.entry()?.parameters.len())
    }

    plain fn cuFuncGetAttribute(
        _, out: Out<c_int>, attribute: CUfunction_attribute, function: CUfunction
    ) {
        out.required()?;
        let mut state = state()?;
        let version = state.configuration.version;
        let function = state.function(function)?;
        let set = function.set.get(&attribute.0).copied();
        let value = attributes::value(attribute.0, function.entry()?, set, version);
        out.write(value.ok_or(INVALID_VALUE)?)
    }

    plain fn cuFuncSetAttribute(
        _, function: CUfunction, attribute: CUfunction_attribute, value: c_int
    ) {
        let mut state = state()?;
        let version = state.configuration.version;
        let function = state.function(function)?;
        attributes::check(attribute.0, value, function.entry()?, version)?;
        function.set.insert(attribute.0, value);
        Ok(())
    }

    // Documented: a preference, without effect on these devices.
    plain fn cuFuncSetCacheConfig(_, function: CUfunction, wanted: CUfunc_cache) {
        state()?.function(function)?;
        check_cache(wanted)
    }

    plain fn cuFuncSetSharedMemConfig(_, function: CUfunction, wanted: CUsharedconfig) {
        state()?.function(function)?;
        check_banks(wanted)
    }

    plain fn cuFuncLoad(_, function: CUfunction) {
        let mut state = state()?;
        state.function(function)?;
        state.load_function(from_handle(function));
        Ok(())
    }

    plain fn cuFuncIsLoaded(_, out: Out<CUfunctionLoadingState>, function: CUfunction) {
        out.required()?;
        out.write(if state()?.function(function)?.is_loaded {
            CUfunctionLoadingState::CU_FUNCTION_LOADING_STATE_LOADED
        } else {
            CUfunctionLoadingState::CU_FUNCTION_LOADING_STATE_UNLOADED
        })
    }
}
