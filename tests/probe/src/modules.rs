//! Modules, libraries and the linker.

use std::ffi::{c_char, c_void};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::code::{
    PTX, ended, fill, function, is_loaded, kernel, launch, load, load_library, other_context, spin,
    try_function, try_function_of, try_kernel, try_load, try_load_library, word,
};
use crate::gate::{Gate, while_held};
use crate::lab::{Lab, MIB, OK, cu, name, size, yes};
use crate::recorder::{MODES, begin, ended as end_of, status};

/// What is taken for code.
pub(crate) fn images(lab: &Lab) -> Result<()> {
    let bad = "\nthis is no instruction;\n";
    let newer = PTX.replace(".target sm_70", ".target sm_120");
    let unknown = PTX.replace(".target sm_70", ".target sm_999");
    let future = PTX.replace(".version 7.0", ".version 99.0");
    let wrong = format!("{PTX}{bad}");
    let body = PTX.replace("ret;", "ret; nonsense %r1;");
    let texts = [
        ("kernels", PTX),
        ("a newer target", &newer),
        ("a target that there is not", &unknown),
        ("a version of the future", &future),
        ("a wrong line at the end", &wrong),
        ("a wrong instruction", &body),
        ("no text", ""),
        ("a word", "hello"),
        (
            "no kernels",
            ".version 7.0\n.target sm_70\n.address_size 64\n",
        ),
        (
            "32 bits of address",
            ".version 7.0\n.target sm_70\n.address_size 32\n",
        ),
    ];
    for (what, text) in texts {
        let (code, module) = try_load(lab, &ended(text));
        lab.code(format!("module, {what}"), code);
        lab.say(format!("its handle is null, {what}"), yes(module.is_null()));
        let (code, library) = try_load_library(lab, &ended(text));
        lab.code(format!("library, {what}"), code);
        if code == OK {
            let (named, kernel) = try_kernel(lab, library, c"fill");
            lab.code(format!("kernel of it, {what}"), named);
            if named == OK {
                lab.code(
                    format!("function of it, {what}"),
                    try_function_of(lab, kernel).0,
                );
            }
        }
    }
    Ok(())
}

/// What the compiler writes down.
pub(crate) fn logs(lab: &Lab) -> Result<()> {
    let body = PTX.replacen("ret;", "ret; nonsense %r1;", 1);
    let line = 1 + body
        .lines()
        .position(|line| line.contains("nonsense"))
        .unwrap_or(0);
    for (what, text, room) in [
        ("good", PTX, 4096_usize),
        ("wrong", &body, 4096),
        ("wrong, 16 bytes of room", &body, 16),
    ] {
        let (mut errors, mut infos) = (vec![0x55_u8; room], vec![0x55_u8; room]);
        let mut keys = [3, 4, 5, 6].map(CUjit_option);
        let room = std::ptr::without_provenance_mut::<c_void>(room);
        let mut values = [
            infos.as_mut_ptr().cast(),
            room,
            errors.as_mut_ptr().cast(),
            room,
        ];
        let (mut module, image) = (std::ptr::null_mut(), ended(text));
        let code = cu!(
            lab,
            cuModuleLoadDataEx(
                &raw mut module,
                image.as_ptr().cast(),
                4,
                keys.as_mut_ptr(),
                values.as_mut_ptr()
            )
        );
        lab.code(what, code);
        for (log, bytes, told) in [
            ("information", &infos, values[1]),
            ("errors", &errors, values[3]),
        ] {
            let end = bytes.iter().position(|byte| *byte == 0);
            let told = told.addr();
            let answer = match end {
                None => format!("no end, {told} told"),
                Some(0) => format!("empty, {told} told"),
                Some(end) => format!(
                    "text, told is its length {}",
                    if told == end {
                        "without the zero"
                    } else if told == end + 1 {
                        "with the zero"
                    } else {
                        "and not"
                    }
                ),
            };
            lab.say(format!("{log}, {what}"), answer);
            let text = String::from_utf8_lossy(&bytes[..end.unwrap_or(0)]).into_owned();
            lab.say(
                format!("{log} name the line, {what}"),
                yes(text.contains(&format!("line {line}"))),
            );
        }
    }
    let (mut module, image) = (std::ptr::null_mut(), ended(PTX));
    let (mut key, mut value) = (CUjit_option(9999), std::ptr::null_mut());
    let image = image.as_ptr().cast();
    let code = cu!(
        lab,
        cuModuleLoadDataEx(&raw mut module, image, 1, &raw mut key, &raw mut value)
    );
    lab.code("an unknown option", code);
    Ok(())
}

