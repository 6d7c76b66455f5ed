//! What is taken for code, what is said of it, and what the linker makes.

use std::ffi::{c_char, c_void};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::code::{
    PTX, ended, fill, function, try_function_of, try_kernel, try_load, try_load_library, word,
};
use crate::environment::{Environment, OK, cu, name, yes};

/// What is taken for code.
pub(crate) fn texts(env: &Environment) -> Result<()> {
    let bad = "\nthis is no instruction;\n";
    let newer = PTX.replace(".target sm_70", ".target sm_120");
    let both = newer.replace(".version 7.0", ".version 8.7");
    let unknown = PTX.replace(".target sm_70", ".target sm_999");
    let future = PTX.replace(".version 7.0", ".version 99.0");
    let wrong = format!("{PTX}{bad}");
    let body = PTX.replace("ret;", "ret; nonsense %r1;");
    let texts = [
        ("kernels", PTX),
        ("a newer target", &newer),
        ("a newer target, in newer text", &both),
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
        let (code, module) = try_load(env, &ended(text));
        env.code(format!("module, {what}"), code);
        env.say(format!("its handle is null, {what}"), yes(module.is_null()));
        let (code, library) = try_load_library(env, &ended(text));
        env.code(format!("library, {what}"), code);
        if code == OK {
            let (named, kernel) = try_kernel(env, library, c"fill");
            env.code(format!("kernel of it, {what}"), named);
            if named == OK {
                env.code(
                    format!("function of it, {what}"),
                    try_function_of(env, kernel).0,
                );
            }
        }
    }
    Ok(())
}

/// What the compiler writes down.
pub(crate) fn logs(env: &Environment) -> Result<()> {
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
            env,
            cuModuleLoadDataEx(
                &raw mut module,
                image.as_ptr().cast(),
                4,
                keys.as_mut_ptr(),
                values.as_mut_ptr()
            )
        );
        env.code(what, code);
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
            env.say(format!("{log}, {what}"), answer);
            let text = String::from_utf8_lossy(&bytes[..end.unwrap_or(0)]).into_owned();
            env.say(
                format!("{log} name the line, {what}"),
                yes(text.contains(&format!("line {line}"))),
            );
        }
    }
    let (mut module, image) = (std::ptr::null_mut(), ended(PTX));
    let (mut key, mut value) = (CUjit_option(9999), std::ptr::null_mut());
    let image = image.as_ptr().cast();
    let code = cu!(
        env,
        cuModuleLoadDataEx(&raw mut module, image, 1, &raw mut key, &raw mut value)
    );
    env.code("an unknown option", code);
    Ok(())
}

/// Which call writes the logs of a library, whose text is compiled later than it is loaded.
pub(crate) fn late_logs(env: &Environment) -> Result<()> {
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
            env,
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
        env.say(
            format!("load, {what}"),
            format!("{}, {}", name(code), written()),
        );
        let (code, kernel) = try_kernel(env, library, c"spin");
        env.say(
            format!("kernel, {what}"),
            format!("{}, {}", name(code), written()),
        );
        let (code, again) = try_kernel(env, library, c"add");
        env.say(
            format!("another, {what}"),
            format!("{}, {}", name(code), written()),
        );
        if code == OK {
            let code = try_function_of(env, kernel).0;
            env.say(
                format!("function, {what}"),
                format!("{}, {}", name(code), written()),
            );
            let code = try_function_of(env, again).0;
            env.say(
                format!("another function, {what}"),
                format!("{}, {}", name(code), written()),
            );
        }
        let mut count = 77;
        let code = cu!(env, cuLibraryGetKernelCount(&raw mut count, library));
        env.say(format!("count, {what}"), format!("{} {count}", name(code)));
        env.code(
            format!("unload, {what}"),
            cu!(env, cuLibraryUnload(library)),
        );
    }
    Ok(())
}

/// The linker: from texts to a cubin, and what it refuses.
pub(crate) fn links(env: &Environment) -> Result<()> {
    let linker = || -> Result<CUlinkState> {
        let mut linker = std::ptr::null_mut();
        let (keys, values) = (std::ptr::null_mut(), std::ptr::null_mut());
        let code = cu!(env, cuLinkCreate_v2(0, keys, values, &raw mut linker));
        env.fine("cuLinkCreate", code)?;
        Ok(linker)
    };
    let add = |linker: CUlinkState, text: &str| {
        let mut image = ended(text);
        let (keys, values) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (data, bytes) = (image.as_mut_ptr().cast(), image.len());
        let kind = CUjitInputType::CU_JIT_INPUT_PTX;
        let label: *const c_char = c"a text".as_ptr();
        cu!(
            env,
            cuLinkAddData_v2(linker, kind, data, bytes, label, 0, keys, values)
        )
    };
    let complete = |linker: CUlinkState| {
        let (mut data, mut bytes) = (std::ptr::null_mut(), 0);
        let code = cu!(env, cuLinkComplete(linker, &raw mut data, &raw mut bytes));
        (code, data.cast::<u8>(), bytes)
    };
    let first = linker()?;
    env.code("add", add(first, PTX));
    let (code, data, bytes) = complete(first);
    env.code("complete", code);
    env.fine("cuLinkComplete", code)?;
    // SAFETY: the linker keeps what it made until it is destroyed, and told its bytes.
    let image = unsafe { std::slice::from_raw_parts(data, bytes) }.to_vec();
    env.say("it begins as ELF does", yes(image.starts_with(b"\x7fELF")));
    env.code("add after it", add(first, PTX));
    env.code("destroy", cu!(env, cuLinkDestroy(first)));
    let (code, module) = try_load(env, &image);
    env.code("module of it", code);
    let (stream, block) = (env.stream()?, env.plain(256)?);
    let fills = function(env, module, c"fill")?;
    env.code("launch", fill(env, fills, stream, (block, 5, 64)));
    env.say("what it wrote", word(env, block));
    let (code, library) = try_load_library(env, &image);
    env.code("library of it", code);
    env.code("kernel of that", try_kernel(env, library, c"fill").0);
    let twice = linker()?;
    env.code("the first of two with the same kernels", add(twice, PTX));
    env.code("the second", add(twice, PTX));
    env.code("complete, two", complete(twice).0);
    let none = linker()?;
    env.code("complete, nothing", complete(none).0);
    let bad = linker()?;
    env.code("add, a word", add(bad, "hello"));
    env.code("complete, a word", complete(bad).0);
    let open = linker()?;
    env.code("destroy, not complete", cu!(env, cuLinkDestroy(open)));
    Ok(())
}
