//! Mappings of physical memory: what can be mapped and unmapped, who has access, and what waits.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::gate::{Gate, while_held};
use crate::lab::{Lab, MIB, OK, cu, name, yes};
use crate::two::{and_synchronise, attribute};
use crate::vmm::{
    STEP, access, address_free, allow, back, create, end, map, release, reserve, unmap,
};

fn fill(lab: &Lab, at: CUdeviceptr, bytes: u64, stream: CUstream) -> CUresult {
    cu!(lab, cuMemsetD8Async(at, 5, bytes as usize, stream))
}

pub(crate) fn mappings(lab: &Lab) -> Result<()> {
    let (range, handle) = (reserve(lab, 8 * STEP)?, create(lab, 2 * STEP)?);
    let say = |part: &str, code: CUresult| lab.code(part, code);
    say("odd address", map(lab, range + 4096, 2 * STEP, handle));
    say("odd size", map(lab, range, STEP + 4096, handle));
    say("no size", map(lab, range, 0, handle));
    say("more than there is", map(lab, range, 4 * STEP, handle));
    let past = map(lab, range + 7 * STEP, 2 * STEP, handle);
    say("past the reservation", past);
    if past == OK {
        say("past it unmapped", unmap(lab, range + 7 * STEP, 2 * STEP));
    }
    let len = STEP as usize;
    say("an offset", cu!(lab, cuMemMap(range, len, len, handle, 0)));
    say("flags 1", cu!(lab, cuMemMap(range, 2 * len, 0, handle, 1)));
    let half = map(lab, range, STEP, handle);
    say("half of it", half);
    if half == OK {
        say("the half unmapped", unmap(lab, range, STEP));
    }
    say("all", map(lab, range, 2 * STEP, handle));
    say("there again", map(lab, range, 2 * STEP, handle));
    say(
        "elsewhere too",
        map(lab, range + 2 * STEP, 2 * STEP, handle),
    );
    say("a part unmapped", unmap(lab, range, STEP));
    say("one and a half unmapped", unmap(lab, range, 3 * STEP));
    say("more than is mapped", unmap(lab, range, 6 * STEP));
    say("what is not mapped", unmap(lab, range + 6 * STEP, STEP));
    say("two at once unmapped", unmap(lab, range, 4 * STEP));
    say("again", unmap(lab, range, 4 * STEP));
    say("released", release(lab, handle));
    lab.fine("cuMemAddressFree", address_free(lab, range, 8 * STEP))
}

pub(crate) fn accesses(lab: &Lab) -> Result<()> {
    let (range, stream) = (reserve(lab, 8 * STEP)?, lab.stream()?);
    for at in [range, range + STEP] {
        let handle = create(lab, STEP)?;
        lab.fine("cuMemMap", map(lab, at, STEP, handle))?;
        lab.fine("cuMemRelease", release(lab, handle))?;
    }
    let two = (range, 2 * STEP);
    lab.say("at first", access(lab, range, 1, 0));
    lab.code("over a gap", allow(lab, (range, 3 * STEP), (1, 0), 3));
    lab.code(
        "nothing mapped",
        allow(lab, (range + 4 * STEP, STEP), (1, 0), 3),
    );
    lab.code("4 KiB", allow(lab, (range, 4096), (1, 0), 3));
    lab.code("no size", allow(lab, (range, 0), (1, 0), 3));
    lab.code("device 99", allow(lab, two, (1, 99), 3));
    lab.code("flags 7", allow(lab, two, (1, 0), 7));
    lab.code("of the host", allow(lab, two, (2, 0), 3));
    lab.code("of a node", allow(lab, two, (3, 0), 3));
    let none = cu!(
        lab,
        cuMemSetAccess(range, 2 * STEP as usize, std::ptr::null(), 0)
    );
    lab.code("for nobody", none);
    let code = allow(lab, two, (1, 0), 3);
    lab.code("over two mappings", code);
    if code != OK {
        // What follows is asked of memory that may be touched.
        for at in [range, range + STEP] {
            let code = allow(lab, (at, STEP), (1, 0), 3);
            lab.fine("cuMemSetAccess", code)?;
        }
    }
    lab.say("then", access(lab, range + STEP, 1, 0));
    lab.say("then, device 99", access(lab, range, 1, 99));
    lab.say("then, the host", access(lab, range, 2, 0));
    lab.say(
        "then, where nothing is mapped",
        access(lab, range + 4 * STEP, 1, 0),
    );
    let answer = and_synchronise(lab, fill(lab, range, 2 * STEP, stream), stream);
    lab.say("a memset over both", answer);
    let code = fill(lab, range + STEP - 64, 128, stream);
    let answer = and_synchronise(lab, code, stream);
    lab.say("a memset across the border", answer);
    let code = cu!(
        lab,
        cuMemcpyDtoDAsync_v2(range, range + STEP - 64, 128, stream)
    );
    lab.say(
        "a copy across the border",
        and_synchronise(lab, code, stream),
    );
    lab.code("read only", allow(lab, two, (1, 0), 1));
    lab.say("then it is", access(lab, range, 1, 0));
    lab.code("taken away", allow(lab, two, (1, 0), 0));
    lab.say("then there is", access(lab, range, 1, 0));
    lab.fine("cuMemSetAccess", allow(lab, two, (1, 0), 3))?;
    end(lab, range, 2 * STEP, 8 * STEP)
}

