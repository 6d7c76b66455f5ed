//! Libraries: when their code comes into a context, and what waits for that.

use std::ffi::CStr;
use std::time::Duration;

use cuda_driver_sys::*;

use crate::apart::{call, child_of, load};
use crate::harness::*;
use crate::modules::{
    INVALID_CONTEXT, INVALID_HANDLE, function, image, is_loaded, library, module,
};

#[test]
fn a_library_comes_into_a_context_when_it_is_used_there() {
    let turn = turn();
    assert_eq!(cu!(cuCtxSetCurrent(std::ptr::null_mut())), OK);
    let library = library();
    assert_eq!(get!(cuLibraryGetKernelCount(_, library)), 5_u32);
    let kernel = handle!(cuLibraryGetKernel(_, library, c"add".as_ptr()));
    assert_eq!(handle!(cuKernelGetLibrary(_, kernel)), library);
    let (mut offset, mut size) = (0, 0);
    let code = cu!(cuKernelGetParamInfo(
        kernel,
        3,
        &raw mut offset,
        &raw mut size
    ));
    assert_eq!((code, offset, size), (OK, 24, 8));
    let mut nowhere = std::ptr::null_mut();
    let code = cu!(cuKernelGetFunction(&raw mut nowhere, kernel));
    assert_eq!(code, INVALID_CONTEXT);
    let images = || [0, 1].map(|device| control().images(device));
    assert_eq!((control().live().libraries, images()), (1, [0, 0]));
    assert_eq!(cu!(cuCtxSetCurrent(turn.context)), OK);
    let here = handle!(cuKernelGetFunction(_, kernel));
    assert_eq!(handle!(cuKernelGetFunction(_, kernel)), here);
    assert_eq!(images(), [1, 0]);
    let module = handle!(cuLibraryGetModule(_, library));
    assert_eq!(handle!(cuFuncGetModule(_, here)), module);
    assert_eq!(function(module, c"add"), here);
    assert_eq!(
        cu!(cuModuleUnload(module)),
        CUresult::CUDA_ERROR_NOT_PERMITTED
    );
    let other = handle!(cuCtxCreate_v2(_, 0, 1));
    assert_ne!(handle!(cuKernelGetFunction(_, kernel)), here);
    assert_eq!((control().live().modules, images()), (0, [1, 1]));
    assert_eq!(cu!(cuCtxDestroy_v2(other)), OK);
    assert_eq!(images(), [1, 0]);
    assert_eq!(cu!(cuLibraryUnload(library)), OK);
    assert_eq!((control().live().libraries, images()), (0, [0, 0]));
    let code = cu!(cuKernelGetFunction(&raw mut nowhere, kernel));
    assert_eq!(code, INVALID_HANDLE);
}

#[test]
fn what_is_wrong_with_a_library_is_said_to_those_who_want_a_kernel() {
    let _turn = turn();
    let wrong = image(".version 7.0\n.target sm_70\n.entry k( { ret; }");
    let (mut library, none) = (std::ptr::null_mut(), std::ptr::null_mut());
    let code = cu!(cuLibraryLoadData(
        &raw mut library,
        wrong.as_ptr().cast(),
        std::ptr::null_mut(),
        none,
        0,
        std::ptr::null_mut(),
        none,
        0
    ));
    assert_eq!(code, OK);
    let mut kernel = std::ptr::null_mut();
    let code = cu!(cuLibraryGetKernel(&raw mut kernel, library, c"k".as_ptr()));
    assert_eq!(code, CUresult::CUDA_ERROR_INVALID_PTX);
    assert_eq!(get!(cuLibraryGetKernelCount(_, library)), 0_u32);
    assert_eq!(cu!(cuLibraryUnload(library)), OK);
}

