//! Loading and unloading code beside other work: what waits, and what captures allow.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::code::{
    PTX, ended, fill, function, kernel, load, load_library, other_context, spin, try_function,
    try_function_of, try_kernel, try_load, try_load_library, word,
};
use crate::gate::{Gate, while_held};
use crate::lab::{Lab, OK, cu, name};
use crate::recorder::{MODES, begin, ended as end_of, status};

/// While a stream is captured: does it work, and does the capture live on?
pub(crate) fn captures(lab: &Lab) -> Result<()> {
    for (mode, number) in MODES {
        let (module, library) = (load(lab)?, load_library(lab)?);
        let early = kernel(lab, library, c"spin")?;
        let unused = (load(lab)?, load_library(lab)?);
        let stream = lab.stream()?;
        let attempt = |what: &str, work: &mut dyn FnMut() -> CUresult| -> Result<()> {
            lab.fine("begin", begin(lab, stream, number))?;
            lab.code(format!("{what}, {mode}"), work());
            lab.say(format!("then, {what}, {mode}"), status(lab, stream));
            end_of(lab, stream);
            Ok(())
        };
        attempt("module load", &mut || try_load(lab, &ended(PTX)).0)?;
        attempt("function", &mut || try_function(lab, module, c"add").0)?;
        attempt("library load", &mut || try_load_library(lab, &ended(PTX)).0)?;
        attempt("kernel", &mut || try_kernel(lab, library, c"add").0)?;
        attempt("function of a kernel", &mut || {
            try_function_of(lab, early).0
        })?;
        attempt("module unload", &mut || cu!(lab, cuModuleUnload(unused.0)))?;
        attempt("library unload", &mut || {
            cu!(lab, cuLibraryUnload(unused.1))
        })?;
        let spins = function(lab, load(lab)?, c"spin")?;
        attempt("load of a function", &mut || cu!(lab, cuFuncLoad(spins)))?;
        let spins = function(lab, load(lab)?, c"spin")?;
        attempt("first launch into it", &mut || spin(lab, spins, stream, 1))?;
        let spins = function(lab, load(lab)?, c"spin")?;
        let beside = lab.stream()?;
        attempt("first launch beside it", &mut || {
            spin(lab, spins, beside, 1)
        })?;
    }
    Ok(())
}

/// Which calls wait for a stream that a host function holds, and for a kernel that runs.
pub(crate) fn waits(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    let beside = lab.stream()?;
    let code = load(lab)?;
    let spins = function(lab, code, c"spin")?;
    lab.fine("launch", spin(lab, spins, stream, 1))?;
    lab.synchronise(stream)?;
    for (what, busy) in [("held", false), ("spinning", true)] {
        let attempt = |part: &str, work: &mut dyn FnMut() -> CUresult| -> Result<()> {
            let answer = if busy {
                lab.fine("launch", spin(lab, spins, stream, 300_000_000))?;
                let code = work();
                let query = cu!(lab, cuStreamQuery(stream));
                lab.synchronise(stream)?;
                let waited = if query == OK {
                    "waited"
                } else {
                    "did not wait"
                };
                format!("{}, {waited}", name(code))
            } else {
                let (code, waited) = while_held(lab, stream, &mut *work)?;
                format!("{}, {waited}", name(code))
            };
            lab.say(format!("{part}, {what}"), answer);
            Ok(())
        };
        let mut module = std::ptr::null_mut();
        attempt("module load", &mut || {
            let (code, made) = try_load(lab, &ended(PTX));
            module = made;
            code
        })?;
        let mut adds = std::ptr::null_mut();
        attempt("function", &mut || {
            let (code, made) = try_function(lab, module, c"spin");
            adds = made;
            code
        })?;
        attempt("first launch", &mut || spin(lab, adds, beside, 1))?;
        lab.synchronise(beside)?;
        attempt("module unload", &mut || cu!(lab, cuModuleUnload(module)))?;
        let mut library = std::ptr::null_mut();
        attempt("library load", &mut || {
            let (code, made) = try_load_library(lab, &ended(PTX));
            library = made;
            code
        })?;
        let spinning = kernel(lab, library, c"spin")?;
        attempt("function of a kernel", &mut || {
            try_function_of(lab, spinning).0
        })?;
        attempt("library unload", &mut || cu!(lab, cuLibraryUnload(library)))?;
    }
    Ok(())
}