/// Work that crosses from one mapping into the next, with and without a current context.
pub(crate) fn borders(lab: &Lab) -> Result<()> {
    let (range, stream) = (reserve(lab, 2 * STEP)?, lab.stream()?);
    for at in [range, range + STEP] {
        back(lab, at, STEP)?;
    }
    let (mut other, mut host) = (0, vec![0_u8; 64]);
    let bytes = host.len();
    let code = cu!(lab, cuMemAlloc_v2(&raw mut other, bytes));
    lab.fine("cuMemAlloc", code)?;
    let context = lab.context();
    let memory = host.as_mut_ptr().cast();
    let border = range + STEP - 16;
    for (when, current) in [("", true), (", no context", false)] {
        if !current {
            lab.no_context()?;
        }
        let say = |what: &str, code: CUresult| {
            let answer = and_synchronise(lab, code, stream);
            lab.say(format!("{what}{when}"), answer);
        };
        say("memset", fill(lab, border, bytes as u64, stream));
        let code = cu!(lab, cuMemcpyDtoDAsync_v2(other, border, bytes, stream));
        say("from there", code);
        let code = cu!(lab, cuMemcpyDtoDAsync_v2(border, other, bytes, stream));
        say("to there", code);
        let code = cu!(lab, cuMemcpyAsync(range, border, bytes, stream));
        say("by address", code);
        let code = cu!(lab, cuMemcpyDtoHAsync_v2(memory, border, bytes, stream));
        say("to the host", code);
        let code = cu!(lab, cuMemcpyHtoDAsync_v2(border, memory, bytes, stream));
        say("from the host", code);
        let code = cu!(
            lab,
            cuMemcpyPeerAsync(other, context, border, context, bytes, stream)
        );
        say("between contexts", code);
        // Beside the border, so that it is known what the refusals are about.
        let code = cu!(lab, cuMemcpyDtoDAsync_v2(other, range, bytes, stream));
        say("within one", code);
    }
    lab.current(context)?;
    lab.fine("cuMemFree", cu!(lab, cuMemFree_v2(other)))?;
    end(lab, range, 2 * STEP, 2 * STEP)
}

/// What may crash a driver: each in a process of its own. Work on memory that is not mapped, or without
/// access, is not asked for: it might break more than its own context.
pub(crate) fn odd(lab: &Lab) -> Result<()> {
    lab.alone("cuMemAddressFree with a mapping", || {
        let range = reserve(lab, 2 * STEP)?;
        back(lab, range, STEP)?;
        let freed = name(address_free(lab, range, 2 * STEP));
        let then = name(unmap(lab, range, STEP));
        Ok(format!("{freed}, then unmapped {then}"))
    });
    lab.alone("cuMemRelease twice", || {
        let handle = create(lab, STEP)?;
        lab.fine("cuMemRelease", release(lab, handle))?;
        Ok(name(release(lab, handle)))
    });
    lab.alone("cuMemRelease twice while mapped", || {
        let (range, handle) = (reserve(lab, STEP)?, create(lab, STEP)?);
        lab.fine("cuMemMap", map(lab, range, STEP, handle))?;
        lab.fine("cuMemRelease", release(lab, handle))?;
        Ok(name(release(lab, handle)))
    });
    lab.alone("cuMemMap of a released handle", || {
        let (range, handle) = (reserve(lab, STEP)?, create(lab, STEP)?);
        lab.fine("cuMemRelease", release(lab, handle))?;
        Ok(name(map(lab, range, STEP, handle)))
    });
    lab.alone("cuMemFree of mapped memory", || {
        let range = reserve(lab, 2 * STEP)?;
        back(lab, range, STEP)?;
        Ok(name(cu!(lab, cuMemFree_v2(range))))
    });
    lab.alone("cuMemFreeAsync of mapped memory", || {
        let (range, stream) = (reserve(lab, 2 * STEP)?, lab.stream()?);
        back(lab, range, STEP)?;
        Ok(name(cu!(lab, cuMemFreeAsync(range, stream))))
    });
    Ok(())
}

