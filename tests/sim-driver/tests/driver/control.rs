//! Faults, counts, and what is alive.

use cuda_driver_sys::*;
use cuda_sim::{Control, ControlError, Live};

use crate::harness::*;

const UNKNOWN: CUresult = CUresult::CUDA_ERROR_UNKNOWN;

#[test]
fn calls_are_counted_by_name() {
    let _turn = turn();
    let control = control();
    let (pool, stream) = (pool(&props()), stream());
    control.reset();
    let ((), log) = control.record(|| {
        let x = alloc(pool, 64, stream);
        free(x, stream);
    });
    assert_eq!(log, ["cuMemAllocFromPoolAsync", "cuMemFreeAsync"]);
    assert_eq!(control.calls_total(), 2);
    assert_eq!(control.calls("cuMemFreeAsync"), 1);
    assert_eq!(control.calls("cuMemFreeAsync_ptsz"), 0);
    assert_eq!(control.calls("cuTeapot"), 0);
    control.reset();
    assert_eq!(control.calls_total(), 0);
    assert!(control.call_log().is_empty());
    cu!(cuMemPoolDestroy(pool));
    cu!(cuStreamDestroy_v2(stream));
}

#[test]
fn the_nth_call_fails_and_has_no_effect() {
    let _turn = turn();
    let control = control();
    let (pool, stream) = (pool(&props()), stream());
    control.fail("cuMemAllocFromPoolAsync", 2, UNKNOWN);
    let x = alloc(pool, 64, stream);
    let mut out = 7;
    let answer = cu!(cuMemAllocFromPoolAsync(&raw mut out, 64, pool, stream));
    assert_eq!((answer, out), (UNKNOWN, 7));
    assert_eq!(control.live().allocations, 1);
    let y = alloc(pool, 64, stream);
    free(x, stream);
    free(y, stream);
    cu!(cuMemPoolDestroy(pool));
    cu!(cuStreamDestroy_v2(stream));
}

#[test]
fn a_failing_release_still_releases() {
    let _turn = turn();
    let control = control();
    let (pool, stream) = (pool(&props()), stream());
    let x = alloc(pool, 64, stream);
    for function in ["cuMemFreeAsync", "cuMemPoolDestroy", "cuStreamDestroy_v2"] {
        control.fail(function, 1, UNKNOWN);
    }
    assert_eq!(cu!(cuMemFreeAsync(x, stream)), UNKNOWN);
    assert_eq!(cu!(cuMemPoolDestroy(pool)), UNKNOWN);
    assert_eq!(cu!(cuStreamDestroy_v2(stream)), UNKNOWN);
    let live = Live {
        primary_retains: 1,
        ..Live::default()
    };
    assert_eq!(control.live(), live);
}

#[test]
fn a_release_can_also_be_made_to_do_nothing() {
    let _turn = turn();
    let control = control();
    let (pool, stream) = (pool(&props()), stream());
    let x = alloc(pool, 64, stream);
    for function in ["cuMemFreeAsync", "cuMemPoolDestroy", "cuStreamDestroy_v2"] {
        control.fail_without_effect(function, 1, UNKNOWN);
    }
    assert_eq!(cu!(cuMemFreeAsync(x, stream)), UNKNOWN);
    assert_eq!(cu!(cuMemPoolDestroy(pool)), UNKNOWN);
    assert_eq!(cu!(cuStreamDestroy_v2(stream)), UNKNOWN);
    let live = control.live();
    assert_eq!((live.allocations, live.pools, live.streams), (1, 1, 1));
    // Armed for one call each: the second does its work.
    free(x, stream);
    assert_eq!(cu!(cuMemPoolDestroy(pool)), OK);
    assert_eq!(cu!(cuStreamDestroy_v2(stream)), OK);
}

#[test]
fn any_call_can_be_made_to_fail() {
    let _turn = turn();
    let control = control();
    control.fail_call(2, UNKNOWN);
    let mut count = 0;
    assert_eq!(cu!(cuDeviceGetCount(&raw mut count)), OK);
    assert_eq!(cu!(cuDeviceGetCount(&raw mut count)), UNKNOWN);
    assert_eq!(cu!(cuDeviceGetCount(&raw mut count)), OK);
    control.fail_call(1, UNKNOWN);
    control.clear_faults();
    assert_eq!(cu!(cuDeviceGetCount(&raw mut count)), OK);
}

#[test]
fn what_is_alive_is_counted() {
    let _turn = turn();
    let control = control();
    let before = control.live();
    let (pool, stream, event) = (pool(&props()), stream(), event());
    let x = alloc(pool, 100, stream);
    let y: CUdeviceptr = get!(cuMemAlloc_v2(_, 11));
    let live = control.live();
    assert_eq!((live.pools, live.streams, live.events), (1, 1, 1));
    assert_eq!((live.allocations, live.bytes), (2, 111));
    free(x, stream);
    assert_eq!(cu!(cuMemFree_v2(y)), OK);
    cu!(cuEventDestroy_v2(event));
    cu!(cuMemPoolDestroy(pool));
    cu!(cuStreamDestroy_v2(stream));
    assert_eq!(control.live(), before);
}

#[test]
fn another_library_is_not_taken_for_the_simulator() {
    let answer = Control::open("libc.so.6");
    assert!(matches!(answer, Err(ControlError::NotTheSimulator { .. })));
    let answer = Control::open("/nowhere/libcuda_sim.so");
    assert!(matches!(answer, Err(ControlError::Open { .. })));
}
