//! Loading and unloading code beside other work: what waits, and what captures allow.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::code::{
    PTX, ended, fill, function, kernel, load, load_library, other_context, spin, try_function,
    try_function_of, try_kernel, try_load, try_load_library, word,
};
use crate::environment::{Environment, OK, cu, name};
use crate::gate::{Gate, while_held};
use crate::recorder::{MODES, begin, ended as end_of, status};

/// While a stream is captured: does it work, and does the capture live on?
pub(crate) fn captures(env: &Environment) -> Result<()> {
    for (mode, number) in MODES {
        let (module, library) = (load(env)?, load_library(env)?);
        let early = kernel(env, library, c"spin")?;
        let unused = (load(env)?, load_library(env)?);
        let stream = env.stream()?;
        let attempt = |what: &str, work: &mut dyn FnMut() -> CUresult| -> Result<()> {
            env.fine("begin", begin(env, stream, number))?;
            env.code(format!("{what}, {mode}"), work());
            env.say(format!("then, {what}, {mode}"), status(env, stream));
            end_of(env, stream);
            Ok(())
        };
        attempt("module load", &mut || try_load(env, &ended(PTX)).0)?;
        attempt("function", &mut || try_function(env, module, c"add").0)?;
        attempt("library load", &mut || try_load_library(env, &ended(PTX)).0)?;
        attempt("kernel", &mut || try_kernel(env, library, c"add").0)?;
        attempt("function of a kernel", &mut || {
            try_function_of(env, early).0
        })?;
        attempt("module unload", &mut || cu!(env, cuModuleUnload(unused.0)))?;
        attempt("library unload", &mut || {
            cu!(env, cuLibraryUnload(unused.1))
        })?;
        let spins = function(env, load(env)?, c"spin")?;
        attempt("load of a function", &mut || cu!(env, cuFuncLoad(spins)))?;
        let spins = function(env, load(env)?, c"spin")?;
        attempt("first launch into it", &mut || spin(env, spins, stream, 1))?;
        let spins = function(env, load(env)?, c"spin")?;
        let beside = env.stream()?;
        attempt("first launch beside it", &mut || {
            spin(env, spins, beside, 1)
        })?;
    }
    Ok(())
}

/// Which calls wait for a stream that a host function holds, and for a kernel that runs.
pub(crate) fn waits(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let beside = env.stream()?;
    let code = load(env)?;
    let spins = function(env, code, c"spin")?;
    env.fine("launch", spin(env, spins, stream, 1))?;
    env.synchronise(stream)?;
    for (what, busy) in [("held", false), ("spinning", true)] {
        let attempt = |part: &str, work: &mut dyn FnMut() -> CUresult| -> Result<()> {
            let answer = if busy {
                env.fine("launch", spin(env, spins, stream, 300_000_000))?;
                let code = work();
                let query = cu!(env, cuStreamQuery(stream));
                env.synchronise(stream)?;
                let waited = if query == OK {
                    "waited"
                } else {
                    "did not wait"
                };
                format!("{}, {waited}", name(code))
            } else {
                let (code, waited) = while_held(env, stream, &mut *work)?;
                format!("{}, {waited}", name(code))
            };
            env.say(format!("{part}, {what}"), answer);
            Ok(())
        };
        let mut module = std::ptr::null_mut();
        attempt("module load", &mut || {
            let (code, made) = try_load(env, &ended(PTX));
            module = made;
            code
        })?;
        let mut adds = std::ptr::null_mut();
        attempt("function", &mut || {
            let (code, made) = try_function(env, module, c"spin");
            adds = made;
            code
        })?;
        attempt("first launch", &mut || spin(env, adds, beside, 1))?;
        env.synchronise(beside)?;
        attempt("module unload", &mut || cu!(env, cuModuleUnload(module)))?;
        let mut library = std::ptr::null_mut();
        attempt("library load", &mut || {
            let (code, made) = try_load_library(env, &ended(PTX));
            library = made;
            code
        })?;
        let spinning = kernel(env, library, c"spin")?;
        attempt("function of a kernel", &mut || {
            try_function_of(env, spinning).0
        })?;
        attempt("library unload", &mut || cu!(env, cuLibraryUnload(library)))?;
    }
    Ok(())
}

