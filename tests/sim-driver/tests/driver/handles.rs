//! Which pools can be made, which is current, how one ends, and who may touch it.

use std::ffi::c_void;
use std::thread;
use std::time::Duration;

use cuda_driver_sys::*;

use crate::harness::*;

/// What `cuMemPoolCreate` answers, and what kind of memory comes out.
fn create(kind: u32, place: u32, id: i32, types: u32) -> Result<(u32, u32), CUresult> {
    let wish = CUmemPoolProps {
        allocType: CUmemAllocationType(kind),
        handleTypes: CUmemAllocationHandleType(types),
        location: location(CUmemLocationType(place), id),
        ..CUmemPoolProps::default()
    };
    let mut pool = std::ptr::null_mut();
    match cu!(cuMemPoolCreate(&raw mut pool, &raw const wish)) {
        OK => {}
        code => return Err(code),
    }
    let stream = stream();
    let block = alloc(pool, 100, stream);
    let ask = |attribute| {
        let mut value = 0_u32;
        let place = (&raw mut value).cast::<c_void>();
        let id = CUpointer_attribute(attribute);
        assert_eq!(cu!(cuPointerGetAttribute(place, id, block)), OK);
        value
    };
    let facts = (ask(2), ask(8));
    free(block, stream);
    cu!(cuStreamDestroy_v2(stream));
    assert_eq!(cu!(cuMemPoolDestroy(pool)), OK);
    Ok(facts)
}

#[test]
fn pools_of_every_kind_are_made_or_refused_as_measured() {
    let _turn = turn();
    let refused = Err(INVALID_VALUE);
    for (kind, place, id, types, expected) in [
        (1, 1, 0, 0, Ok((2, 0))),
        (1, 1, 0, 1, Ok((2, 0))),
        (1, 1, 0, 8, Ok((2, 0))),
        (1, 1, 0, 2, refused),
        (1, 1, 0, 4, refused),
        (1, 1, 0, 16, refused),
        (1, 0, 0, 0, refused),
        (1, 2, 0, 0, Ok((1, 0))),
        (1, 3, 0, 0, Ok((1, 0))),
        (1, 3, -1, 0, refused),
        (1, 4, 0, 0, refused),
        (2, 0, 0, 0, Ok((2, 1))),
        (2, 1, 0, 0, Ok((2, 1))),
        (2, 2, 0, 0, Ok((2, 1))),
        (2, 3, 0, 0, Ok((2, 1))),
        (2, 4, 0, 0, Ok((2, 1))),
        (0, 1, 0, 0, refused),
        (1, 1, -1, 0, refused),
        (1, 1, 99, 0, refused),
    ] {
        let got = create(kind, place, id, types);
        assert_eq!(got, expected, "type {kind}, location {place} {id}, {types}");
    }
    let null = std::ptr::null_mut::<CUmemoryPool>();
    let plain = props();
    assert_eq!(cu!(cuMemPoolCreate(null, &raw const plain)), INVALID_VALUE);
}

#[test]
fn bytes_that_the_version_does_not_know_must_be_zero() {
    let _turn = turn();
    let mut wish = props();
    wish.reserved[0] = 1;
    let mut pool = std::ptr::null_mut();
    assert_eq!(
        cu!(cuMemPoolCreate(&raw mut pool, &raw const wish)),
        INVALID_VALUE
    );
}

#[test]
fn default_and_current_pools() {
    let f = Fixture::new();
    let default = handle!(cuDeviceGetDefaultMemPool(_, 0));
    let current = || handle!(cuDeviceGetMemPool(_, 0));
    assert_eq!(current(), default);
    assert_eq!(cu!(cuMemPoolDestroy(default)), INVALID_VALUE);
    assert_eq!(cu!(cuDeviceSetMemPool(0, f.pool)), OK);
    assert_eq!(cu!(cuDeviceSetMemPool(1, f.pool)), INVALID_VALUE);
    assert_eq!(current(), f.pool);
    let block: CUdeviceptr = get!(cuMemAllocAsync(_, 1000, f.stream));
    assert_eq!(used(f.pool), 1000);
    f.free(block);
    assert_eq!(cu!(cuMemPoolDestroy(f.pool)), OK);
    assert_eq!(current(), default);
    assert_eq!(
        cu!(cuMemPoolDestroy(f.pool)),
        INVALID_VALUE,
        "no handle now"
    );
}

