//! Modules, libraries and functions: their names, handles and contexts.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::code::{
    PTX, ended, function, is_loaded, kernel, launch, load, load_library, other_context, spin,
    try_function, try_function_of, try_kernel, try_load, try_load_library,
};
use crate::environment::{Environment, OK, cu, name};

/// Names that are not there.
pub(crate) fn names(env: &Environment) -> Result<()> {
    let (module, library) = (load(env)?, load_library(env)?);
    env.code("function, unknown", try_function(env, module, c"nothing").0);
    env.code("function, no name", try_function(env, module, c"").0);
    env.code("kernel, unknown", try_kernel(env, library, c"nothing").0);
    env.code("kernel, no name", try_kernel(env, library, c"").0);
    let (mut address, mut bytes) = (0, 0);
    let code = cu!(
        env,
        cuModuleGetGlobal_v2(
            &raw mut address,
            &raw mut bytes,
            module,
            c"nothing".as_ptr()
        )
    );
    env.code("variable, unknown", code);
    Ok(())
}

/// Handles that are null.
pub(crate) fn nulls(env: &Environment) -> Result<()> {
    let (module, library, kernel) = (
        std::ptr::null_mut(),
        std::ptr::null_mut(),
        std::ptr::null_mut(),
    );
    let none = std::ptr::null_mut();
    env.alone("module, unload", || {
        Ok(name(cu!(env, cuModuleUnload(module))))
    });
    env.alone("module, function", || {
        Ok(name(try_function(env, module, c"fill").0))
    });
    env.alone("library, unload", || {
        Ok(name(cu!(env, cuLibraryUnload(library))))
    });
    env.alone("library, kernel", || {
        Ok(name(try_kernel(env, library, c"fill").0))
    });
    env.alone("kernel, function", || {
        Ok(name(try_function_of(env, kernel).0))
    });
    env.alone("function, launch", || {
        let stream = env.stream()?;
        Ok(name(spin(env, none, stream, 1)))
    });
    env.alone("function, attribute", || {
        let mut value = 0;
        let attribute = CUfunction_attribute(0);
        let code = cu!(env, cuFuncGetAttribute(&raw mut value, attribute, none));
        Ok(name(code))
    });
    env.alone("argument of a launch", || {
        let (spins, stream) = (function(env, load(env)?, c"spin")?, env.stream()?);
        let mut arguments = [std::ptr::null_mut::<c_void>()];
        let code = launch(env, spins, [1, 1, 0], stream, arguments.as_mut_ptr());
        Ok(name(code))
    });
    Ok(())
}

/// Handles that were given back.
pub(crate) fn given_back(env: &Environment) -> Result<()> {
    let unloaded = || -> Result<(CUmodule, CUfunction)> {
        let module = load(env)?;
        let function = function(env, module, c"spin")?;
        env.fine("cuModuleUnload", cu!(env, cuModuleUnload(module)))?;
        Ok((module, function))
    };
    env.alone("module, unload", || {
        Ok(name(cu!(env, cuModuleUnload(unloaded()?.0))))
    });
    env.alone("module, function", || {
        Ok(name(try_function(env, unloaded()?.0, c"fill").0))
    });
    env.alone("function, launch", || {
        let (_, function) = unloaded()?;
        let stream = env.stream()?;
        Ok(name(spin(env, function, stream, 1)))
    });
    let closed = || -> Result<(CUlibrary, CUkernel)> {
        let library = load_library(env)?;
        let kernel = kernel(env, library, c"spin")?;
        env.fine("cuLibraryUnload", cu!(env, cuLibraryUnload(library)))?;
        Ok((library, kernel))
    };
    env.alone("library, unload", || {
        Ok(name(cu!(env, cuLibraryUnload(closed()?.0))))
    });
    env.alone("library, kernel", || {
        Ok(name(try_kernel(env, closed()?.0, c"fill").0))
    });
    env.alone("kernel, function", || {
        Ok(name(try_function_of(env, closed()?.1).0))
    });
    env.alone("the module of a library, unload", || {
        let library = load_library(env)?;
        let mut module = std::ptr::null_mut();
        let code = cu!(env, cuLibraryGetModule(&raw mut module, library));
        env.fine("cuLibraryGetModule", code)?;
        Ok(name(cu!(env, cuModuleUnload(module))))
    });
    Ok(())
}

