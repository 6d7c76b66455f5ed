//! Variables of modules and libraries.

use std::ffi::{CStr, c_void};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::code::{
    PTX, ended, kernel, other_context, try_kernel, try_load, try_load_library, word,
};
use crate::environment::{Environment, OK, cu, name, yes};

const VARIABLES: &str = "
.visible .global .align 4 .u32 counter = 7;
.visible .global .align 16 .b8 table[1000] = {1, 2, 3, 4};
.visible .global .align 8 .f64 pair[2];
.visible .global .align 4 .u32 rows[2][3] = {{1, 2, 3}, {4, 5, 6}};
.visible .global .align 8 .v2 .u32 vector = {8, 9};
.visible .global .align 4 .u32 first = 21, second = 0x16;
.global .align 4 .u32 hidden = 11;
.visible .const .align 4 .u32 scale = 5;
";

/// A variable that the host may use, too. Its module cannot be loaded on all devices, so it has a text of its own.
const MANAGED: &str = "
.visible .global .attribute(.managed) .align 4 .u32 shared = 13;
";

const NAMES: [&CStr; 11] = [
    c"counter", c"table", c"pair", c"rows", c"vector", c"first", c"second", c"hidden", c"scale",
    c"fill", c"",
];

fn with(variables: &str) -> Vec<u8> {
    ended(&format!("{PTX}{variables}"))
}

fn module(env: &Environment) -> Result<CUmodule> {
    let (code, module) = try_load(env, &with(VARIABLES));
    env.fine("cuModuleLoadData", code)?;
    Ok(module)
}

fn library(env: &Environment) -> Result<CUlibrary> {
    let (code, library) = try_load_library(env, &with(VARIABLES));
    env.fine("cuLibraryLoadData", code)?;
    Ok(library)
}

fn try_variable(env: &Environment, module: CUmodule, of: &CStr) -> (CUresult, CUdeviceptr, usize) {
    let (mut address, mut bytes) = (0, 0);
    let (at, len) = (&raw mut address, &raw mut bytes);
    let code = cu!(env, cuModuleGetGlobal_v2(at, len, module, of.as_ptr()));
    (code, address, bytes)
}

fn variable(env: &Environment, module: CUmodule, of: &CStr) -> Result<CUdeviceptr> {
    let (code, address, _) = try_variable(env, module, of);
    env.fine("cuModuleGetGlobal", code)?;
    Ok(address)
}

fn try_variable_of(
    env: &Environment,
    library: CUlibrary,
    of: &CStr,
) -> (CUresult, CUdeviceptr, usize) {
    let (mut address, mut bytes) = (0, 0);
    let (at, len) = (&raw mut address, &raw mut bytes);
    let code = cu!(env, cuLibraryGetGlobal(at, len, library, of.as_ptr()));
    (code, address, bytes)
}

fn try_managed_of(
    env: &Environment,
    library: CUlibrary,
    of: &CStr,
) -> (CUresult, CUdeviceptr, usize) {
    let (mut address, mut bytes) = (0, 0);
    let (at, len) = (&raw mut address, &raw mut bytes);
    let code = cu!(env, cuLibraryGetManaged(at, len, library, of.as_ptr()));
    (code, address, bytes)
}

fn answer((code, address, bytes): (CUresult, CUdeviceptr, usize)) -> String {
    match code {
        OK => format!("{bytes} B, null {}", yes(address == 0)),
        code => name(code),
    }
}

/// Attributes of a pointer with 8 bytes or fewer: context, memory type, device pointer, host pointer, managed, ordinal, IPC of
/// the runtime, range start, range size, mapped, allowed handles, GPUDirect, access flags, pool.
fn attributes(env: &Environment, at: CUdeviceptr) -> String {
    let values = [1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17].map(|attribute| {
        let mut value = 0_u64;
        let key = CUpointer_attribute(attribute);
        let place = (&raw mut value).cast::<c_void>();
        match cu!(env, cuPointerGetAttribute(place, key, at)) {
            OK if attribute == 1 => match value {
                0 => "no context".into(),
                own if own == env.context() as u64 => "own context".into(),
                _ => "another context".into(),
            },
            OK if attribute == 11 => format!("{} before", at.wrapping_sub(value)),
            OK if value == at => "itself".into(),
            OK => value.to_string(),
            code => name(code),
        }
    });
    values.join(", ")
}

