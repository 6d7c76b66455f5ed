//! Mappings of physical memory: what can be mapped and unmapped, who has access, and what waits.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, OK, cu, name, yes};
use crate::gate::{Gate, while_held};
use crate::two::{and_synchronise, attribute};
use crate::vmm::{
    STEP, access, address_free, allow, back, create, end, map, release, reserve, unmap,
};

fn fill(env: &Environment, at: CUdeviceptr, bytes: u64, stream: CUstream) -> CUresult {
    cu!(env, cuMemsetD8Async(at, 5, bytes as usize, stream))
}

pub(crate) fn mappings(env: &Environment) -> Result<()> {
    let (range, handle) = (reserve(env, 8 * STEP)?, create(env, 2 * STEP)?);
    let say = |part: &str, code: CUresult| env.code(part, code);
    say("odd address", map(env, range + 4096, 2 * STEP, handle));
    say("odd size", map(env, range, STEP + 4096, handle));
    say("no size", map(env, range, 0, handle));
    say("more than there is", map(env, range, 4 * STEP, handle));
    let past = map(env, range + 7 * STEP, 2 * STEP, handle);
    say("past the reservation", past);
    if past == OK {
        say("past it unmapped", unmap(env, range + 7 * STEP, 2 * STEP));
    }
    let len = STEP as usize;
    say("an offset", cu!(env, cuMemMap(range, len, len, handle, 0)));
    say("flags 1", cu!(env, cuMemMap(range, 2 * len, 0, handle, 1)));
    let half = map(env, range, STEP, handle);
    say("half of it", half);
    if half == OK {
        say("the half unmapped", unmap(env, range, STEP));
    }
    say("all", map(env, range, 2 * STEP, handle));
    say("there again", map(env, range, 2 * STEP, handle));
    say(
        "elsewhere too",
        map(env, range + 2 * STEP, 2 * STEP, handle),
    );
    say("a part unmapped", unmap(env, range, STEP));
    say("one and a half unmapped", unmap(env, range, 3 * STEP));
    say("more than is mapped", unmap(env, range, 6 * STEP));
    say("what is not mapped", unmap(env, range + 6 * STEP, STEP));
    say("two at once unmapped", unmap(env, range, 4 * STEP));
    say("again", unmap(env, range, 4 * STEP));
    say("released", release(env, handle));
    env.fine("cuMemAddressFree", address_free(env, range, 8 * STEP))
}

/// What may be done with memory that is only readable, and which access unmapped memory is said to have.
pub(crate) fn reading(env: &Environment) -> Result<()> {
    let told = |part: &str, make: &dyn Fn() -> Result<CUdeviceptr>| {
        env.alone(&format!("told of {part} memory"), || {
            Ok(access(env, make()?, 1, 0))
        });
    };
    told("pool", &|| env.alloc(env.pool(0)?, 1000, env.stream()?));
    told("plain", &|| env.plain(1000));
    told("pinned", &|| Ok(env.pinned(64)?.expose_provenance() as u64));
    let work = |part: &str, ask: &dyn Fn(CUdeviceptr, CUdeviceptr, CUstream) -> CUresult| {
        env.alone(part, || {
            let (range, other, stream) = (reserve(env, STEP)?, env.plain(64)?, env.stream()?);
            back(env, range, STEP)?;
            env.fine("cuMemsetD8Async", fill(env, range, STEP, stream))?;
            env.fine("cuStreamSynchronize", cu!(env, cuStreamSynchronize(stream)))?;
            env.fine("cuMemSetAccess", allow(env, (range, STEP), (1, 0), 1))?;
            let code = ask(range, other, stream);
            Ok(and_synchronise(env, code, stream))
        });
    };
    work("a memset", &|there, _, stream| fill(env, there, 64, stream));
    work("a copy to there", &|there, other, stream| {
        cu!(env, cuMemcpyDtoDAsync_v2(there, other, 64, stream))
    });
    work("a copy from there", &|there, other, stream| {
        cu!(env, cuMemcpyDtoDAsync_v2(other, there, 64, stream))
    });
    work("a copy from the host", &|there, _, stream| {
        let from = [0_u8; 64];
        cu!(
            env,
            cuMemcpyHtoDAsync_v2(there, from.as_ptr().cast(), 64, stream)
        )
    });
    Ok(())
}

