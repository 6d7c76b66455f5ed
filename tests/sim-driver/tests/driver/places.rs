//! Pools of host and managed memory, and default and current pools by location, as measured.

use std::ffi::{c_int, c_void};

use cuda_driver_sys::*;

use crate::harness::*;

const NOT_SUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;
const PINNED: u32 = 1;
const MANAGED: u32 = 2;

fn kind(kind: u32, place: (u32, c_int)) -> CUmemPoolProps {
    CUmemPoolProps {
        allocType: CUmemAllocationType(kind),
        location: location(CUmemLocationType(place.0), place.1),
        ..CUmemPoolProps::default()
    }
}

fn made(props: &CUmemPoolProps) -> CUresult {
    let mut pool = std::ptr::null_mut();
    let answer = cu!(cuMemPoolCreate(&raw mut pool, props));
    if answer == OK {
        assert_eq!(cu!(cuMemPoolDestroy(pool)), OK);
    }
    answer
}

fn at(default: bool, kind: u32, place: (u32, c_int)) -> Result<CUmemoryPool, CUresult> {
    let mut pool = std::ptr::null_mut();
    let mut place = location(CUmemLocationType(place.0), place.1);
    let kind = CUmemAllocationType(kind);
    let answer = if default {
        cu!(cuMemGetDefaultMemPool(&raw mut pool, &raw mut place, kind))
    } else {
        cu!(cuMemGetMemPool(&raw mut pool, &raw mut place, kind))
    };
    if answer == OK { Ok(pool) } else { Err(answer) }
}

fn set(kind: u32, place: (u32, c_int), pool: CUmemoryPool) -> CUresult {
    let mut place = location(CUmemLocationType(place.0), place.1);
    cu!(cuMemSetMemPool(
        &raw mut place,
        CUmemAllocationType(kind),
        pool
    ))
}

fn give(pool: CUmemoryPool, place: (u32, c_int), flags: u32) -> CUresult {
    let wish = CUmemAccessDesc {
        location: location(CUmemLocationType(place.0), place.1),
        flags: CUmemAccess_flags(flags),
    };
    cu!(cuMemPoolSetAccess(pool, &raw const wish, 1))
}

fn access(pool: CUmemoryPool, place: (u32, c_int)) -> u32 {
    let mut flags = CUmemAccess_flags(77);
    let mut place = location(CUmemLocationType(place.0), place.1);
    assert_eq!(
        cu!(cuMemPoolGetAccess(&raw mut flags, pool, &raw mut place)),
        OK
    );
    flags.0
}

#[test]
fn managed_pools_take_no_extras_and_name_a_known_place() {
    let _turn = turn();
    for place in [(0, 0), (1, 0), (2, 0), (2, 7), (3, 0), (4, 0)] {
        assert_eq!(made(&kind(MANAGED, place)), OK, "{place:?}");
    }
    for place in [(1, 99), (3, 99), (3, -1)] {
        assert_eq!(made(&kind(MANAGED, place)), INVALID_VALUE, "{place:?}");
    }
    assert_eq!(made(&kind(MANAGED, (5, 0))), NOT_SUPPORTED);
    let plain = kind(MANAGED, (1, 0));
    for odd in [
        CUmemPoolProps {
            maxSize: 64,
            ..plain
        },
        CUmemPoolProps { usage: 2, ..plain },
        CUmemPoolProps {
            handleTypes: CUmemAllocationHandleType(1),
            ..plain
        },
    ] {
        assert_eq!(made(&odd), INVALID_VALUE);
    }
}

/// A managed pool says that no device may do anything; its memory is everybody's all the same.
#[test]
fn what_pools_say_of_access_at_first() {
    let _turn = turn();
    for (alloc, place, device, host) in [
        (PINNED, (1, 0), 3, 0),
        (PINNED, (2, 0), 0, 3),
        (PINNED, (3, 0), 0, 3),
        (MANAGED, (1, 0), 0, 0),
    ] {
        let pool = pool(&kind(alloc, place));
        let now = (access(pool, (1, 0)), access(pool, (2, 0)));
        assert_eq!(now, (device, host), "type {alloc}, place {place:?}");
        let expected = if place.0 == 1 && alloc == PINNED {
            NOT_SUPPORTED
        } else {
            OK
        };
        assert_eq!(give(pool, (2, 0), 3), expected);
        assert_eq!(cu!(cuMemPoolDestroy(pool)), OK);
    }
}