/// Without a current context, and with another one than that of the code.
pub(crate) fn contexts(env: &Environment) -> Result<()> {
    let own = env.context();
    let other = other_context(env)?;
    for (what, current) in [("none", std::ptr::null_mut()), ("another", other)] {
        env.current(own)?;
        let (module, library) = (load(env)?, load_library(env)?);
        let spins = function(env, module, c"spin")?;
        let unused = load(env)?;
        env.current(current)?;
        let (code, made) = try_load(env, &ended(PTX));
        env.code(format!("module load, {what}"), code);
        if code == OK {
            env.code(
                format!("its unload, {what}"),
                cu!(env, cuModuleUnload(made)),
            );
        }
        env.code(
            format!("function, {what}"),
            try_function(env, module, c"fill").0,
        );
        let mut value = 0;
        let attribute = CUfunction_attribute(0);
        let code = cu!(env, cuFuncGetAttribute(&raw mut value, attribute, spins));
        env.code(format!("attribute, {what}"), code);
        env.say(format!("is loaded, {what}"), is_loaded(env, spins));
        env.code(
            format!("load of a function, {what}"),
            cu!(env, cuFuncLoad(spins)),
        );
        let mut blocks = 0;
        let code = cu!(
            env,
            cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, spins, 64, 0)
        );
        env.code(format!("occupancy, {what}"), code);
        env.code(
            format!("module unload, {what}"),
            cu!(env, cuModuleUnload(unused)),
        );
        let (code, made) = try_load_library(env, &ended(PTX));
        env.code(format!("library load, {what}"), code);
        let (code, spinning) = try_kernel(env, made, c"spin");
        env.code(format!("kernel, {what}"), code);
        env.code(
            format!("function of a kernel, {what}"),
            try_function_of(env, spinning).0,
        );
        let mut part = std::ptr::null_mut();
        let code = cu!(env, cuLibraryGetModule(&raw mut part, library));
        env.code(format!("module of a library, {what}"), code);
        let code = cu!(
            env,
            cuKernelGetAttribute(&raw mut value, attribute, spinning, 0)
        );
        env.code(format!("attribute of a kernel, {what}"), code);
        env.code(
            format!("library unload, {what}"),
            cu!(env, cuLibraryUnload(made)),
        );
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
        env.code(format!("linker, {what}"), code);
    }
    Ok(())
}

/// When code is on the device, and what it says of itself.
pub(crate) fn laziness(env: &Environment) -> Result<()> {
    let mut mode = CUmoduleLoadingMode(0);
    let code = cu!(env, cuModuleGetLoadingMode(&raw mut mode));
    env.say("mode", format!("{} {}", name(code), mode.0));
    let module = load(env)?;
    let mut count = 0;
    let code = cu!(env, cuModuleGetFunctionCount(&raw mut count, module));
    env.say("functions of a module", format!("{} {count}", name(code)));
    let mut all = vec![std::ptr::null_mut(); count as usize];
    let code = cu!(
        env,
        cuModuleEnumerateFunctions(all.as_mut_ptr(), count, module)
    );
    env.code("all of them", code);
    let states: Vec<String> = all
        .iter()
        .map(|function| is_loaded(env, *function))
        .collect();
    env.say("when enumerated", states.join(", "));
    let named = function(env, module, c"spin")?;
    env.say("when named", is_loaded(env, named));
    let library = load_library(env)?;
    let (code, of_kernel) = try_function_of(env, kernel(env, library, c"spin")?);
    env.code("function of a kernel", code);
    env.say("then", is_loaded(env, of_kernel));
    let stream = env.stream()?;
    env.code("launch", spin(env, of_kernel, stream, 1));
    env.say("when launched", is_loaded(env, of_kernel));
    env.synchronise(stream)?;
    for attribute in 0..=17 {
        let mut value = 0;
        let key = CUfunction_attribute(attribute);
        let code = cu!(env, cuFuncGetAttribute(&raw mut value, key, named));
        env.say(
            format!("attribute {attribute}"),
            format!("{} {value}", name(code)),
        );
    }
    Ok(())
}