/// Where the range of an address begins, and its bytes.
fn range(env: &Environment, at: CUdeviceptr) -> String {
    let (mut base, mut bytes) = (0, 0);
    let (start, len) = (&raw mut base, &raw mut bytes);
    match cu!(env, cuMemGetAddressRange_v2(start, len, at)) {
        OK => format!("{} before, {bytes} B", at.wrapping_sub(base)),
        code => name(code),
    }
}

/// Names and sizes, and which results may be left out.
pub(crate) fn names(env: &Environment) -> Result<()> {
    let (module, library) = (module(env)?, library(env)?);
    for of in NAMES {
        let name = of.to_string_lossy();
        env.say(
            format!("module, {name}"),
            answer(try_variable(env, module, of)),
        );
        env.say(
            format!("library, {name}"),
            answer(try_variable_of(env, library, of)),
        );
        env.say(
            format!("managed of the library, {name}"),
            answer(try_managed_of(env, library, of)),
        );
    }
    let (mut address, mut bytes) = (0, 0);
    let (at, len) = (&raw mut address, &raw mut bytes);
    let (no_address, no_bytes) = (std::ptr::null_mut(), std::ptr::null_mut());
    let text = c"counter".as_ptr();
    for (what, at, len) in [
        ("address", at, no_bytes),
        ("bytes", no_address, len),
        ("nothing", no_address, no_bytes),
    ] {
        let code = cu!(env, cuModuleGetGlobal_v2(at, len, module, text));
        env.code(format!("module, {what} alone"), code);
        let code = cu!(env, cuLibraryGetGlobal(at, len, library, text));
        env.code(format!("library, {what} alone"), code);
    }
    let code = cu!(env, cuModuleGetGlobal_v2(at, len, module, std::ptr::null()));
    env.code("module, null name", code);
    let code = cu!(env, cuLibraryGetGlobal(at, len, library, std::ptr::null()));
    env.code("library, null name", code);
    let (_, wrong) = try_load_library(env, &ended(&format!("{PTX}\nno text;\n")));
    env.code(
        "variable of a wrong library",
        try_variable_of(env, wrong, c"counter").0,
    );
    let mut count = 77;
    let code = cu!(env, cuModuleGetFunctionCount(&raw mut count, module));
    env.say("functions", format!("{} {count}", name(code)));
    Ok(())
}

/// Handles that are null or given back, each in a process of its own.
pub(crate) fn odd(env: &Environment) -> Result<()> {
    env.alone("null module", || {
        Ok(name(try_variable(env, std::ptr::null_mut(), c"counter").0))
    });
    env.alone("null library", || {
        Ok(name(
            try_variable_of(env, std::ptr::null_mut(), c"counter").0,
        ))
    });
    env.alone("null library, managed", || {
        Ok(name(try_managed_of(env, std::ptr::null_mut(), c"shared").0))
    });
    env.alone("free", || {
        let at = variable(env, module(env)?, c"counter")?;
        Ok(name(cu!(env, cuMemFree_v2(at))))
    });
    env.alone("free in stream order", || {
        let at = variable(env, module(env)?, c"counter")?;
        Ok(name(cu!(env, cuMemFreeAsync(at, env.stream()?))))
    });
    let unloaded = || -> Result<CUdeviceptr> {
        let module = module(env)?;
        let at = variable(env, module, c"counter")?;
        env.fine("cuModuleUnload", cu!(env, cuModuleUnload(module)))?;
        Ok(at)
    };
    env.alone("attributes after the unload", || {
        Ok(attributes(env, unloaded()?))
    });
    env.alone("word after the unload", || Ok(word(env, unloaded()?)));
    Ok(())
}

