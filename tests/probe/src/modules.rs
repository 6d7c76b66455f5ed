//! Modules, libraries and functions: their names, handles and contexts.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::code::{
    PTX, ended, function, is_loaded, kernel, launch, load, load_library, other_context, spin,
    try_function, try_function_of, try_kernel, try_load, try_load_library,
};
use crate::lab::{Lab, OK, cu, name};

/// Names that are not there.
pub(crate) fn names(lab: &Lab) -> Result<()> {
    let (module, library) = (load(lab)?, load_library(lab)?);
    lab.code("function, unknown", try_function(lab, module, c"nothing").0);
    lab.code("function, no name", try_function(lab, module, c"").0);
    lab.code("kernel, unknown", try_kernel(lab, library, c"nothing").0);
    lab.code("kernel, no name", try_kernel(lab, library, c"").0);
    let (mut address, mut bytes) = (0, 0);
    let code = cu!(
        lab,
        cuModuleGetGlobal_v2(
            &raw mut address,
            &raw mut bytes,
            module,
            c"nothing".as_ptr()
        )
    );
    lab.code("variable, unknown", code);
    Ok(())
}

/// Handles that are null.
pub(crate) fn nulls(lab: &Lab) -> Result<()> {
    let (module, library, kernel) = (
        std::ptr::null_mut(),
        std::ptr::null_mut(),
        std::ptr::null_mut(),
    );
    let none = std::ptr::null_mut();
    lab.alone("module, unload", || {
        Ok(name(cu!(lab, cuModuleUnload(module))))
    });
    lab.alone("module, function", || {
        Ok(name(try_function(lab, module, c"fill").0))
    });
    lab.alone("library, unload", || {
        Ok(name(cu!(lab, cuLibraryUnload(library))))
    });
    lab.alone("library, kernel", || {
        Ok(name(try_kernel(lab, library, c"fill").0))
    });
    lab.alone("kernel, function", || {
        Ok(name(try_function_of(lab, kernel).0))
    });
    lab.alone("function, launch", || {
        let stream = lab.stream()?;
        Ok(name(spin(lab, none, stream, 1)))
    });
    lab.alone("function, attribute", || {
        let mut value = 0;
        let attribute = CUfunction_attribute(0);
        let code = cu!(lab, cuFuncGetAttribute(&raw mut value, attribute, none));
        Ok(name(code))
    });
    lab.alone("argument of a launch", || {
        let (spins, stream) = (function(lab, load(lab)?, c"spin")?, lab.stream()?);
        let mut arguments = [std::ptr::null_mut::<c_void>()];
        let code = launch(lab, spins, [1, 1, 0], stream, arguments.as_mut_ptr());
        Ok(name(code))
    });
    Ok(())
}

/// Handles that were given back.
pub(crate) fn given_back(lab: &Lab) -> Result<()> {
    let unloaded = || -> Result<(CUmodule, CUfunction)> {
        let module = load(lab)?;
        let function = function(lab, module, c"spin")?;
        lab.fine("cuModuleUnload", cu!(lab, cuModuleUnload(module)))?;
        Ok((module, function))
    };
    lab.alone("module, unload", || {
        Ok(name(cu!(lab, cuModuleUnload(unloaded()?.0))))
    });
    lab.alone("module, function", || {
        Ok(name(try_function(lab, unloaded()?.0, c"fill").0))
    });
    lab.alone("function, launch", || {
        let (_, function) = unloaded()?;
        let stream = lab.stream()?;
        Ok(name(spin(lab, function, stream, 1)))
    });
    let closed = || -> Result<(CUlibrary, CUkernel)> {
        let library = load_library(lab)?;
        let kernel = kernel(lab, library, c"spin")?;
        lab.fine("cuLibraryUnload", cu!(lab, cuLibraryUnload(library)))?;
        Ok((library, kernel))
    };
    lab.alone("library, unload", || {
        Ok(name(cu!(lab, cuLibraryUnload(closed()?.0))))
    });
    lab.alone("library, kernel", || {
        Ok(name(try_kernel(lab, closed()?.0, c"fill").0))
    });
    lab.alone("kernel, function", || {
        Ok(name(try_function_of(lab, closed()?.1).0))
    });
    lab.alone("the module of a library, unload", || {
        let library = load_library(lab)?;
        let mut module = std::ptr::null_mut();
        let code = cu!(lab, cuLibraryGetModule(&raw mut module, library));
        lab.fine("cuLibraryGetModule", code)?;
        Ok(name(cu!(lab, cuModuleUnload(module))))
    });
    Ok(())
}

