//! Many prefetches and discards of managed memory in one call, and its attachment to a stream.

use std::ffi::c_int;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MIB, OK, cu, name, yes};
use crate::gate::while_held;
use crate::managed::{fill, holds, managed};

const LEN: usize = 4 << 20;

fn device() -> CUmemLocation {
    location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0)
}

fn host() -> CUmemLocation {
    location(CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST, 0)
}

/// A list of ranges, and of places with the index of the first range that each is for.
#[derive(Clone)]
struct Batch {
    ranges: Vec<(CUdeviceptr, usize)>,
    places: Vec<(CUmemLocation, usize)>,
    flags: u64,
}

#[derive(Clone, Copy)]
enum Call {
    Prefetch,
    Discard,
    Both,
}

const CALLS: [(&str, Call); 3] = [
    ("prefetch", Call::Prefetch),
    ("discard", Call::Discard),
    ("both", Call::Both),
];

impl Batch {
    fn submit(&self, env: &Environment, call: Call, stream: CUstream) -> CUresult {
        let (mut at, mut sizes): (Vec<_>, Vec<_>) = self.ranges.iter().copied().unzip();
        let (mut places, mut first): (Vec<_>, Vec<_>) = self.places.iter().copied().unzip();
        let (ranges, places_len) = (at.len(), places.len());
        let (at, sizes) = (at.as_mut_ptr(), sizes.as_mut_ptr());
        let (places, first) = (places.as_mut_ptr(), first.as_mut_ptr());
        match call {
            Call::Prefetch => cu!(
                env,
                cuMemPrefetchBatchAsync(
                    at, sizes, ranges, places, first, places_len, self.flags, stream
                )
            ),
            Call::Discard => cu!(
                env,
                cuMemDiscardBatchAsync(at, sizes, ranges, self.flags, stream)
            ),
            Call::Both => cu!(
                env,
                cuMemDiscardAndPrefetchBatchAsync(
                    at, sizes, ranges, places, first, places_len, self.flags, stream
                )
            ),
        }
    }
}

/// Where a range was prefetched to last.
fn last(env: &Environment, at: CUdeviceptr, len: usize) -> String {
    let mut value: c_int = -77;
    let key = CUmem_range_attribute::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION;
    let code = cu!(
        env,
        cuMemRangeGetAttribute((&raw mut value).cast(), 4, key, at, len)
    );
    match code {
        OK => value.to_string(),
        code => name(code),
    }
}

/// Lists that are right, and lists that are not.
pub(crate) fn lists(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let (a, b) = (managed(env, LEN)?, managed(env, LEN)?);
    let plain = env.plain(LEN)?;
    let two = Batch {
        ranges: vec![(a, LEN), (b, LEN)],
        places: vec![(device(), 0)],
        flags: 0,
    };
    let with = |change: fn(&mut Batch)| {
        let mut batch = two.clone();
        change(&mut batch);
        batch
    };
    let mut cases = vec![
        ("two to one place", two.clone()),
        (
            "two to a place each",
            with(|it| it.places.push((host(), 1))),
        ),
        ("nothing", with(|it| it.ranges.clear())),
        ("no places", with(|it| it.places.clear())),
        (
            "nothing and no places",
            with(|it| {
                it.ranges.clear();
                it.places.clear();
            }),
        ),
        ("flags 1", with(|it| it.flags = 1)),
        ("first index 1", with(|it| it.places[0].1 = 1)),
        ("an index beyond", with(|it| it.places.push((host(), 2)))),
        ("equal indices", with(|it| it.places.push((host(), 0)))),
        (
            "falling indices",
            with(|it| {
                it.places = vec![(device(), 0), (host(), 1), (device(), 0)];
            }),
        ),
        (
            "more places than ranges",
            with(|it| {
                it.places = vec![(device(), 0), (host(), 1), (device(), 2)];
            }),
        ),
        ("a length of 0", with(|it| it.ranges[1].1 = 0)),
        ("a length past the end", with(|it| it.ranges[1].1 += 1)),
        ("a part", with(|it| it.ranges[1].1 = 5000)),
        ("an address of null", with(|it| it.ranges[1].0 = 0)),
        (
            "device 99",
            with(|it| {
                it.places[0].0 = location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 99);
            }),
        ),
        (
            "no location",
            with(|it| {
                it.places[0].0 = location(CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID, 0);
            }),
        ),
        (
            "node 0",
            with(|it| {
                it.places[0].0 = location(CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);
            }),
        ),
        ("the same twice", with(|it| it.ranges[1] = it.ranges[0])),
    ];
    let mut plain_memory = two.clone();
    plain_memory.ranges[1].0 = plain;
    cases.push(("plain memory", plain_memory));
    for (part, batch) in cases {
        for (what, call) in CALLS {
            // Both are at the host before.
            let back = Batch {
                places: vec![(host(), 0)],
                ..two.clone()
            };
            back.submit(env, Call::Prefetch, stream);
            let code = batch.submit(env, call, stream);
            let waited = cu!(env, cuStreamSynchronize(stream));
            let (first, second) = (last(env, a, LEN), last(env, b, LEN));
            env.say(
                format!("{what}, {part}"),
                format!("{}, {}, at {first} and {second}", name(code), name(waited)),
            );
        }
    }
    Ok(())
}