/// What is in them, and who may write to them.
pub(crate) fn contents(env: &Environment) -> Result<()> {
    let module = module(env)?;
    for of in &NAMES[..9] {
        let name = of.to_string_lossy();
        if let (OK, at, _) = try_variable(env, module, of) {
            env.say(name, word(env, at));
        }
    }
    let rows = variable(env, module, c"rows")?;
    env.say("the last of rows", word(env, rows + 20));
    let vector = variable(env, module, c"vector")?;
    env.say("the last of vector", word(env, vector + 4));
    let table = variable(env, module, c"table")?;
    env.say("the last of table", word(env, table + 996));
    for of in [c"counter", c"scale"] {
        let (at, text) = (variable(env, module, of)?, of.to_string_lossy());
        let value = 40_u32;
        let code = cu!(
            env,
            cuMemcpyHtoD_v2(at, (&raw const value).cast::<c_void>(), 4)
        );
        env.code(format!("copy to {text}"), code);
        env.say(format!("{text} then"), word(env, at));
        env.code(
            format!("fill of {text}"),
            cu!(env, cuMemsetD32_v2(at, 41, 1)),
        );
        env.say(format!("{text} after it"), word(env, at));
        let stream = env.stream()?;
        let code = cu!(env, cuMemcpyDtoDAsync_v2(at, table, 4, stream));
        env.code(format!("copy from table to {text}"), code);
        env.say(format!("{text} in the end"), word(env, at));
    }
    let mut bytes = vec![0_u8; 1000];
    let to = bytes.as_mut_ptr().cast::<c_void>();
    env.code("all of table", cu!(env, cuMemcpyDtoH_v2(to, table, 1000)));
    env.say("it begins with", format!("{:?}", &bytes[..5]));
    let second = self::module(env)?;
    let other = variable(env, second, c"counter")?;
    let at = variable(env, module, c"counter")?;
    env.say("another module has its own", yes(at != other));
    env.say("and its own contents", word(env, other));
    env.say(
        "named twice, the same",
        yes(at == variable(env, module, c"counter")?),
    );
    Ok(())
}

/// What is said of their addresses.
pub(crate) fn pointers(env: &Environment) -> Result<()> {
    let module = module(env)?;
    for of in [c"counter", c"table", c"scale"] {
        let (at, text) = (variable(env, module, of)?, of.to_string_lossy());
        env.say(format!("attributes of {text}"), attributes(env, at));
        env.say(format!("range of {text}"), range(env, at));
    }
    let table = variable(env, module, c"table")?;
    env.say("attributes of a part", attributes(env, table + 8));
    let mut bytes = vec![0_u8; 1004];
    let to = bytes.as_mut_ptr().cast::<c_void>();
    env.code(
        "copy past the end",
        cu!(env, cuMemcpyDtoH_v2(to, table, 1004)),
    );
    Ok(())
}

/// Without a current context, and with another one.
pub(crate) fn contexts(env: &Environment) -> Result<()> {
    let own = env.context();
    let other = other_context(env)?;
    for (what, current) in [("none", std::ptr::null_mut()), ("another", other)] {
        env.current(own)?;
        let (module, library) = (module(env)?, library(env)?);
        let its = try_variable_of(env, library, c"counter").1;
        let mut part = std::ptr::null_mut();
        let code = cu!(env, cuLibraryGetModule(&raw mut part, library));
        env.fine("cuLibraryGetModule", code)?;
        env.say(
            format!("that of the library's module is the same, {what}"),
            yes(its == variable(env, part, c"counter")?),
        );
        env.current(current)?;
        env.say(
            format!("module, {what}"),
            answer(try_variable(env, module, c"counter")),
        );
        let (code, address, bytes) = try_variable_of(env, library, c"counter");
        env.say(format!("library, {what}"), answer((code, address, bytes)));
        env.say(format!("the same as before, {what}"), yes(address == its));
        let (_, fresh) = try_load_library(env, &with(VARIABLES));
        env.say(
            format!("new library, {what}"),
            answer(try_variable_of(env, fresh, c"counter")),
        );
    }
    Ok(())
}

