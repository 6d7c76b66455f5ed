//! Memory of the program that is registered with the driver.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::gate::while_held;
use crate::lab::{Lab, OK, cu, name, yes};

const PAGE: usize = 4096;

/// Pages that nobody else has, for good.
fn pages(count: usize) -> *mut u8 {
    let all: &'static mut [u8] = vec![1; (count + 1) * PAGE].leak();
    let at = all.as_mut_ptr();
    at.wrapping_add(at.align_offset(PAGE))
}

fn register(lab: &Lab, at: *mut u8, bytes: usize, flags: u32) -> CUresult {
    cu!(lab, cuMemHostRegister_v2(at.cast(), bytes, flags))
}

fn unregister(lab: &Lab, at: *mut u8) -> CUresult {
    cu!(lab, cuMemHostUnregister(at.cast()))
}

pub(crate) fn ranges(lab: &Lab) -> Result<()> {
    let at = pages(4);
    lab.code("nothing", register(lab, at, 0, 0));
    lab.code("null", register(lab, std::ptr::null_mut(), PAGE, 0));
    lab.code("flags 64", register(lab, at, PAGE, 64));
    lab.code("100 bytes", register(lab, at, 100, 0));
    lab.code(
        "the next 100, of the same page",
        register(lab, at.wrapping_add(100), 100, 0),
    );
    lab.code("the same again", register(lab, at, 100, 0));
    lab.code("more, from the same start", register(lab, at, PAGE, 0));
    lab.code(
        "the next page",
        register(lab, at.wrapping_add(PAGE), PAGE, 0),
    );
    lab.code("unregister inside", unregister(lab, at.wrapping_add(50)));
    lab.code("unregister the first", unregister(lab, at));
    lab.code("once more", unregister(lab, at));
    lab.code("the next 100", unregister(lab, at.wrapping_add(100)));
    lab.code("the page", unregister(lab, at.wrapping_add(PAGE)));
    let pinned = lab.pinned(PAGE)?.cast::<u8>();
    lab.code("pinned memory", register(lab, pinned, PAGE, 0));
    lab.code("pinned memory, unregister", unregister(lab, pinned));
    for (part, flags) in [
        ("portable", 1),
        ("mapped", 2),
        ("read only", 8),
        ("all", 11),
    ] {
        let code = register(lab, at, PAGE, flags);
        lab.code(part, code);
        if code == OK {
            let mut address = 0;
            let code = cu!(
                lab,
                cuMemHostGetDevicePointer_v2(&raw mut address, at.cast(), 0)
            );
            let same = yes(address == at.expose_provenance() as u64);
            lab.say(
                format!("{part}, address"),
                format!("{}, the same {same}", name(code)),
            );
            let mut found = 77;
            let code = cu!(lab, cuMemHostGetFlags(&raw mut found, at.cast()));
            lab.say(format!("{part}, flags"), format!("{} {found}", name(code)));
            lab.code(format!("{part}, end"), unregister(lab, at));
        }
    }
    let mut found = 77;
    let code = cu!(lab, cuMemHostGetFlags(&raw mut found, pinned.cast()));
    lab.say("flags of pinned memory", format!("{} {found}", name(code)));
    let code = cu!(lab, cuMemHostGetFlags(&raw mut found, at.cast()));
    lab.code("flags of what is not registered", code);
    Ok(())
}

pub(crate) fn uses(lab: &Lab) -> Result<()> {
    let at = pages(4);
    let (inside, bytes) = (at.wrapping_add(10), PAGE);
    lab.fine("register", register(lab, inside, bytes, 0))?;
    let address = inside.expose_provenance() as u64;
    for attribute in [2, 4, 8, 9, 10, 11, 12, 13] {
        let mut value = 0_u64;
        let key = CUpointer_attribute(attribute);
        let place = (&raw mut value).cast::<c_void>();
        let code = cu!(lab, cuPointerGetAttribute(place, key, address + 5));
        let value = match value {
            value if value == address => "its start".to_owned(),
            value if value == address + 5 => "the address".to_owned(),
            value if value > 1 << 32 => "another address".to_owned(),
            value => value.to_string(),
        };
        lab.say(
            format!("attribute {attribute}"),
            format!("{}, {value}", name(code)),
        );
    }
    let stream = lab.stream()?;
    let device = lab.plain(bytes)?;
    let (code, waited) = while_held(lab, stream, || {
        cu!(
            lab,
            cuMemcpyHtoDAsync_v2(device, inside.cast(), bytes, stream)
        )
    })?;
    lab.say("copy from it", format!("{}, {waited}", name(code)));
    let other = pages(1);
    let (code, waited) = while_held(lab, stream, || register(lab, other, PAGE, 0))?;
    lab.say(
        "register, a stream is held",
        format!("{}, {waited}", name(code)),
    );
    let (code, waited) = while_held(lab, stream, || unregister(lab, other))?;
    lab.say(
        "unregister, a stream is held",
        format!("{}, {waited}", name(code)),
    );
    lab.no_context()?;
    lab.code("register without a context", register(lab, other, PAGE, 0));
    lab.code("unregister without a context", unregister(lab, inside));
    Ok(())
}

/// A device writes where it may only read.
pub(crate) fn read_only(lab: &Lab) -> Result<()> {
    lab.alone("copied to", || {
        let at = pages(1);
        let code = register(lab, at, PAGE, 8);
        if code != OK {
            return Ok(name(code));
        }
        let device = lab.plain(PAGE)?;
        let code = cu!(lab, cuMemcpyDtoH_v2(at.cast(), device, PAGE));
        let after = cu!(lab, cuCtxSynchronize());
        Ok(format!("{}, then {}", name(code), name(after)))
    });
    Ok(())
}