#[test]
fn a_destroyed_pool_lives_until_its_last_block_is_freed() {
    let f = Fixture::new();
    let block = f.alloc(4096);
    assert_eq!(cu!(cuMemPoolDestroy(f.pool)), OK);
    assert_eq!(try_alloc_code(f.pool, f.stream), INVALID_VALUE);
    assert_eq!(cu!(cuMemsetD8Async(block, 3, 4096, f.stream)), OK);
    assert_eq!(control().live().allocations, 1);
    f.free(block);
    synchronise(f.stream);
    assert_eq!(control().live().allocations, 0);
    assert_eq!(
        cu!(cuMemsetD8Async(block, 3, 4096, f.stream)),
        INVALID_VALUE,
        "nothing is there any more"
    );
    // The driver says SUCCESS, and crashes some pools later.
    let reports = control().reports();
    assert_eq!(reports.len(), 1);
    assert!(reports[0].starts_with("early end"), "{reports:?}");
}

#[test]
fn a_pool_that_ends_beside_a_wait_is_reported() {
    let f = Fixture::new();
    let gate = Gate::hold(f.stream);
    // Raw handles are no business of other threads as far as the compiler knows.
    let stream = f.stream as usize;
    let waits = thread::spawn(move || synchronise(stream as CUstream));
    let is_reported = || {
        let reports = control().reports();
        let mut found = reports
            .iter()
            .filter(|line| line.starts_with("end beside a wait"));
        found.next().is_some()
    };
    // Whether the thread waits yet cannot be asked.
    while !is_reported() {
        assert!(!waits.is_finished());
        let other = pool(&props());
        free(alloc(other, 4096, f.stream), f.stream);
        assert_eq!(cu!(cuMemPoolDestroy(other)), OK);
        thread::sleep(Duration::from_millis(1));
    }
    drop(gate);
    waits.join().expect("no panic");
}

fn try_alloc_code(pool: CUmemoryPool, stream: CUstream) -> CUresult {
    let mut out = 0;
    cu!(cuMemAllocFromPoolAsync(&raw mut out, 1, pool, stream))
}

#[test]
fn access_is_given_and_taken_as_measured() {
    let f = Fixture::new();
    let set = |device: i32, flags: u32| {
        let wish = CUmemAccessDesc {
            location: location(CUmemLocationType(1), device),
            flags: CUmemAccess_flags(flags),
        };
        cu!(cuMemPoolSetAccess(f.pool, &raw const wish, 1))
    };
    let access = |device: i32| {
        let mut flags = CUmemAccess_flags(77);
        let mut place = location(CUmemLocationType(1), device);
        let answer = cu!(cuMemPoolGetAccess(&raw mut flags, f.pool, &raw mut place));
        assert_eq!(answer, OK);
        flags.0
    };
    assert_eq!((access(0), access(1)), (3, 0));
    assert_eq!(set(0, 0), CUresult::CUDA_ERROR_INVALID_DEVICE);
    assert_eq!(set(0, 1), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    assert_eq!(set(0, 3), OK);
    assert_eq!(set(0, 2), INVALID_VALUE);
    assert_eq!(set(99, 3), CUresult::CUDA_ERROR_INVALID_DEVICE);
    assert_eq!(set(1, 3), OK);
    assert_eq!(access(1), 3);
    assert_eq!(set(1, 0), OK);
    assert_eq!(access(1), 0);
    let null = std::ptr::null();
    assert_eq!(cu!(cuMemPoolSetAccess(f.pool, null, 0)), INVALID_VALUE);
}