/// Lists that are null.
pub(crate) fn nulls(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let (mut a, mut len, mut first, mut place) = (managed(env, LEN)?, LEN, 0_usize, device());
    let (a, len, first, place) = (&raw mut a, &raw mut len, &raw mut first, &raw mut place);
    let none = std::ptr::null_mut();
    let prefetch = |a, len, place, first| {
        cu!(
            env,
            cuMemPrefetchBatchAsync(a, len, 1, place, first, 1, 0, stream)
        )
    };
    env.code("no addresses", prefetch(none, len, place, first));
    env.code(
        "no lengths",
        prefetch(a, std::ptr::null_mut(), place, first),
    );
    env.code(
        "no list of places",
        prefetch(a, len, std::ptr::null_mut(), first),
    );
    env.code(
        "no list of indices",
        prefetch(a, len, place, std::ptr::null_mut()),
    );
    let discard = |a, len| cu!(env, cuMemDiscardBatchAsync(a, len, 1, 0, stream));
    env.code("discard, no addresses", discard(none, len));
    env.code("discard, no lengths", discard(a, std::ptr::null_mut()));
    Ok(())
}

/// Default streams, captured streams, streams that are busy, and no context.
pub(crate) fn streams(env: &Environment) -> Result<()> {
    let a = managed(env, LEN)?;
    let batch = Batch {
        ranges: vec![(a, LEN)],
        places: vec![(device(), 0)],
        flags: 0,
    };
    for (what, call) in CALLS {
        let null = std::ptr::null_mut();
        env.code(format!("{what}, null"), batch.submit(env, call, null));
        env.code(
            format!("{what}, legacy"),
            batch.submit(env, call, CU_STREAM_LEGACY),
        );
        env.code(
            format!("{what}, per thread"),
            batch.submit(env, call, CU_STREAM_PER_THREAD),
        );
        let stream = env.stream()?;
        let (code, waited) = while_held(env, stream, || batch.submit(env, call, stream))?;
        env.say(
            format!("{what}, a stream held"),
            format!("{}, {waited}", name(code)),
        );
        env.synchronise(stream)?;
        for mode in [0, 2] {
            let mode_of = CUstreamCaptureMode(mode);
            let begun = cu!(env, cuStreamBeginCapture_v2(stream, mode_of));
            env.fine("cuStreamBeginCapture", begun)?;
            let code = batch.submit(env, call, stream);
            let mut graph = std::ptr::null_mut();
            let ended = cu!(env, cuStreamEndCapture(stream, &raw mut graph));
            env.say(
                format!("{what}, captured in mode {mode}"),
                format!("{}, ended {}", name(code), name(ended)),
            );
        }
        env.no_context()?;
        env.code(
            format!("{what}, no context"),
            batch.submit(env, call, stream),
        );
        env.current(env.context())?;
        env.synchronise(stream)?;
    }
    Ok(())
}

/// What bytes are there after a discard, once they were written again.
pub(crate) fn contents(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let a = managed(env, LEN)?;
    let batch = Batch {
        ranges: vec![(a, LEN)],
        places: vec![(device(), 0)],
        flags: 0,
    };
    for (what, call) in CALLS {
        fill(a, LEN, 7);
        env.code(what, batch.submit(env, call, stream));
        env.synchronise(stream)?;
        if matches!(call, Call::Prefetch) {
            env.say("kept by a prefetch", yes(holds(a, LEN, 7)));
        }
        let code = cu!(env, cuMemsetD8Async(a, 9, LEN, stream));
        env.synchronise(stream)?;
        env.say(
            format!("written after {what}"),
            format!("{}, {}", name(code), yes(holds(a, LEN, 9))),
        );
    }
    let pool = env.pool_with(&CUmemPoolProps {
        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED,
        ..Environment::props()
    });
    if pool.0 == OK {
        let block = env.alloc(pool.1, 4 * MIB, stream)?;
        let batch = Batch {
            ranges: vec![(block, LEN)],
            ..batch
        };
        for (what, call) in CALLS {
            env.code(
                format!("a managed pool, {what}"),
                batch.submit(env, call, stream),
            );
        }
        env.free(block, stream)?;
    }
    env.synchronise(stream)
}

/// In which order those come who were advised to be users.
pub(crate) fn users(env: &Environment) -> Result<()> {
    let a = managed(env, LEN)?;
    let advise = |place| {
        let advice = CUmem_advise::CU_MEM_ADVISE_SET_ACCESSED_BY;
        cu!(env, cuMemAdvise_v2(a, LEN, advice, place))
    };
    let by = |room: usize| {
        let mut by: [c_int; 4] = [-77; 4];
        let key = CUmem_range_attribute::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY;
        let code = cu!(
            env,
            cuMemRangeGetAttribute(by.as_mut_ptr().cast(), room * 4, key, a, LEN)
        );
        format!("{} {by:?}", name(code))
    };
    env.say("at first", by(3));
    env.code("host", advise(host()));
    env.say("the host alone", by(3));
    env.code("device", advise(device()));
    env.say("host, then device", by(3));
    env.say("room for one", by(1));
    env.say("room for two", by(2));
    env.say("room for four", by(4));
    Ok(())
}
