//! Limits of a context, flags of primary contexts, the driver's tables of private functions, and texts of codes.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name};

fn limit(env: &Environment, id: u32) -> (CUresult, usize) {
    let mut value = 77;
    let code = cu!(env, cuCtxGetLimit(&raw mut value, CUlimit(id)));
    (code, value)
}

pub(crate) fn values(env: &Environment) -> Result<()> {
    for id in 0..=9 {
        let (code, value) = limit(env, id);
        env.say(format!("{id}"), format!("{}, {value}", name(code)));
    }
    env.code("into null", {
        cu!(env, cuCtxGetLimit(std::ptr::null_mut(), CUlimit(0)))
    });
    env.no_context()?;
    let (code, value) = limit(env, 0);
    env.say("without context", format!("{}, {value}", name(code)));
    Ok(())
}

/// More than any limit allows.
const LARGEST: usize = 1 << 40;

/// Each limit is set to a few values, and then asked for.
pub(crate) fn set(env: &Environment) -> Result<()> {
    for id in 0..=9 {
        for wanted in [
            0,
            1,
            1000,
            64 << 10,
            256 << 10,
            512 << 10,
            16 << 20,
            LARGEST,
        ] {
            let code = cu!(env, cuCtxSetLimit(CUlimit(id), wanted));
            let (_, value) = limit(env, id);
            // The largest heap depends on the memory of the device.
            let value = match (id, wanted) {
                (2, LARGEST) => "something".into(),
                _ => value.to_string(),
            };
            env.say(
                format!("{id} to {wanted}"),
                format!("{}, then {value}", name(code)),
            );
        }
    }
    env.no_context()?;
    let code = cu!(env, cuCtxSetLimit(CUlimit(0), 4096));
    env.code("without context", code);
    Ok(())
}

/// Preferences for caches and banks of shared memory.
pub(crate) fn preferences(env: &Environment) -> Result<()> {
    let cache = || {
        let mut value = CUfunc_cache(77);
        let code = cu!(env, cuCtxGetCacheConfig(&raw mut value));
        format!("{} {}", name(code), value.0)
    };
    let banks = || {
        let mut value = CUsharedconfig(77);
        let code = cu!(env, cuCtxGetSharedMemConfig(&raw mut value));
        format!("{} {}", name(code), value.0)
    };
    env.say("caches at first", cache());
    env.say("banks at first", banks());
    for wanted in [0, 1, 2, 3, 4, 99] {
        let code = cu!(env, cuCtxSetCacheConfig(CUfunc_cache(wanted)));
        env.say(
            format!("caches {wanted}"),
            format!("{}, then {}", name(code), cache()),
        );
        let code = cu!(env, cuCtxSetSharedMemConfig(CUsharedconfig(wanted)));
        env.say(
            format!("banks {wanted}"),
            format!("{}, then {}", name(code), banks()),
        );
    }
    env.code(
        "caches into null",
        cu!(env, cuCtxGetCacheConfig(std::ptr::null_mut())),
    );
    env.code(
        "banks into null",
        cu!(env, cuCtxGetSharedMemConfig(std::ptr::null_mut())),
    );
    let code = cu!(env, cuCtxResetPersistingL2Cache());
    env.code("the persisting cache is reset", code);
    env.no_context()?;
    env.say("caches without context", cache());
    env.say("banks without context", banks());
    let code = cu!(env, cuCtxSetCacheConfig(CUfunc_cache(0)));
    env.code("caches set without context", code);
    Ok(())
}

fn primary(env: &Environment) -> String {
    let (mut flags, mut active): (c_uint, c_int) = (77, 77);
    let code = cu!(
        env,
        cuDevicePrimaryCtxGetState(0, &raw mut flags, &raw mut active)
    );
    match code {
        OK => format!("flags {flags}, active {active}"),
        code => name(code),
    }
}

/// Flags of the primary context, before anybody has retained it, meanwhile, and afterwards.
pub(crate) fn flags(env: &Environment) -> Result<()> {
    env.alone("before it exists", || {
        env.no_context()?;
        env.fine("release", env.release())?;
        let mut text = vec![primary(env)];
        for flags in [1, 2, 4, 8, 16, 32, 64, 128, 255, 256, 3, 5, 0] {
            let code = cu!(env, cuDevicePrimaryCtxSetFlags_v2(0, flags));
            text.push(format!("{flags} {}, {}", name(code), primary(env)));
        }
        Ok(text.join("; "))
    });
    env.alone("while it exists", || {
        let mut text = vec![primary(env)];
        for flags in [4, 8, 16, 256, 0] {
            let code = cu!(env, cuDevicePrimaryCtxSetFlags_v2(0, flags));
            let mut seen: c_uint = 77;
            let asked = cu!(env, cuCtxGetFlags(&raw mut seen));
            let (code, asked) = (name(code), name(asked));
            text.push(format!(
                "{flags} {code}, {}, the context {asked} {seen}",
                primary(env)
            ));
        }
        Ok(text.join("; "))
    });
    env.alone("set, then retained, released and retained", || {
        env.no_context()?;
        env.fine("release", env.release())?;
        let code = cu!(env, cuDevicePrimaryCtxSetFlags_v2(0, 4));
        let mut text = vec![format!("{}, {}", name(code), primary(env))];
        for _ in 0..2 {
            let context = env.retain()?;
            env.current(context)?;
            let mut seen: c_uint = 77;
            let asked = cu!(env, cuCtxGetFlags(&raw mut seen));
            text.push(format!(
                "{}, the context {} {seen}",
                primary(env),
                name(asked)
            ));
            env.fine("release", env.release())?;
            text.push(format!("released, {}", primary(env)));
        }
        Ok(text.join("; "))
    });
    env.alone("after a reset", || {
        cu!(env, cuDevicePrimaryCtxSetFlags_v2(0, 4));
        let code = cu!(env, cuDevicePrimaryCtxReset_v2(0));
        Ok(format!("{}, {}", name(code), primary(env)))
    });
    env.alone("the older function", || {
        let code = cu!(env, cuDevicePrimaryCtxSetFlags(0, 4));
        Ok(format!("{}, {}", name(code), primary(env)))
    });
    env.alone("no such device", || {
        Ok(name(cu!(env, cuDevicePrimaryCtxSetFlags_v2(99, 0))))
    });
    Ok(())
}

