//! Modules and the linker: what is taken, where it is, and when it ends.

use std::ffi::{CStr, CString, c_int, c_void};

use cuda_driver_sys::*;

use crate::harness::*;

pub(crate) const KERNELS: &str = include_str!("../../data/kernels.ptx");

pub(crate) const INVALID_CONTEXT: CUresult = CUresult::CUDA_ERROR_INVALID_CONTEXT;
pub(crate) const INVALID_HANDLE: CUresult = CUresult::CUDA_ERROR_INVALID_HANDLE;
const NOT_FOUND: CUresult = CUresult::CUDA_ERROR_NOT_FOUND;

pub(crate) fn image(text: &str) -> CString {
    CString::new(text).expect("no zeros")
}

pub(crate) fn try_module(image: &CStr) -> Result<CUmodule, CUresult> {
    let mut module = std::ptr::null_mut();
    match cu!(cuModuleLoadData(&raw mut module, image.as_ptr().cast())) {
        OK => Ok(module),
        code => Err(code),
    }
}

pub(crate) fn module() -> CUmodule {
    try_module(&image(KERNELS)).expect("loads")
}

pub(crate) fn function(module: CUmodule, name: &CStr) -> CUfunction {
    handle!(cuModuleGetFunction(_, module, name.as_ptr()))
}

pub(crate) fn is_loaded(function: CUfunction) -> bool {
    let mut state = CUfunctionLoadingState(9);
    assert_eq!(cu!(cuFuncIsLoaded(&raw mut state, function)), OK);
    state == CUfunctionLoadingState::CU_FUNCTION_LOADING_STATE_LOADED
}

/// The kernels as a library.
pub(crate) fn library() -> CUlibrary {
    library_of(KERNELS)
}

/// A text as a library, without any options.
pub(crate) fn library_of(text: &str) -> CUlibrary {
    let (image, mut library) = (image(text), std::ptr::null_mut());
    let null = std::ptr::null_mut();
    let code = cu!(cuLibraryLoadData(
        &raw mut library,
        image.as_ptr().cast(),
        null,
        null.cast(),
        0,
        null.cast(),
        null.cast(),
        0
    ));
    assert_eq!(code, OK);
    library
}

/// Loads with a log of so many bytes: the answer, what was written, and how much the option says.
fn load_with_log(text: &str, room: usize) -> (CUresult, String, usize) {
    let image = image(text);
    let mut log = vec![b'?'; room];
    let mut options = [
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER,
        CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
        CUjit_option::CU_JIT_OPTIMIZATION_LEVEL,
    ];
    let level = std::ptr::without_provenance_mut(4);
    let size = std::ptr::without_provenance_mut(room);
    let mut values = [log.as_mut_ptr().cast::<c_void>(), size, level];
    let mut module = std::ptr::null_mut();
    let code = cu!(cuModuleLoadDataEx(
        &raw mut module,
        image.as_ptr().cast(),
        3,
        options.as_mut_ptr(),
        values.as_mut_ptr()
    ));
    if code == OK {
        assert_eq!(cu!(cuModuleUnload(module)), OK);
    }
    let text = CStr::from_bytes_until_nul(&log).expect("a zero behind it");
    (
        code,
        text.to_str().expect("text").to_owned(),
        values[1].addr(),
    )
}

#[test]
fn what_is_wrong_with_an_image_is_said() {
    let _turn = turn();
    let code = |text: &str| try_module(&image(text)).expect_err("refused");
    let head = ".version 7.0\n.target sm_70\n";
    let invalid = CUresult::CUDA_ERROR_INVALID_PTX;
    assert_eq!(code(".target sm_70\n.version 7.0"), invalid);
    assert_eq!(code(&format!("{head}.entry k( {{ ret; }}")), invalid);
    assert_eq!(
        code(".version 99.0\n.target sm_70"),
        CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
    );
    assert_eq!(code(".version 7.0\n.target sm_999"), invalid);
    assert_eq!(code(".version 8.7\n.target sm_120"), invalid);
    let no_image = CUresult::CUDA_ERROR_INVALID_IMAGE;
    assert_eq!(code("\x7fELF\x02\x01"), no_image);
    assert_eq!(code(""), no_image);
    assert_eq!(code(".entry k() { ret; }"), no_image);
    let fat = [0x50_u8, 0xed, 0x55, 0xba, 1, 0, 16, 0, 0];
    let mut module = std::ptr::null_mut();
    let answer = cu!(cuModuleLoadFatBinary(&raw mut module, fat.as_ptr().cast()));
    assert_eq!(answer, no_image);
    let nowhere = c"/there/is/no/such.ptx".as_ptr();
    let answer = cu!(cuModuleLoad(&raw mut module, nowhere));
    assert_eq!(answer, CUresult::CUDA_ERROR_FILE_NOT_FOUND);
    assert_eq!(control().live().modules, 0);
}