/// Whether a load waits for a stream of another context of the device, or of another device; and what does
/// not wait, because its code is there.
pub(crate) fn elsewhere(env: &Environment) -> Result<()> {
    let own = env.context();
    let stream = env.stream()?;
    let mut others = vec![("of another context", other_context(env)?)];
    let mut second = std::ptr::null_mut();
    if cu!(env, cuDevicePrimaryCtxRetain(&raw mut second, 1)) == OK {
        others.push(("of another device", second));
    }
    for (what, context) in others {
        env.current(context)?;
        let theirs = env.stream()?;
        let gate = Gate::hold(env, theirs)?;
        env.current(own)?;
        let start = std::time::Instant::now();
        let opener = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(300));
                gate.open();
            });
            let (code, module) = try_load(env, &ended(PTX));
            let took = start.elapsed();
            (code, module, took)
        });
        let (code, module, took) = opener;
        let waited = if took.as_millis() >= 290 {
            "waited"
        } else {
            "did not wait"
        };
        env.say(
            format!("load, held stream {what}"),
            format!("{}, {waited}", name(code)),
        );
        env.fine("cuModuleUnload", cu!(env, cuModuleUnload(module)))?;
    }
    env.current(own)?;
    let library = load_library(env)?;
    let (first, next) = (
        kernel(env, library, c"spin")?,
        kernel(env, library, c"add")?,
    );
    env.fine("cuKernelGetFunction", try_function_of(env, first).0)?;
    let (code, waited) = while_held(env, stream, || try_function_of(env, next).0)?;
    env.say(
        "the next function of a library",
        format!("{}, {waited}", name(code)),
    );
    let (code, waited) = while_held(env, stream, || try_function_of(env, first).0)?;
    env.say("the first again", format!("{}, {waited}", name(code)));
    let module = load(env)?;
    let spins = function(env, module, c"spin")?;
    let (code, waited) = while_held(env, stream, || cu!(env, cuFuncLoad(spins)))?;
    env.say("load of a function", format!("{}, {waited}", name(code)));
    let unused = load_library(env)?;
    let (code, waited) = while_held(env, stream, || cu!(env, cuLibraryUnload(unused)))?;
    env.say(
        "unload of a library that was not used",
        format!("{}, {waited}", name(code)),
    );
    let asked = load_library(env)?;
    let (code, waited) = while_held(env, stream, || try_kernel(env, asked, c"spin").0)?;
    env.say("kernel of a library", format!("{}, {waited}", name(code)));
    let (code, waited) = while_held(env, stream, || cu!(env, cuLibraryUnload(asked)))?;
    env.say("its unload", format!("{}, {waited}", name(code)));
    Ok(())
}

/// Code is unloaded while kernels of it run, and while they are queued behind a held stream.
pub(crate) fn unloads(env: &Environment) -> Result<()> {
    let loaded = |library: bool, of| -> Result<(CUmodule, CUlibrary, CUfunction)> {
        if library {
            let library = load_library(env)?;
            let (code, function) = try_function_of(env, kernel(env, library, of)?);
            env.fine("cuKernelGetFunction", code)?;
            Ok((std::ptr::null_mut(), library, function))
        } else {
            let module = load(env)?;
            Ok((module, std::ptr::null_mut(), function(env, module, of)?))
        }
    };
    let unload = |module: CUmodule, library: CUlibrary| {
        if module.is_null() {
            cu!(env, cuLibraryUnload(library))
        } else {
            cu!(env, cuModuleUnload(module))
        }
    };
    for (what, is_library) in [("module", false), ("library", true)] {
        env.alone(&format!("{what}, a kernel runs"), || {
            let stream = env.stream()?;
            let (module, library, spins) = loaded(is_library, c"spin")?;
            env.fine("launch", spin(env, spins, stream, 400_000_000))?;
            std::thread::sleep(std::time::Duration::from_millis(50));
            let code = unload(module, library);
            let query = cu!(env, cuStreamQuery(stream));
            let end = cu!(env, cuStreamSynchronize(stream));
            let waited = if query == OK {
                "waited"
            } else {
                "did not wait"
            };
            Ok(format!("{}, {waited}, then {}", name(code), name(end)))
        });
        env.alone(&format!("{what}, a kernel is queued"), || {
            let stream = env.stream()?;
            let (module, library, fills) = loaded(is_library, c"fill")?;
            let block = env.plain(256)?;
            env.fine("memset", cu!(env, cuMemsetD8_v2(block, 0, 256)))?;
            env.fine("launch", fill(env, fills, stream, (block, 7, 64)))?;
            env.synchronise(stream)?;
            let (code, waited) = while_held(env, stream, || -> Result<CUresult> {
                env.fine("launch", fill(env, fills, stream, (block, 8, 64)))?;
                Ok(unload(module, library))
            })?;
            let code = name(code?);
            Ok(format!("{code}, {waited}, then {}", word(env, block)))
        });
    }
    // What is not loaded when it is launched, beside a stream that is held.
    env.alone("never loaded, launched beside a held stream", || {
        let (held, stream) = (env.stream()?, env.stream()?);
        let gate = Gate::hold(env, held)?;
        let (_, _, spins) = loaded(true, c"spin")?;
        let code = spin(env, spins, stream, 1);
        gate.open();
        Ok(name(code))
    });
    Ok(())
}