/// Whether a load waits for a stream of another context of the device, or of another device; and what does
/// not wait, because its code is there.
pub(crate) fn elsewhere(lab: &Lab) -> Result<()> {
    let own = lab.context();
    let stream = lab.stream()?;
    let mut others = vec![("of another context", other_context(lab)?)];
    let mut second = std::ptr::null_mut();
    if cu!(lab, cuDevicePrimaryCtxRetain(&raw mut second, 1)) == OK {
        others.push(("of another device", second));
    }
    for (what, context) in others {
        lab.current(context)?;
        let theirs = lab.stream()?;
        let gate = Gate::hold(lab, theirs)?;
        lab.current(own)?;
        let start = std::time::Instant::now();
        let opener = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(300));
                gate.open();
            });
            let (code, module) = try_load(lab, &ended(PTX));
            let took = start.elapsed();
            (code, module, took)
        });
        let (code, module, took) = opener;
        let waited = if took.as_millis() >= 290 {
            "waited"
        } else {
            "did not wait"
        };
        lab.say(
            format!("load, held stream {what}"),
            format!("{}, {waited}", name(code)),
        );
        lab.fine("cuModuleUnload", cu!(lab, cuModuleUnload(module)))?;
    }
    lab.current(own)?;
    let library = load_library(lab)?;
    let (first, next) = (
        kernel(lab, library, c"spin")?,
        kernel(lab, library, c"add")?,
    );
    lab.fine("cuKernelGetFunction", try_function_of(lab, first).0)?;
    let (code, waited) = while_held(lab, stream, || try_function_of(lab, next).0)?;
    lab.say(
        "the next function of a library",
        format!("{}, {waited}", name(code)),
    );
    let (code, waited) = while_held(lab, stream, || try_function_of(lab, first).0)?;
    lab.say("the first again", format!("{}, {waited}", name(code)));
    let module = load(lab)?;
    let spins = function(lab, module, c"spin")?;
    let (code, waited) = while_held(lab, stream, || cu!(lab, cuFuncLoad(spins)))?;
    lab.say("load of a function", format!("{}, {waited}", name(code)));
    let unused = load_library(lab)?;
    let (code, waited) = while_held(lab, stream, || cu!(lab, cuLibraryUnload(unused)))?;
    lab.say(
        "unload of a library that was not used",
        format!("{}, {waited}", name(code)),
    );
    let asked = load_library(lab)?;
    let (code, waited) = while_held(lab, stream, || try_kernel(lab, asked, c"spin").0)?;
    lab.say("kernel of a library", format!("{}, {waited}", name(code)));
    let (code, waited) = while_held(lab, stream, || cu!(lab, cuLibraryUnload(asked)))?;
    lab.say("its unload", format!("{}, {waited}", name(code)));
    Ok(())
}

/// Code is unloaded while kernels of it run, and while they are queued behind a held stream.
pub(crate) fn unloads(lab: &Lab) -> Result<()> {
    let loaded = |library: bool, of| -> Result<(CUmodule, CUlibrary, CUfunction)> {
        if library {
            let library = load_library(lab)?;
            let (code, function) = try_function_of(lab, kernel(lab, library, of)?);
            lab.fine("cuKernelGetFunction", code)?;
            Ok((std::ptr::null_mut(), library, function))
        } else {
            let module = load(lab)?;
            Ok((module, std::ptr::null_mut(), function(lab, module, of)?))
        }
    };
    let unload = |module: CUmodule, library: CUlibrary| {
        if module.is_null() {
            cu!(lab, cuLibraryUnload(library))
        } else {
            cu!(lab, cuModuleUnload(module))
        }
    };
    for (what, is_library) in [("module", false), ("library", true)] {
        lab.alone(&format!("{what}, a kernel runs"), || {
            let stream = lab.stream()?;
            let (module, library, spins) = loaded(is_library, c"spin")?;
            lab.fine("launch", spin(lab, spins, stream, 400_000_000))?;
            std::thread::sleep(std::time::Duration::from_millis(50));
            let code = unload(module, library);
            let query = cu!(lab, cuStreamQuery(stream));
            let end = cu!(lab, cuStreamSynchronize(stream));
            let waited = if query == OK {
                "waited"
            } else {
                "did not wait"
            };
            Ok(format!("{}, {waited}, then {}", name(code), name(end)))
        });
        lab.alone(&format!("{what}, a kernel is queued"), || {
            let stream = lab.stream()?;
            let (module, library, fills) = loaded(is_library, c"fill")?;
            let block = lab.plain(256)?;
            lab.fine("memset", cu!(lab, cuMemsetD8_v2(block, 0, 256)))?;
            lab.fine("launch", fill(lab, fills, stream, (block, 7, 64)))?;
            lab.synchronise(stream)?;
            let (code, waited) = while_held(lab, stream, || -> Result<CUresult> {
                lab.fine("launch", fill(lab, fills, stream, (block, 8, 64)))?;
                Ok(unload(module, library))
            })?;
            let code = name(code?);
            Ok(format!("{code}, {waited}, then {}", word(lab, block)))
        });
    }
    // What is not loaded when it is launched, beside a stream that is held.
    lab.alone("never loaded, launched beside a held stream", || {
        let (held, stream) = (lab.stream()?, lab.stream()?);
        let gate = Gate::hold(lab, held)?;
        let (_, _, spins) = loaded(true, c"spin")?;
        let code = spin(lab, spins, stream, 1);
        gate.open();
        Ok(name(code))
    });
    Ok(())
}