#[test]
fn the_log_names_the_line() {
    let _turn = turn();
    let text = ".version 7.0\n.target sm_70\n.entry k()\n{\n  this is no ptx;\n}";
    let (code, log, len) = load_with_log(text, 200);
    assert_eq!(code, CUresult::CUDA_ERROR_INVALID_PTX);
    assert!(log.contains("line 5;") && log.contains("`this`"), "{log}");
    assert_eq!(len, log.len());
    let (_, cut, len) = load_with_log(text, 10);
    assert_eq!((&cut[..], len), (&log[..9], 10));
    assert_eq!(load_with_log(KERNELS, 10), (OK, String::new(), 0));
}

#[test]
fn a_module_belongs_to_the_context_and_ends_with_it() {
    let turn = turn();
    assert_eq!(cu!(cuCtxSetCurrent(std::ptr::null_mut())), OK);
    assert_eq!(try_module(&image(KERNELS)), Err(INVALID_CONTEXT));
    let other = handle!(cuCtxCreate_v2(_, 0, 1));
    let elsewhere = module();
    let its = function(elsewhere, c"fill");
    assert_eq!(cu!(cuCtxPopCurrent_v2(std::ptr::null_mut())), OK);
    assert_eq!(cu!(cuCtxSetCurrent(turn.context)), OK);
    let here = module();
    let live = control().live();
    assert_eq!((live.modules, live.images), (2, 2));
    assert_eq!([0, 1].map(|device| control().images(device)), [1, 1]);
    assert_eq!(cu!(cuCtxDestroy_v2(other)), OK);
    assert_eq!([0, 1].map(|device| control().images(device)), [1, 0]);
    let mut owner = std::ptr::null_mut();
    assert_eq!(cu!(cuFuncGetModule(&raw mut owner, its)), INVALID_HANDLE);
    assert_eq!(cu!(cuModuleUnload(elsewhere)), INVALID_HANDLE);
    assert_eq!(cu!(cuModuleUnload(here)), OK);
    assert_eq!(control().live().images, 0);
}

#[test]
fn functions_say_what_they_are() {
    let _turn = turn();
    let module = module();
    assert_eq!(get!(cuModuleGetFunctionCount(_, module)), 5_u32);
    let fill = function(module, c"fill");
    assert_eq!(function(module, c"fill"), fill);
    let mut all = [std::ptr::null_mut(); 5];
    let code = cu!(cuModuleEnumerateFunctions(all.as_mut_ptr(), 5, module));
    assert_eq!((code, all[0]), (OK, fill));
    let mut name = std::ptr::null();
    assert_eq!(cu!(cuFuncGetName(&raw mut name, all[3])), OK);
    // SAFETY: the name of a function, which stays as long as the module.
    assert_eq!(unsafe { CStr::from_ptr(name) }, c"spin");
    let (mut offset, mut size) = (0, 0);
    let mut ask = |index| {
        let code = cu!(cuFuncGetParamInfo(
            fill,
            index,
            &raw mut offset,
            &raw mut size
        ));
        (code, offset, size)
    };
    assert_eq!(ask(1), (OK, 8, 4));
    assert_eq!(ask(2), (OK, 16, 8));
    assert_eq!(ask(3).0, INVALID_VALUE);
    let missing = |code| assert_eq!(code, NOT_FOUND);
    let (mut nothing, mut address, mut size) = (std::ptr::null_mut(), 0, 0);
    missing(cu!(cuModuleGetFunction(
        &raw mut nothing,
        module,
        c"no".as_ptr()
    )));
    missing(cu!(cuModuleGetGlobal_v2(
        &raw mut address,
        &raw mut size,
        module,
        c"table".as_ptr()
    )));
    assert_eq!(cu!(cuModuleUnload(module)), OK);
}