/// Variables that the host may use, too.
pub(crate) fn managed(env: &Environment) -> Result<()> {
    let (code, module) = try_load(env, &with(MANAGED));
    env.code("module", code);
    let (code, library) = try_load_library(env, &with(MANAGED));
    env.code("library", code);
    let found = try_variable(env, module, c"shared");
    env.say("variable of the module", answer(found));
    env.say("attributes", attributes(env, found.1));
    env.say("word", word(env, found.1));
    let named = try_variable_of(env, library, c"shared");
    env.say("variable of the library", answer(named));
    let found = try_managed_of(env, library, c"shared");
    env.say("managed of the library", answer(found));
    env.say("the same", yes(named.1 == found.1));
    if found.0 == OK {
        env.say("attributes of that", attributes(env, found.1));
        env.say("word of that", word(env, found.1));
        env.say("range of that", range(env, found.1));
    }
    let (mut address, mut bytes) = (0, 0);
    let (at, len) = (&raw mut address, &raw mut bytes);
    let (no_address, no_bytes) = (std::ptr::null_mut(), std::ptr::null_mut());
    let text = c"shared".as_ptr();
    for (what, at, len) in [
        ("address", at, no_bytes),
        ("bytes", no_address, len),
        ("nothing", no_address, no_bytes),
    ] {
        let code = cu!(env, cuLibraryGetManaged(at, len, library, text));
        env.code(format!("managed, {what} alone"), code);
    }
    env.no_context()?;
    env.say(
        "managed of the library, no context",
        answer(try_managed_of(env, library, c"shared")),
    );
    Ok(())
}

/// Recorded streams: which call may be made meanwhile.
pub(crate) fn captures(env: &Environment) -> Result<()> {
    let (module, library) = (module(env)?, library(env)?);
    let stream = env.stream()?;
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    let code = cu!(env, cuStreamBeginCapture_v2(stream, mode));
    env.fine("cuStreamBeginCapture", code)?;
    env.say("module", answer(try_variable(env, module, c"counter")));
    env.say(
        "library, first use",
        answer(try_variable_of(env, library, c"counter")),
    );
    env.say(
        "library, second use",
        answer(try_variable_of(env, library, c"counter")),
    );
    let mut graph = std::ptr::null_mut();
    let code = cu!(env, cuStreamEndCapture(stream, &raw mut graph));
    env.code("end", code);
    Ok(())
}

/// Preferences of functions and kernels.
pub(crate) fn preferences(env: &Environment) -> Result<()> {
    let library = library(env)?;
    let spins = kernel(env, library, c"spin")?;
    let mut function = std::ptr::null_mut();
    let code = cu!(env, cuKernelGetFunction(&raw mut function, spins));
    env.fine("cuKernelGetFunction", code)?;
    for value in [0, 1, 2, 3, 4, 77] {
        let code = cu!(env, cuFuncSetCacheConfig(function, CUfunc_cache(value)));
        env.code(format!("cache {value}"), code);
        let code = cu!(env, cuKernelSetCacheConfig(spins, CUfunc_cache(value), 0));
        env.code(format!("cache of a kernel {value}"), code);
        let code = cu!(
            env,
            cuFuncSetSharedMemConfig(function, CUsharedconfig(value))
        );
        env.code(format!("banks {value}"), code);
    }
    env.current(std::ptr::null_mut())?;
    let code = cu!(env, cuFuncSetCacheConfig(function, CUfunc_cache(1)));
    env.code("cache, no context", code);
    let code = cu!(env, cuFuncSetSharedMemConfig(function, CUsharedconfig(1)));
    env.code("banks, no context", code);
    let code = cu!(env, cuKernelSetCacheConfig(spins, CUfunc_cache(1), 0));
    env.code("cache of a kernel, no context", code);
    let code = cu!(env, cuKernelSetCacheConfig(spins, CUfunc_cache(1), 99));
    env.code("cache of a kernel, no such device", code);
    let (code, none) = try_kernel(env, library, c"nothing");
    env.code("kernel, unknown", code);
    env.say("its handle is null", yes(none.is_null()));
    Ok(())
}

/// Preferences of null.
pub(crate) fn preferences_of_null(env: &Environment) -> Result<()> {
    env.alone("cache", || {
        let none = std::ptr::null_mut();
        Ok(name(cu!(env, cuFuncSetCacheConfig(none, CUfunc_cache(1)))))
    });
    env.alone("banks", || {
        let none = std::ptr::null_mut();
        let code = cu!(env, cuFuncSetSharedMemConfig(none, CUsharedconfig(1)));
        Ok(name(code))
    });
    env.alone("cache of a kernel", || {
        let none = std::ptr::null_mut();
        let code = cu!(env, cuKernelSetCacheConfig(none, CUfunc_cache(1), 0));
        Ok(name(code))
    });
    Ok(())
}
