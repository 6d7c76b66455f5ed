//! Variables of modules and libraries, in texts and cubins, and the models that use them.

use std::ffi::CStr;

use cuda_driver_sys::*;

use crate::harness::*;
use crate::launches::launch;
use crate::modules::{function, image, library_of, try_module};

const CUBIN: &[u8] = include_bytes!("../../data/bump-sm_90.cubin");
const TEXT: &str = include_str!("../../data/bump.ptx");
const MANAGED: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .global .attribute(.managed) .align 4 .u32 shared = 13;
.visible .global .align 4 .u32 own = 14;
.visible .entry nothing() { ret; }
";

const NOT_FOUND: CUresult = CUresult::CUDA_ERROR_NOT_FOUND;

fn variable(module: CUmodule, of: &CStr) -> Result<(CUdeviceptr, usize), CUresult> {
    let (mut at, mut len) = (0, 0);
    let code = cu!(cuModuleGetGlobal_v2(
        &raw mut at,
        &raw mut len,
        module,
        of.as_ptr()
    ));
    if code == OK { Ok((at, len)) } else { Err(code) }
}

fn word(at: CUdeviceptr) -> Result<u32, CUresult> {
    let mut word = 0_u32;
    match cu!(cuMemcpyDtoH_v2((&raw mut word).cast(), at, 4)) {
        OK => Ok(word),
        code => Err(code),
    }
}

fn cubin() -> CUmodule {
    let mut module = std::ptr::null_mut();
    let code = cu!(cuModuleLoadData(&raw mut module, CUBIN.as_ptr().cast()));
    assert_eq!(code, OK);
    module
}

#[test]
fn a_text_and_its_cubin_have_the_same_variables() {
    let _turn = turn();
    let before = control().live();
    let modules = [try_module(&image(TEXT)).expect("loads"), cubin()];
    for module in modules {
        let sizes = [c"counter", c"table", c"zero", c"scale", c"tile", c"bump"].map(|of| {
            let (at, len) = variable(module, of)?;
            Ok((len, word(at)?))
        });
        let table = u32::from_le_bytes([1, 2, 3, 4]);
        let invalid = INVALID_VALUE;
        let expected = [
            Ok((4, 7)),
            Ok((1000, table)),
            Ok((4, 0)),
            Ok((4, 5)),
            Err(NOT_FOUND),
            Err(invalid),
        ];
        assert_eq!(sizes, expected);
    }
    let live = control().live();
    assert_eq!(
        (live.allocations, live.bytes),
        (before.allocations, before.bytes)
    );
    for module in modules {
        let (at, _) = variable(module, c"counter").expect("there");
        assert_eq!(cu!(cuMemFree_v2(at)), INVALID_VALUE);
        assert_eq!(word(at), Ok(7));
        assert_eq!(cu!(cuModuleUnload(module)), OK);
        assert_eq!(word(at), Err(INVALID_VALUE));
    }
    control().reset();
}

#[test]
fn a_model_takes_the_place_of_machine_code_and_uses_its_variables() {
    let fixture = Fixture::new();
    let module = cubin();
    control().kernel("bump", |launch| {
        let (counter, _) = launch.variable("counter")?;
        let (scale, bytes) = launch.variable("scale")?;
        if bytes != 4 || launch.variable("tile").is_ok() {
            return Err(cuda_sim::LaunchError::other(
                "other variables than declared",
            ));
        }
        let sum = launch.read::<u32>(counter, 1)?[0] + launch.read::<u32>(scale, 1)?[0];
        launch.write(counter, &[sum])?;
        launch.write(launch.argument(0)?, &[sum])
    });
    let to = fixture.alloc(4);
    let bump = function(module, c"bump");
    for _ in 0..2 {
        assert_eq!(launch(bump, [1, 1], fixture.stream, [to, 0, 0, 0]), OK);
    }
    synchronise(fixture.stream);
    assert_eq!(word(to), Ok(17));
    let (counter, _) = variable(module, c"counter").expect("there");
    assert_eq!(word(counter), Ok(17));
    // A launch takes at most the threads that the cubin names.
    let code = launch(bump, [1, 129], fixture.stream, [to, 0, 0, 0]);
    assert_eq!(code, INVALID_VALUE);
    fixture.free(to);
    assert_eq!(cu!(cuModuleUnload(module)), OK);
    assert_eq!(control().reports(), Vec::<String>::new());
    assert!(control().remove_kernel("bump"));
}

#[test]
fn managed_variables_of_a_library_are_the_same_in_every_context() {
    let _turn = turn();
    let before = control().live();
    let library = library_of(MANAGED);
    let managed = |of: &CStr| {
        let mut at = 0;
        let len = std::ptr::null_mut();
        match cu!(cuLibraryGetManaged(&raw mut at, len, library, of.as_ptr())) {
            OK => Ok(at),
            code => Err(code),
        }
    };
    let global = |of: &CStr| {
        let mut at = 0;
        let len = std::ptr::null_mut();
        match cu!(cuLibraryGetGlobal(&raw mut at, len, library, of.as_ptr())) {
            OK => Ok(at),
            code => Err(code),
        }
    };
    let shared = managed(c"shared").expect("there");
    assert_eq!(word(shared), Ok(13));
    assert_eq!(global(c"shared"), Ok(shared));
    assert_eq!(managed(c"own"), Err(NOT_FOUND));
    let own = global(c"own").expect("there");
    assert_eq!(cu!(cuMemFree_v2(shared)), INVALID_VALUE);
    assert_eq!(cu!(cuMemFree_v2(own)), INVALID_VALUE);
    let mut other = std::ptr::null_mut();
    assert_eq!(cu!(cuCtxCreate_v2(&raw mut other, 0, 0)), OK);
    assert_eq!(global(c"shared"), Ok(shared));
    assert_ne!(global(c"own"), Ok(own));
    assert_eq!(cu!(cuCtxDestroy_v2(other)), OK);
    assert_eq!(word(shared), Ok(13));
    assert_eq!(word(own), Ok(14));
    assert_eq!(cu!(cuLibraryUnload(library)), OK);
    assert_eq!([shared, own].map(word), [Err(INVALID_VALUE); 2]);
    assert_eq!(control().live(), before);
    control().reset();
}