pub(crate) fn accesses(env: &Environment) -> Result<()> {
    let (range, stream) = (reserve(env, 8 * STEP)?, env.stream()?);
    for at in [range, range + STEP] {
        let handle = create(env, STEP)?;
        env.fine("cuMemMap", map(env, at, STEP, handle))?;
        env.fine("cuMemRelease", release(env, handle))?;
    }
    let two = (range, 2 * STEP);
    env.say("at first", access(env, range, 1, 0));
    env.code("over a gap", allow(env, (range, 3 * STEP), (1, 0), 3));
    env.code(
        "nothing mapped",
        allow(env, (range + 4 * STEP, STEP), (1, 0), 3),
    );
    env.code("4 KiB", allow(env, (range, 4096), (1, 0), 3));
    env.code("no size", allow(env, (range, 0), (1, 0), 3));
    env.code("device 99", allow(env, two, (1, 99), 3));
    env.code("flags 7", allow(env, two, (1, 0), 7));
    env.code("of the host", allow(env, two, (2, 0), 3));
    env.code("of a node", allow(env, two, (3, 0), 3));
    let none = cu!(
        env,
        cuMemSetAccess(range, 2 * STEP as usize, std::ptr::null(), 0)
    );
    env.code("for nobody", none);
    let code = allow(env, two, (1, 0), 3);
    env.code("over two mappings", code);
    if code != OK {
        // What follows is asked of memory that may be touched.
        for at in [range, range + STEP] {
            let code = allow(env, (at, STEP), (1, 0), 3);
            env.fine("cuMemSetAccess", code)?;
        }
    }
    env.say("then", access(env, range + STEP, 1, 0));
    env.say("then, device 99", access(env, range, 1, 99));
    env.say("then, the host", access(env, range, 2, 0));
    env.say(
        "then, where nothing is mapped",
        access(env, range + 4 * STEP, 1, 0),
    );
    let answer = and_synchronise(env, fill(env, range, 2 * STEP, stream), stream);
    env.say("a memset over both", answer);
    let code = fill(env, range + STEP - 64, 128, stream);
    let answer = and_synchronise(env, code, stream);
    env.say("a memset across the border", answer);
    let code = cu!(
        env,
        cuMemcpyDtoDAsync_v2(range, range + STEP - 64, 128, stream)
    );
    env.say(
        "a copy across the border",
        and_synchronise(env, code, stream),
    );
    env.code("read only", allow(env, two, (1, 0), 1));
    env.say("then it is", access(env, range, 1, 0));
    env.code("taken away", allow(env, two, (1, 0), 0));
    env.say("then there is", access(env, range, 1, 0));
    env.fine("cuMemSetAccess", allow(env, two, (1, 0), 3))?;
    end(env, range, 2 * STEP, 8 * STEP)
}

/// Work that crosses from one mapping into the next, with and without a current context.
pub(crate) fn borders(env: &Environment) -> Result<()> {
    let (range, stream) = (reserve(env, 2 * STEP)?, env.stream()?);
    for at in [range, range + STEP] {
        back(env, at, STEP)?;
    }
    let (mut other, mut host) = (0, vec![0_u8; 64]);
    let bytes = host.len();
    let code = cu!(env, cuMemAlloc_v2(&raw mut other, bytes));
    env.fine("cuMemAlloc", code)?;
    let context = env.context();
    let memory = host.as_mut_ptr().cast();
    let border = range + STEP - 16;
    for (when, current) in [("", true), (", no context", false)] {
        if !current {
            env.no_context()?;
        }
        let say = |what: &str, code: CUresult| {
            let answer = and_synchronise(env, code, stream);
            env.say(format!("{what}{when}"), answer);
        };
        say("memset", fill(env, border, bytes as u64, stream));
        let code = cu!(env, cuMemcpyDtoDAsync_v2(other, border, bytes, stream));
        say("from there", code);
        let code = cu!(env, cuMemcpyDtoDAsync_v2(border, other, bytes, stream));
        say("to there", code);
        let code = cu!(env, cuMemcpyAsync(range, border, bytes, stream));
        say("by address", code);
        let code = cu!(env, cuMemcpyDtoHAsync_v2(memory, border, bytes, stream));
        say("to the host", code);
        let code = cu!(env, cuMemcpyHtoDAsync_v2(border, memory, bytes, stream));
        say("from the host", code);
        let code = cu!(
            env,
            cuMemcpyPeerAsync(other, context, border, context, bytes, stream)
        );
        say("between contexts", code);
        // Beside the border, so that it is known what the refusals are about.
        let code = cu!(env, cuMemcpyDtoDAsync_v2(other, range, bytes, stream));
        say("within one", code);
    }
    env.current(context)?;
    env.fine("cuMemFree", cu!(env, cuMemFree_v2(other)))?;
    end(env, range, 2 * STEP, 2 * STEP)
}

/// What may crash a driver: each in a process of its own. Work on memory that is not mapped, or without
/// access, is not asked for: it might break more than its own context.
pub(crate) fn odd(env: &Environment) -> Result<()> {
    env.alone("cuMemAddressFree with a mapping", || {
        let range = reserve(env, 2 * STEP)?;
        back(env, range, STEP)?;
        let freed = name(address_free(env, range, 2 * STEP));
        let then = name(unmap(env, range, STEP));
        Ok(format!("{freed}, then unmapped {then}"))
    });
    env.alone("cuMemRelease twice", || {
        let handle = create(env, STEP)?;
        env.fine("cuMemRelease", release(env, handle))?;
        Ok(name(release(env, handle)))
    });
    env.alone("cuMemRelease twice while mapped", || {
        let (range, handle) = (reserve(env, STEP)?, create(env, STEP)?);
        env.fine("cuMemMap", map(env, range, STEP, handle))?;
        env.fine("cuMemRelease", release(env, handle))?;
        Ok(name(release(env, handle)))
    });
    env.alone("cuMemMap of a released handle", || {
        let (range, handle) = (reserve(env, STEP)?, create(env, STEP)?);
        env.fine("cuMemRelease", release(env, handle))?;
        Ok(name(map(env, range, STEP, handle)))
    });
    env.alone("cuMemFree of mapped memory", || {
        let range = reserve(env, 2 * STEP)?;
        back(env, range, STEP)?;
        Ok(name(cu!(env, cuMemFree_v2(range))))
    });
    env.alone("cuMemFreeAsync of mapped memory", || {
        let (range, stream) = (reserve(env, 2 * STEP)?, env.stream()?);
        back(env, range, STEP)?;
        Ok(name(cu!(env, cuMemFreeAsync(range, stream))))
    });
    Ok(())
}