/// Which call writes the logs of a library, whose text is compiled later than it is loaded.
pub(crate) fn late_logs(lab: &Lab) -> Result<()> {
    const ROOM: usize = 4096;
    let body = PTX.replacen("ret;", "ret; nonsense %r1;", 1);
    for (what, text) in [("good", PTX), ("wrong", &body)] {
        // Never freed: the driver may write to it whenever it likes.
        let log: &'static mut [u8] = vec![0; ROOM].leak();
        let log = log.as_mut_ptr().cast::<[u8; ROOM]>();
        // SAFETY: so many bytes are there for ever, and nobody else touches them but the driver, in calls that
        // have returned. So it is below.
        let clear = || unsafe { log.write_volatile([0x55; ROOM]) };
        let written = || {
            // SAFETY: as above.
            let now = unsafe { log.read_volatile() };
            let end = now.iter().position(|byte| *byte != 0x55);
            clear();
            match (end, now[0]) {
                (None, _) => "log untouched",
                (_, 0) => "log emptied",
                _ => "log written",
            }
        };
        clear();
        let keys: &'static mut [CUjit_option] = vec![CUjit_option(5), CUjit_option(6)].leak();
        let room = std::ptr::without_provenance_mut::<c_void>(ROOM);
        let values: &'static mut [*mut c_void] = vec![log.cast(), room].leak();
        let (mut library, image) = (std::ptr::null_mut(), ended(text));
        let code = cu!(
            lab,
            cuLibraryLoadData(
                &raw mut library,
                image.as_ptr().cast(),
                keys.as_mut_ptr(),
                values.as_mut_ptr(),
                2,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                0
            )
        );
        drop(image);
        lab.say(
            format!("load, {what}"),
            format!("{}, {}", name(code), written()),
        );
        let (code, kernel) = try_kernel(lab, library, c"spin");
        lab.say(
            format!("kernel, {what}"),
            format!("{}, {}", name(code), written()),
        );
        let (code, again) = try_kernel(lab, library, c"add");
        lab.say(
            format!("another, {what}"),
            format!("{}, {}", name(code), written()),
        );
        if code == OK {
            let code = try_function_of(lab, kernel).0;
            lab.say(
                format!("function, {what}"),
                format!("{}, {}", name(code), written()),
            );
            let code = try_function_of(lab, again).0;
            lab.say(
                format!("another function, {what}"),
                format!("{}, {}", name(code), written()),
            );
        }
        let mut count = 77;
        let code = cu!(lab, cuLibraryGetKernelCount(&raw mut count, library));
        lab.say(format!("count, {what}"), format!("{} {count}", name(code)));
        lab.code(
            format!("unload, {what}"),
            cu!(lab, cuLibraryUnload(library)),
        );
    }
    Ok(())
}

/// Whether a load waits for a stream of another context of the device, or of another device; and what does
/// not wait, because its code is there.
pub(crate) fn waits_elsewhere(lab: &Lab) -> Result<()> {
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

/// When code is on the device, and what memory it takes.
pub(crate) fn laziness(lab: &Lab) -> Result<()> {
    let mut mode = CUmoduleLoadingMode(0);
    let code = cu!(lab, cuModuleGetLoadingMode(&raw mut mode));
    lab.say("mode", format!("{} {}", name(code), mode.0));
    let before = lab.device_free()?;
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
    let taken = before.saturating_sub(lab.device_free()?);
    lab.say(
        "memory of the device, up to",
        size(taken.next_multiple_of(2 * MIB)),
    );
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

/// The linker: from texts to a cubin, and what it refuses.
pub(crate) fn links(lab: &Lab) -> Result<()> {
    let linker = || -> Result<CUlinkState> {
        let mut linker = std::ptr::null_mut();
        let (keys, values) = (std::ptr::null_mut(), std::ptr::null_mut());
        let code = cu!(lab, cuLinkCreate_v2(0, keys, values, &raw mut linker));
        lab.fine("cuLinkCreate", code)?;
        Ok(linker)
    };
    let add = |linker: CUlinkState, text: &str| {
        let mut image = ended(text);
        let (keys, values) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (data, bytes) = (image.as_mut_ptr().cast(), image.len());
        let kind = CUjitInputType::CU_JIT_INPUT_PTX;
        let label: *const c_char = c"a text".as_ptr();
        cu!(
            lab,
            cuLinkAddData_v2(linker, kind, data, bytes, label, 0, keys, values)
        )
    };
    let complete = |linker: CUlinkState| {
        let (mut data, mut bytes) = (std::ptr::null_mut(), 0);
        let code = cu!(lab, cuLinkComplete(linker, &raw mut data, &raw mut bytes));
        (code, data.cast::<u8>(), bytes)
    };
    let first = linker()?;
    lab.code("add", add(first, PTX));
    let (code, data, bytes) = complete(first);
    lab.code("complete", code);
    lab.fine("cuLinkComplete", code)?;
    // SAFETY: the linker keeps what it made until it is destroyed, and told its bytes.
    let image = unsafe { std::slice::from_raw_parts(data, bytes) }.to_vec();
    lab.say("it begins as ELF does", yes(image.starts_with(b"\x7fELF")));
    lab.code("add after it", add(first, PTX));
    lab.code("destroy", cu!(lab, cuLinkDestroy(first)));
    let (code, module) = try_load(lab, &image);
    lab.code("module of it", code);
    let (stream, block) = (lab.stream()?, lab.plain(256)?);
    let fills = function(lab, module, c"fill")?;
    lab.code("launch", fill(lab, fills, stream, (block, 5, 64)));
    lab.say("what it wrote", word(lab, block));
    let (code, library) = try_load_library(lab, &image);
    lab.code("library of it", code);
    lab.code("kernel of that", try_kernel(lab, library, c"fill").0);
    let twice = linker()?;
    lab.code("the first of two with the same kernels", add(twice, PTX));
    lab.code("the second", add(twice, PTX));
    lab.code("complete, two", complete(twice).0);
    let none = linker()?;
    lab.code("complete, nothing", complete(none).0);
    let bad = linker()?;
    lab.code("add, a word", add(bad, "hello"));
    lab.code("complete, a word", complete(bad).0);
    let open = linker()?;
    lab.code("destroy, not complete", cu!(lab, cuLinkDestroy(open)));
    Ok(())
}