/// The same memory at two addresses, and after its mapping.
pub(crate) fn bytes(lab: &Lab) -> Result<()> {
    let (range, handle) = (reserve(lab, 4 * STEP)?, create(lab, STEP)?);
    let stream = lab.stream()?;
    let read = |at: CUdeviceptr| -> Result<u8> {
        let mut byte = 0_u8;
        let place = (&raw mut byte).cast();
        lab.fine("cuMemcpyDtoH", cu!(lab, cuMemcpyDtoH_v2(place, at, 1)))?;
        Ok(byte)
    };
    let show = |at: CUdeviceptr| -> Result<()> {
        lab.fine("cuMemMap", map(lab, at, STEP, handle))?;
        lab.fine("cuMemSetAccess", allow(lab, (at, STEP), (1, 0), 3))
    };
    show(range)?;
    lab.fine("cuMemsetD8Async", fill(lab, range, STEP, stream))?;
    lab.synchronise(stream)?;
    show(range + 2 * STEP)?;
    let second = read(range + 2 * STEP + 99)?;
    lab.say("the same at a second address", yes(second == 5));
    lab.fine("cuMemUnmap", unmap(lab, range, STEP))?;
    lab.fine("cuMemUnmap", unmap(lab, range + 2 * STEP, STEP))?;
    show(range + STEP)?;
    let third = read(range + STEP)?;
    lab.say("the same when it is mapped again", yes(third == 5));
    lab.fine("cuMemRelease", release(lab, handle))?;
    lab.fine("cuMemUnmap", unmap(lab, range + STEP, STEP))?;
    lab.fine("cuMemAddressFree", address_free(lab, range, 4 * STEP))
}

/// What returns while another stream is held. The work that is held touches other memory.
pub(crate) fn waits(lab: &Lab) -> Result<()> {
    let (stream, range) = (lab.stream()?, reserve(lab, 64 * MIB)?);
    back(lab, range, STEP)?;
    back(lab, range + STEP, STEP)?;
    let handle = create(lab, STEP)?;
    let free = range + 2 * STEP;
    let say = |part: &str, (code, waited): (CUresult, &str)| {
        lab.say(part, format!("{}, {waited}", name(code)));
    };
    say(
        "map",
        while_held(lab, stream, || map(lab, free, STEP, handle))?,
    );
    let work = || allow(lab, (free, STEP), (1, 0), 3);
    say("set access", while_held(lab, stream, work)?);
    say("release", while_held(lab, stream, || release(lab, handle))?);
    say("unmap", while_held(lab, stream, || unmap(lab, free, STEP))?);
    let (created, waited) = while_held(lab, stream, || create(lab, STEP))?;
    lab.say("create", waited);
    lab.fine("cuMemRelease", release(lab, created?))?;
    // With work queued behind the gate, on the first mapping; the second one goes.
    let gate = Gate::hold(lab, stream)?;
    lab.fine("cuMemsetD8Async", fill(lab, range, STEP, stream))?;
    let code = unmap(lab, range + STEP, STEP);
    let done = cu!(lab, cuStreamQuery(stream));
    gate.open();
    lab.say(
        "unmap of a neighbour of what is queued",
        format!("{}, the stream then {}", name(code), name(done)),
    );
    let answer = and_synchronise(lab, OK, stream);
    lab.say("the queued work", answer);
    end(lab, range, STEP, 64 * MIB)
}

/// Mapped memory and contexts.
pub(crate) fn contexts(lab: &Lab) -> Result<()> {
    let range = reserve(lab, 4 * STEP)?;
    lab.no_context()?;
    let handle = create(lab, STEP)?;
    let mapped = map(lab, range, STEP, handle);
    lab.code("mapped without context", mapped);
    let allowed = allow(lab, (range, STEP), (1, 0), 3);
    lab.code("access set without context", allowed);
    lab.current(lab.context())?;
    if (mapped, allowed) == (OK, OK) {
        let stream = lab.stream()?;
        let answer = and_synchronise(lab, fill(lab, range, STEP, stream), stream);
        lab.say("a memset", answer);
    }
    lab.no_context()?;
    lab.fine("release", lab.release())?;
    let context = lab.retain()?;
    lab.current(context)?;
    let (code, mapped) = attribute(lab, 13, range);
    lab.say(
        "mapped in the next primary context",
        format!("{}, {mapped}", name(code)),
    );
    lab.say("access there", access(lab, range, 1, 0));
    lab.code("released", release(lab, handle));
    lab.code("unmapped", unmap(lab, range, STEP));
    lab.code("freed", address_free(lab, range, 4 * STEP));
    Ok(())
}