#[test]
fn loading_and_unloading_wait_for_the_context() {
    let turn = turn();
    let stream = stream();
    let context = turn.context.expose_provenance();
    let library = library().expose_provenance();
    let taken = move |name: &CStr| {
        let library = std::ptr::with_exposed_provenance_mut(library);
        handle!(cuLibraryGetKernel(_, library, name.as_ptr()))
    };
    // Long enough for what does not wait, and not long to wait for what does.
    let (long, short) = (Duration::from_secs(10), Duration::from_millis(30));
    let waits = |patience: Duration, call: &(dyn Fn() + Sync)| {
        let gate = Gate::hold(stream);
        let (is_done, end) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let context = std::ptr::with_exposed_provenance_mut(context);
                assert_eq!(cu!(cuCtxSetCurrent(context)), OK);
                call();
                let _ = is_done.send(());
            });
            let waited = end.recv_timeout(patience).is_err();
            gate.open();
            waited
        })
    };
    let function_of = |kernel: CUkernel| {
        handle!(cuKernelGetFunction(_, kernel));
    };
    assert!(waits(short, &|| assert_eq!(
        cu!(cuModuleUnload(module())),
        OK
    )));
    assert!(!waits(long, &|| assert!(!taken(c"fill").is_null())));
    assert!(waits(short, &|| function_of(taken(c"fill"))));
    assert!(!waits(long, &|| function_of(taken(c"copy"))));
    assert!(waits(short, &|| {
        let library = std::ptr::with_exposed_provenance_mut(library);
        assert_eq!(cu!(cuLibraryUnload(library)), OK);
    }));
    assert_eq!(cu!(cuStreamDestroy_v2(stream)), OK);
}

#[test]
fn eager_libraries_are_in_all_contexts() {
    let settings = [("CUDA_MODULE_LOADING", "EAGER"), ("CUDA_SIM_DEVICES", "2")];
    child_of(
        "libraries",
        "eager_libraries_are_in_all_contexts",
        &settings,
        || {
            let _turn = turn();
            let mut mode = CUmoduleLoadingMode(0);
            assert_eq!(cu!(cuModuleGetLoadingMode(&raw mut mode)), OK);
            assert_eq!(mode, CUmoduleLoadingMode::CU_MODULE_EAGER_LOADING);
            let library = library();
            let images = || [0, 1].map(|device| control().images(device));
            assert_eq!(images(), [1, 0]);
            let other = handle!(cuCtxCreate_v2(_, 0, 1));
            assert_eq!(images(), [1, 1]);
            let module = module();
            let mut first = std::ptr::null_mut();
            let code = cu!(cuModuleEnumerateFunctions(&raw mut first, 1, module));
            assert_eq!((code, is_loaded(first)), (OK, true));
            assert_eq!(cu!(cuCtxDestroy_v2(other)), OK);
            assert_eq!(images(), [1, 0]);
            assert_eq!(cu!(cuLibraryUnload(library)), OK);
            assert_eq!(images(), [0, 0]);
        },
    );
}

#[test]
fn older_drivers_have_modules_and_no_libraries() {
    let name = "older_drivers_have_modules_and_no_libraries";
    let settings = [
        ("CUDA_SIM_DRIVER_VERSION", "11080"),
        ("CUDA_MODULE_LOADING", ""),
    ];
    child_of("libraries", name, &settings, || {
        let table = load();
        assert!(table.has("cuModuleLoadDataEx") && table.has("cuLaunchKernel"));
        for newer in [
            "cuLibraryLoadData",
            "cuKernelGetFunction",
            "cuFuncGetParamInfo",
        ] {
            assert!(!table.has(newer), "{newer}");
        }
        assert_eq!(call!(table.cuInit(0)), OK);
        let mut mode = CUmoduleLoadingMode(0);
        assert_eq!(call!(table.cuModuleGetLoadingMode(&raw mut mode)), OK);
        assert_eq!(mode, CUmoduleLoadingMode::CU_MODULE_EAGER_LOADING);
        let (mut context, mut module) = (std::ptr::null_mut(), std::ptr::null_mut());
        assert_eq!(
            call!(table.cuDevicePrimaryCtxRetain(&raw mut context, 0)),
            OK
        );
        assert_eq!(call!(table.cuCtxSetCurrent(context)), OK);
        let new = image(".version 8.0\n.target sm_70");
        let code = call!(table.cuModuleLoadData(&raw mut module, new.as_ptr().cast()));
        assert_eq!(code, CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
    });
}
