//! Machine code: cubins for this device and for others.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::code::{PTX, ended, try_function, try_kernel, try_load, try_load_library, word};
use crate::environment::{Environment, OK, cu, name};

/// What `ptxas` makes of `tests/data/bump.ptx` for a device of compute capability 9.0, and of 8.0.
const CUBIN: &[u8] = include_bytes!("../../data/bump-sm_90.cubin");
const OLDER: &[u8] = include_bytes!("../../data/bump-sm_80.cubin");

/// What is taken for a cubin.
pub(crate) fn images(env: &Environment) -> Result<()> {
    // That of the device, and the byte that holds the compute capability.
    let mut other = CUBIN.to_vec();
    other[49] = 100;
    let mut later = CUBIN.to_vec();
    later[49] = 91;
    for (what, image) in [
        ("own", CUBIN),
        ("an older device", OLDER),
        ("a newer device", &other),
        ("a newer minor version", &later),
    ] {
        env.code(format!("module, {what}"), try_load(env, image).0);
        let (code, library) = try_load_library(env, image);
        env.code(format!("library, {what}"), code);
        if code == OK {
            let code = try_kernel(env, library, c"bump").0;
            env.code(format!("kernel of it, {what}"), code);
        }
    }
    Ok(())
}

/// Images that are no cubin, but begin as one. Some crash, so each is loaded in a process of its own.
pub(crate) fn odd(env: &Environment) -> Result<()> {
    let mut machine = CUBIN.to_vec();
    machine[18..20].copy_from_slice(&62_u16.to_le_bytes());
    let mut wide = CUBIN.to_vec();
    wide[4] = 1;
    for (what, image) in [("another processor", &machine), ("32 bits", &wide)] {
        env.alone(what, || Ok(name(try_load(env, image).0)));
    }
    Ok(())
}

/// What is known of its kernel and its variables.
pub(crate) fn contents(env: &Environment) -> Result<()> {
    let (code, module) = try_load(env, CUBIN);
    env.fine("cuModuleLoadData", code)?;
    let mut count = 77;
    let code = cu!(env, cuModuleGetFunctionCount(&raw mut count, module));
    env.say("functions", format!("{} {count}", name(code)));
    let (code, bump) = try_function(env, module, c"bump");
    env.code("function", code);
    env.code("function, unknown", try_function(env, module, c"fill").0);
    for index in 0..4 {
        let (mut offset, mut size) = (77, 77);
        let code = cu!(
            env,
            cuFuncGetParamInfo(bump, index, &raw mut offset, &raw mut size)
        );
        env.say(
            format!("parameter {index}"),
            match code {
                OK => format!("{size} B at {offset}"),
                code => name(code),
            },
        );
    }
    // Threads of a block, shared and local memory, versions of PTX and of the binary, dynamic shared memory.
    for attribute in [0, 1, 3, 5, 6, 8] {
        let mut value = 0;
        let key = CUfunction_attribute(attribute);
        let code = cu!(env, cuFuncGetAttribute(&raw mut value, key, bump));
        env.say(
            format!("attribute {attribute}"),
            format!("{} {value}", name(code)),
        );
    }
    for of in [c"counter", c"table", c"zero", c"scale", c"tile"] {
        let (mut address, mut bytes) = (0, 0);
        let (at, len) = (&raw mut address, &raw mut bytes);
        let code = cu!(env, cuModuleGetGlobal_v2(at, len, module, of.as_ptr()));
        let of = of.to_string_lossy();
        env.say(format!("variable {of}"), format!("{} {bytes}", name(code)));
        if code == OK {
            env.say(format!("word of {of}"), word(env, address));
        }
    }
    Ok(())
}

/// The linker with a cubin.
pub(crate) fn links(env: &Environment) -> Result<()> {
    let (keys, values) = (std::ptr::null_mut(), std::ptr::null_mut());
    for (what, images) in [
        ("alone", vec![CUBIN.to_vec()]),
        ("an older device", vec![OLDER.to_vec()]),
        ("with a text", vec![ended(PTX), CUBIN.to_vec()]),
    ] {
        let mut linker = std::ptr::null_mut();
        let code = cu!(
            env,
            cuLinkCreate_v2(
                0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                &raw mut linker
            )
        );
        env.fine("cuLinkCreate", code)?;
        for mut image in images {
            let kind = if image.starts_with(b"\x7fELF") {
                CUjitInputType::CU_JIT_INPUT_CUBIN
            } else {
                CUjitInputType::CU_JIT_INPUT_PTX
            };
            let (data, bytes) = (image.as_mut_ptr().cast(), image.len());
            let label = c"an image".as_ptr();
            let code = cu!(
                env,
                cuLinkAddData_v2(linker, kind, data, bytes, label, 0, keys, values)
            );
            env.code(
                format!(
                    "add {}, {what}",
                    if kind == CUjitInputType::CU_JIT_INPUT_PTX {
                        "text"
                    } else {
                        "cubin"
                    }
                ),
                code,
            );
        }
        let (mut data, mut bytes) = (std::ptr::null_mut(), 0);
        let code = cu!(env, cuLinkComplete(linker, &raw mut data, &raw mut bytes));
        env.code(format!("complete, {what}"), code);
        if code == OK {
            // SAFETY: the linker keeps what it made until it is destroyed, and told its bytes.
            let made = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) }.to_vec();
            let (code, module) = try_load(env, &made);
            env.code(format!("module of it, {what}"), code);
            if code == OK {
                env.code(
                    format!("function of it, {what}"),
                    try_function(env, module, c"bump").0,
                );
            }
        }
        env.fine("cuLinkDestroy", cu!(env, cuLinkDestroy(linker)))?;
    }
    Ok(())
}