/// The same memory at two addresses, and after its mapping.
pub(crate) fn bytes(env: &Environment) -> Result<()> {
    let (range, handle) = (reserve(env, 4 * STEP)?, create(env, STEP)?);
    let stream = env.stream()?;
    let read = |at: CUdeviceptr| -> Result<u8> {
        let mut byte = 0_u8;
        let place = (&raw mut byte).cast();
        env.fine("cuMemcpyDtoH", cu!(env, cuMemcpyDtoH_v2(place, at, 1)))?;
        Ok(byte)
    };
    let show = |at: CUdeviceptr| -> Result<()> {
        env.fine("cuMemMap", map(env, at, STEP, handle))?;
        env.fine("cuMemSetAccess", allow(env, (at, STEP), (1, 0), 3))
    };
    show(range)?;
    env.fine("cuMemsetD8Async", fill(env, range, STEP, stream))?;
    env.synchronise(stream)?;
    show(range + 2 * STEP)?;
    let second = read(range + 2 * STEP + 99)?;
    env.say("the same at a second address", yes(second == 5));
    env.fine("cuMemUnmap", unmap(env, range, STEP))?;
    env.fine("cuMemUnmap", unmap(env, range + 2 * STEP, STEP))?;
    show(range + STEP)?;
    let third = read(range + STEP)?;
    env.say("the same when it is mapped again", yes(third == 5));
    env.fine("cuMemRelease", release(env, handle))?;
    env.fine("cuMemUnmap", unmap(env, range + STEP, STEP))?;
    env.fine("cuMemAddressFree", address_free(env, range, 4 * STEP))
}

/// What returns while another stream is held. The work that is held touches other memory.
pub(crate) fn waits(env: &Environment) -> Result<()> {
    let (stream, range) = (env.stream()?, reserve(env, 64 * MIB)?);
    back(env, range, STEP)?;
    back(env, range + STEP, STEP)?;
    let handle = create(env, STEP)?;
    let free = range + 2 * STEP;
    let say = |part: &str, (code, waited): (CUresult, &str)| {
        env.say(part, format!("{}, {waited}", name(code)));
    };
    say(
        "map",
        while_held(env, stream, || map(env, free, STEP, handle))?,
    );
    let work = || allow(env, (free, STEP), (1, 0), 3);
    say("set access", while_held(env, stream, work)?);
    say("release", while_held(env, stream, || release(env, handle))?);
    say("unmap", while_held(env, stream, || unmap(env, free, STEP))?);
    let (created, waited) = while_held(env, stream, || create(env, STEP))?;
    env.say("create", waited);
    env.fine("cuMemRelease", release(env, created?))?;
    // With work queued behind the gate, on the first mapping; the second one goes.
    let gate = Gate::hold(env, stream)?;
    env.fine("cuMemsetD8Async", fill(env, range, STEP, stream))?;
    let code = unmap(env, range + STEP, STEP);
    let done = cu!(env, cuStreamQuery(stream));
    gate.open();
    env.say(
        "unmap of a neighbour of what is queued",
        format!("{}, the stream then {}", name(code), name(done)),
    );
    let answer = and_synchronise(env, OK, stream);
    env.say("the queued work", answer);
    end(env, range, STEP, 64 * MIB)
}

/// Mapped memory and contexts.
pub(crate) fn contexts(env: &Environment) -> Result<()> {
    let range = reserve(env, 4 * STEP)?;
    env.no_context()?;
    let handle = create(env, STEP)?;
    let mapped = map(env, range, STEP, handle);
    env.code("mapped without context", mapped);
    let allowed = allow(env, (range, STEP), (1, 0), 3);
    env.code("access set without context", allowed);
    env.current(env.context())?;
    if (mapped, allowed) == (OK, OK) {
        let stream = env.stream()?;
        let answer = and_synchronise(env, fill(env, range, STEP, stream), stream);
        env.say("a memset", answer);
    }
    env.no_context()?;
    env.fine("release", env.release())?;
    let context = env.retain()?;
    env.current(context)?;
    let (code, mapped) = attribute(env, 13, range);
    env.say(
        "mapped in the next primary context",
        format!("{}, {mapped}", name(code)),
    );
    env.say("access there", access(env, range, 1, 0));
    env.code("released", release(env, handle));
    env.code("unmapped", unmap(env, range, STEP));
    env.code("freed", address_free(env, range, 4 * STEP));
    Ok(())
}