#[test]
fn functions_are_loaded_when_they_are_named_or_launched() {
    let _turn = turn();
    let module = module();
    let mut all = [std::ptr::null_mut(); 5];
    let code = cu!(cuModuleEnumerateFunctions(all.as_mut_ptr(), 5, module));
    assert_eq!((code, all.map(is_loaded)), (OK, [false; 5]));
    function(module, c"copy");
    assert_eq!(cu!(cuFuncLoad(all[2])), OK);
    assert_eq!(all.map(is_loaded), [false, true, true, false, false]);
    assert_eq!(cu!(cuModuleUnload(module)), OK);
}

#[test]
fn attributes_can_be_asked_and_some_be_set() {
    let _turn = turn();
    let module = module();
    let fill = function(module, c"fill");
    let ask = |id| {
        let mut value: c_int = -7;
        let code = cu!(cuFuncGetAttribute(
            &raw mut value,
            CUfunction_attribute(id),
            fill
        ));
        (code, value)
    };
    let set = |id, value| cu!(cuFuncSetAttribute(fill, CUfunction_attribute(id), value));
    assert_eq!([0, 5, 6].map(ask), [(OK, 1024), (OK, 70), (OK, 90)]);
    assert_eq!(ask(99), (INVALID_VALUE, -7));
    assert_eq!((ask(8), set(8, 227 << 10)), ((OK, 48 << 10), OK));
    assert_eq!(
        (ask(8), set(8, 228 << 10)),
        ((OK, 227 << 10), INVALID_VALUE)
    );
    assert_eq!(set(0, 64), INVALID_VALUE);
    assert_eq!(cu!(cuModuleUnload(module)), OK);
}

#[test]
fn what_the_linker_made_can_be_loaded() {
    let _turn = turn();
    let linker = || {
        let mut link = std::ptr::null_mut();
        let null = std::ptr::null_mut();
        let code = cu!(cuLinkCreate_v2(0, null, null.cast(), &raw mut link));
        assert_eq!(code, OK);
        link
    };
    let add = |link, text: &str| {
        let null = std::ptr::null_mut();
        let kind = CUjitInputType::CU_JIT_INPUT_PTX;
        let data = text.as_ptr().cast_mut().cast();
        let none = std::ptr::null();
        cu!(cuLinkAddData_v2(
            link,
            kind,
            data,
            text.len(),
            none,
            0,
            null,
            null.cast()
        ))
    };
    let link = linker();
    assert_eq!(add(link, KERNELS), OK);
    assert_eq!(
        add(link, ".version 7.0\n.target sm_70\n.entry more() { ret; }"),
        OK
    );
    let invalid = CUresult::CUDA_ERROR_INVALID_IMAGE;
    assert_eq!(add(link, "no ptx"), invalid);
    let (mut cubin, mut size) = (std::ptr::null_mut(), 0);
    assert_eq!(cu!(cuLinkComplete(link, &raw mut cubin, &raw mut size)), OK);
    assert!(size > KERNELS.len());
    let module = handle!(cuModuleLoadData(_, cubin.cast_const()));
    assert_eq!(control().live().links, 1);
    assert_eq!(cu!(cuLinkDestroy(link)), OK);
    assert_eq!(cu!(cuLinkDestroy(link)), INVALID_HANDLE);
    assert_eq!(get!(cuModuleGetFunctionCount(_, module)), 6_u32);
    function(module, c"more");
    assert_eq!(cu!(cuModuleUnload(module)), OK);
    let twice = linker();
    let refused = CUresult::CUDA_ERROR_INVALID_SOURCE;
    assert_eq!((add(twice, KERNELS), add(twice, KERNELS)), (OK, refused));
    let code = cu!(cuLinkComplete(twice, &raw mut cubin, &raw mut size));
    assert_eq!(code, refused);
    assert_eq!(cu!(cuLinkDestroy(twice)), OK);
}