/// Without a current context, and with another one than that of the code.
pub(crate) fn contexts(lab: &Lab) -> Result<()> {
    let own = lab.context();
    let other = other_context(lab)?;
    for (what, current) in [("none", std::ptr::null_mut()), ("another", other)] {
        lab.current(own)?;
        let (module, library) = (load(lab)?, load_library(lab)?);
        let spins = function(lab, module, c"spin")?;
        let unused = load(lab)?;
        lab.current(current)?;
        let (code, made) = try_load(lab, &ended(PTX));
        lab.code(format!("module load, {what}"), code);
        if code == OK {
            lab.code(
                format!("its unload, {what}"),
                cu!(lab, cuModuleUnload(made)),
            );
        }
        lab.code(
            format!("function, {what}"),
            try_function(lab, module, c"fill").0,
        );
        let mut value = 0;
        let attribute = CUfunction_attribute(0);
        let code = cu!(lab, cuFuncGetAttribute(&raw mut value, attribute, spins));
        lab.code(format!("attribute, {what}"), code);
        lab.say(format!("is loaded, {what}"), is_loaded(lab, spins));
        lab.code(
            format!("load of a function, {what}"),
            cu!(lab, cuFuncLoad(spins)),
        );
        let mut blocks = 0;
        let code = cu!(
            lab,
            cuOccupancyMaxActiveBlocksPerMultiprocessor(&raw mut blocks, spins, 64, 0)
        );
        lab.code(format!("occupancy, {what}"), code);
        lab.code(
            format!("module unload, {what}"),
            cu!(lab, cuModuleUnload(unused)),
        );
        let (code, made) = try_load_library(lab, &ended(PTX));
        lab.code(format!("library load, {what}"), code);
        let (code, spinning) = try_kernel(lab, made, c"spin");
        lab.code(format!("kernel, {what}"), code);
        lab.code(
            format!("function of a kernel, {what}"),
            try_function_of(lab, spinning).0,
        );
        let mut part = std::ptr::null_mut();
        let code = cu!(lab, cuLibraryGetModule(&raw mut part, library));
        lab.code(format!("module of a library, {what}"), code);
        let code = cu!(
            lab,
            cuKernelGetAttribute(&raw mut value, attribute, spinning, 0)
        );
        lab.code(format!("attribute of a kernel, {what}"), code);
        lab.code(
            format!("library unload, {what}"),
            cu!(lab, cuLibraryUnload(made)),
        );
        let mut linker = std::ptr::null_mut();
        let code = cu!(
            lab,
            cuLinkCreate_v2(
                0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                &raw mut linker
            )
        );
        lab.code(format!("linker, {what}"), code);
    }
    Ok(())
}

/// When code is on the device, and what it says of itself.
pub(crate) fn laziness(lab: &Lab) -> Result<()> {
    let mut mode = CUmoduleLoadingMode(0);
    let code = cu!(lab, cuModuleGetLoadingMode(&raw mut mode));
    lab.say("mode", format!("{} {}", name(code), mode.0));
    let module = load(lab)?;
    let mut count = 0;
    let code = cu!(lab, cuModuleGetFunctionCount(&raw mut count, module));
    lab.say("functions of a module", format!("{} {count}", name(code)));
    let mut all = vec![std::ptr::null_mut(); count as usize];
    let code = cu!(
        lab,
        cuModuleEnumerateFunctions(all.as_mut_ptr(), count, module)
    );
    lab.code("all of them", code);
    let states: Vec<String> = all
        .iter()
        .map(|function| is_loaded(lab, *function))
        .collect();
    lab.say("when enumerated", states.join(", "));
    let named = function(lab, module, c"spin")?;
    lab.say("when named", is_loaded(lab, named));
    let library = load_library(lab)?;
    let (code, of_kernel) = try_function_of(lab, kernel(lab, library, c"spin")?);
    lab.code("function of a kernel", code);
    lab.say("then", is_loaded(lab, of_kernel));
    let stream = lab.stream()?;
    lab.code("launch", spin(lab, of_kernel, stream, 1));
    lab.say("when launched", is_loaded(lab, of_kernel));
    lab.synchronise(stream)?;
    for attribute in 0..=17 {
        let mut value = 0;
        let key = CUfunction_attribute(attribute);
        let code = cu!(lab, cuFuncGetAttribute(&raw mut value, key, named));
        lab.say(
            format!("attribute {attribute}"),
            format!("{} {value}", name(code)),
        );
    }
    Ok(())
}