/// The driver's private tables: what is answered to who does not know one.
pub(crate) fn tables(env: &Environment) -> Result<()> {
    let ask = |id: Option<&CUuuid>| {
        let mut table: *const c_void = std::ptr::dangling();
        let id = id.map_or(std::ptr::null(), std::ptr::from_ref);
        let code = cu!(env, cuGetExportTable(&raw mut table, id));
        let then = match table {
            table if table.is_null() => "null",
            table if table == std::ptr::dangling() => "output untouched",
            _ => "a table",
        };
        format!("{}, {then}", name(code))
    };
    let unknown = CUuuid {
        bytes: [0x5a; 16].map(|byte: u8| byte as c_char),
    };
    let zero = CUuuid { bytes: [0; 16] };
    env.alone("of an unknown number", || Ok(ask(Some(&unknown))));
    env.alone("of zero", || Ok(ask(Some(&zero))));
    env.alone("of null", || Ok(ask(None)));
    env.alone("into null", || {
        let code = cu!(
            env,
            cuGetExportTable(std::ptr::null_mut(), &raw const unknown)
        );
        Ok(name(code))
    });
    // Not `alone`, which starts the driver.
    crate::child::ask(&env.label("before cuInit"), crate::child::LIMIT, || {
        env.say("of an unknown number, before cuInit", ask(Some(&unknown)));
        Ok(())
    });
    Ok(())
}

/// Functions that no header of the driver's main interface declares, by their names.
pub(crate) fn profiler(env: &Environment) -> Result<()> {
    for symbol in [
        c"cuProfilerStart",
        c"cuProfilerStop",
        c"cuProfilerInitialize",
    ] {
        let mut address = std::ptr::null_mut();
        let mut found = CUdriverProcAddressQueryResult(77);
        let code = cu!(
            env,
            cuGetProcAddress_v2(symbol.as_ptr(), &raw mut address, 13000, 0, &raw mut found)
        );
        let part = symbol.to_string_lossy();
        env.say(&part, format!("{}, found {}", name(code), found.0));
        if code == OK && !address.is_null() && symbol != c"cuProfilerInitialize" {
            // SAFETY: both functions take nothing and answer a code.
            let call = unsafe {
                std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> CUresult>(address)
            };
            // SAFETY: as above.
            env.code(format!("{part}, called"), unsafe { call() });
            env.no_context()?;
            // SAFETY: as above.
            env.code(format!("{part}, without context"), unsafe { call() });
            env.current(env.context())?;
        }
    }
    Ok(())
}

/// Texts of codes, which programs print.
pub(crate) fn texts(env: &Environment) -> Result<()> {
    for code in [0, 1, 2, 3, 100, 201, 400, 700, 801, 900, 999, 77] {
        let mut text: *const c_char = std::ptr::null();
        let asked = cu!(env, cuGetErrorString(CUresult(code), &raw mut text));
        let text = if text.is_null() {
            "null".into()
        } else {
            // SAFETY: not null, so a constant text of the driver.
            unsafe { CStr::from_ptr(text) }.to_string_lossy()
        };
        let is_text = if code == 0 { text } else { "".into() };
        env.say(format!("of {code}"), format!("{} {is_text}", name(asked)));
    }
    Ok(())
}

/// Names of kernels that are none.
pub(crate) fn names(env: &Environment) -> Result<()> {
    env.alone("of a null kernel", || {
        let mut text: *const c_char = std::ptr::null();
        let code = cu!(env, cuKernelGetName(&raw mut text, std::ptr::null_mut()));
        Ok(name(code))
    });
    env.alone("of a null function", || {
        let mut text: *const c_char = std::ptr::null();
        let code = cu!(env, cuFuncGetName(&raw mut text, std::ptr::null_mut()));
        Ok(name(code))
    });
    env.alone("of a null kernel, into null", || {
        let code = cu!(
            env,
            cuKernelGetName(std::ptr::null_mut(), std::ptr::null_mut())
        );
        Ok(name(code))
    });
    Ok(())
}