#[test]
fn host_pool_memory_is_pinned_for_devices_with_access_and_pageable_for_others() {
    let _turn = turn();
    let (pool, stream) = (pool(&kind(PINNED, (2, 0))), stream());
    let block = alloc(pool, 64, stream);
    let plain: CUdeviceptr = get!(cuMemAlloc_v2(_, 64));
    let host = std::ptr::with_exposed_provenance_mut::<c_void>(block as usize);
    synchronise(stream);
    let back = |stream| cu!(cuMemcpyDtoHAsync_v2(host, plain, 64, stream));
    assert_eq!(back(stream), OK, "as host memory it needs no access");
    assert_eq!(cu!(cuMemsetD8Async(block, 1, 64, stream)), INVALID_VALUE);
    assert_eq!(give(pool, (1, 0), 3), OK);
    assert_eq!(cu!(cuMemsetD8Async(block, 1, 64, stream)), OK);
    let gate = Gate::hold(stream);
    assert_eq!(back(stream), OK, "it does not wait for the stream");
    drop(gate);
    synchronise(stream);
    assert_eq!(
        cu!(cuMemcpyDtoDAsync_v2(plain, block, 64, stream)),
        INVALID_VALUE,
        "a host's block is never a device's"
    );
    free(block, stream);
    synchronise(stream);
    assert_eq!(cu!(cuMemFree_v2(plain)), OK);
    assert_eq!(cu!(cuMemPoolDestroy(pool)), OK);
    assert_eq!(cu!(cuStreamDestroy_v2(stream)), OK);
}

#[test]
fn each_place_has_a_default_pool_that_stays() {
    let _turn = turn();
    let device = handle!(cuDeviceGetDefaultMemPool(_, 0));
    assert_eq!(at(true, PINNED, (1, 0)), Ok(device));
    let mut seen = vec![device];
    for (alloc, place) in [
        (PINNED, (2, 0)),
        (PINNED, (3, 0)),
        (MANAGED, (0, 0)),
        (MANAGED, (1, 0)),
        (MANAGED, (2, 0)),
        (MANAGED, (3, 0)),
    ] {
        let pool = at(true, alloc, place).expect("there is one");
        assert!(!seen.contains(&pool), "type {alloc}, place {place:?}");
        assert_eq!(at(false, alloc, place), Ok(pool));
        assert_eq!(cu!(cuMemPoolDestroy(pool)), INVALID_VALUE);
        seen.push(pool);
    }
    assert_eq!(
        at(true, PINNED, (2, 7)),
        Ok(seen[1]),
        "hosts have no number"
    );
    for (alloc, place, expected) in [
        (PINNED, (0, 0), INVALID_VALUE),
        (PINNED, (1, 99), INVALID_VALUE),
        (PINNED, (3, 99), INVALID_VALUE),
        (PINNED, (4, 0), NOT_SUPPORTED),
        (0, (1, 0), INVALID_VALUE),
        (0, (4, 0), NOT_SUPPORTED),
    ] {
        assert_eq!(at(true, alloc, place), Err(expected));
        assert_eq!(at(false, alloc, place), Err(expected));
    }
}

#[test]
fn a_pool_becomes_current_only_where_it_belongs() {
    let _turn = turn();
    let host = pool(&kind(PINNED, (2, 0)));
    for (alloc, place) in [(PINNED, (1, 0)), (PINNED, (3, 0)), (MANAGED, (2, 0))] {
        assert_eq!(set(alloc, place, host), INVALID_VALUE);
    }
    assert_eq!(set(PINNED, (2, 0), host), OK);
    assert_eq!(at(false, PINNED, (2, 0)), Ok(host));
    assert_eq!(cu!(cuMemPoolDestroy(host)), OK);
    assert_eq!(at(false, PINNED, (2, 0)), at(true, PINNED, (2, 0)));
    assert_eq!(set(PINNED, (1, 0), std::ptr::null_mut()), INVALID_VALUE);

    let device = pool(&props());
    assert_eq!(set(PINNED, (1, 0), device), OK);
    assert_eq!(handle!(cuDeviceGetMemPool(_, 0)), device);
    assert_eq!(cu!(cuMemPoolDestroy(device)), OK);

    // The function of the device takes a managed pool, for managed memory.
    let managed = pool(&kind(MANAGED, (1, 0)));
    assert_eq!(cu!(cuDeviceSetMemPool(0, managed)), OK);
    assert_eq!(at(false, MANAGED, (1, 0)), Ok(managed));
    assert_ne!(handle!(cuDeviceGetMemPool(_, 0)), managed);
    assert_eq!(cu!(cuMemPoolDestroy(managed)), OK);
}
