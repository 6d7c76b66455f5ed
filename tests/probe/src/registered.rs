//! Memory of the program that is registered with the driver.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name, yes};
use crate::gate::while_held;

const PAGE: usize = 4096;

/// Pages that nobody else has, for good.
fn pages(count: usize) -> *mut u8 {
    let all: &'static mut [u8] = vec![1; (count + 1) * PAGE].leak();
    let at = all.as_mut_ptr();
    at.wrapping_add(at.align_offset(PAGE))
}

fn register(env: &Environment, at: *mut u8, bytes: usize, flags: u32) -> CUresult {
    cu!(env, cuMemHostRegister_v2(at.cast(), bytes, flags))
}

fn unregister(env: &Environment, at: *mut u8) -> CUresult {
    cu!(env, cuMemHostUnregister(at.cast()))
}

pub(crate) fn ranges(env: &Environment) -> Result<()> {
    let at = pages(4);
    env.code("nothing", register(env, at, 0, 0));
    env.code("null", register(env, std::ptr::null_mut(), PAGE, 0));
    env.code("flags 64", register(env, at, PAGE, 64));
    env.code("100 bytes", register(env, at, 100, 0));
    env.code(
        "the next 100, of the same page",
        register(env, at.wrapping_add(100), 100, 0),
    );
    env.code("the same again", register(env, at, 100, 0));
    env.code("more, from the same start", register(env, at, PAGE, 0));
    env.code(
        "the next page",
        register(env, at.wrapping_add(PAGE), PAGE, 0),
    );
    env.code("unregister inside", unregister(env, at.wrapping_add(50)));
    env.code("unregister the first", unregister(env, at));
    env.code("once more", unregister(env, at));
    env.code("the next 100", unregister(env, at.wrapping_add(100)));
    env.code("the page", unregister(env, at.wrapping_add(PAGE)));
    let pinned = env.pinned(PAGE)?.cast::<u8>();
    env.code("pinned memory", register(env, pinned, PAGE, 0));
    env.code("pinned memory, unregister", unregister(env, pinned));
    for (part, flags) in [
        ("portable", 1),
        ("mapped", 2),
        ("read only", 8),
        ("all", 11),
    ] {
        let code = register(env, at, PAGE, flags);
        env.code(part, code);
        if code == OK {
            let mut address = 0;
            let code = cu!(
                env,
                cuMemHostGetDevicePointer_v2(&raw mut address, at.cast(), 0)
            );
            let same = yes(address == at.expose_provenance() as u64);
            env.say(
                format!("{part}, address"),
                format!("{}, the same {same}", name(code)),
            );
            let mut found = 77;
            let code = cu!(env, cuMemHostGetFlags(&raw mut found, at.cast()));
            env.say(format!("{part}, flags"), format!("{} {found}", name(code)));
            env.code(format!("{part}, end"), unregister(env, at));
        }
    }
    let mut found = 77;
    let code = cu!(env, cuMemHostGetFlags(&raw mut found, pinned.cast()));
    env.say("flags of pinned memory", format!("{} {found}", name(code)));
    let code = cu!(env, cuMemHostGetFlags(&raw mut found, at.cast()));
    env.code("flags of what is not registered", code);
    Ok(())
}

pub(crate) fn uses(env: &Environment) -> Result<()> {
    let at = pages(4);
    let (inside, bytes) = (at.wrapping_add(10), PAGE);
    env.fine("register", register(env, inside, bytes, 0))?;
    let address = inside.expose_provenance() as u64;
    for attribute in [2, 4, 8, 9, 10, 11, 12, 13] {
        let mut value = 0_u64;
        let key = CUpointer_attribute(attribute);
        let place = (&raw mut value).cast::<c_void>();
        let code = cu!(env, cuPointerGetAttribute(place, key, address + 5));
        let value = match value {
            value if value == address => "its start".to_owned(),
            value if value == address + 5 => "the address".to_owned(),
            value if value > 1 << 32 => "another address".to_owned(),
            value => value.to_string(),
        };
        env.say(
            format!("attribute {attribute}"),
            format!("{}, {value}", name(code)),
        );
    }
    let stream = env.stream()?;
    let device = env.plain(bytes)?;
    let (code, waited) = while_held(env, stream, || {
        cu!(
            env,
            cuMemcpyHtoDAsync_v2(device, inside.cast(), bytes, stream)
        )
    })?;
    env.say("copy from it", format!("{}, {waited}", name(code)));
    let other = pages(1);
    let (code, waited) = while_held(env, stream, || register(env, other, PAGE, 0))?;
    env.say(
        "register, a stream is held",
        format!("{}, {waited}", name(code)),
    );
    let (code, waited) = while_held(env, stream, || unregister(env, other))?;
    env.say(
        "unregister, a stream is held",
        format!("{}, {waited}", name(code)),
    );
    env.no_context()?;
    env.code("register without a context", register(env, other, PAGE, 0));
    env.code("unregister without a context", unregister(env, inside));
    Ok(())
}

/// A device writes where it may only read.
pub(crate) fn read_only(env: &Environment) -> Result<()> {
    env.alone("copied to", || {
        let at = pages(1);
        let code = register(env, at, PAGE, 8);
        if code != OK {
            return Ok(name(code));
        }
        let device = env.plain(PAGE)?;
        let code = cu!(env, cuMemcpyDtoH_v2(at.cast(), device, PAGE));
        let after = cu!(env, cuCtxSynchronize());
        Ok(format!("{}, then {}", name(code), name(after)))
    });
    Ok(())
}
