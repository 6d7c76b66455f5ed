//! What is known about an address, and what memory costs the device.

use std::ffi::c_void;

use cuda_driver_sys::*;

use crate::harness::*;

#[test]
fn pool_memory_tells_about_itself() {
    let f = Fixture::new();
    let block = f.alloc(1000);
    let ask = |attribute: u32, address: CUdeviceptr| {
        let mut value = 0_u64;
        let place = (&raw mut value).cast::<c_void>();
        let id = CUpointer_attribute(attribute);
        (cu!(cuPointerGetAttribute(place, id, address)), value)
    };
    assert_eq!(ask(17, block), (OK, f.pool.addr() as u64));
    assert_eq!(ask(1, block), (OK, 0), "no context");
    assert_eq!(ask(9, block), (OK, 0));
    assert_eq!(ask(2, block), (OK, 2));
    assert_eq!(ask(11, block + 999), (OK, block));
    assert_eq!(ask(12, block), (OK, 1000));
    let (mut base, mut size) = (0, 0);
    let answer = cu!(cuMemGetAddressRange_v2(
        &raw mut base,
        &raw mut size,
        block + 5
    ));
    assert_eq!((answer, base, size), (OK, block, 1000));
    let plain: CUdeviceptr = get!(cuMemAlloc_v2(_, 100));
    assert_eq!(ask(17, plain), (OK, 0));
    assert_eq!(ask(1, plain), (OK, f.turn.context.addr() as u64));
    let local = 0_u8;
    let foreign = (&raw const local).addr() as u64;
    assert_eq!(ask(2, foreign).0, INVALID_VALUE);
    let mut attributes = [CUpointer_attribute(2), CUpointer_attribute(17)];
    let (mut kind, mut pool) = (9_u32, 9_u64);
    let mut places = [(&raw mut kind).cast::<c_void>(), (&raw mut pool).cast()];
    let answer = cu!(cuPointerGetAttributes(
        2,
        attributes.as_mut_ptr(),
        places.as_mut_ptr(),
        foreign
    ));
    assert_eq!((answer, kind, pool), (OK, 0, 0));
    assert_eq!(cu!(cuMemFree_v2(plain)), OK);
    f.free(block);
}

#[test]
fn memory_is_taken_from_the_device_and_given_back() {
    let f = Fixture::new();
    let info = || {
        let (mut free, mut total) = (0, 0);
        assert_eq!(cu!(cuMemGetInfo_v2(&raw mut free, &raw mut total)), OK);
        (free as u64, total as u64)
    };
    let (before, total) = info();
    assert_eq!(total, 150_109_880_320);
    let block = f.alloc(10 * MIB);
    let plain: CUdeviceptr = get!(cuMemAlloc_v2(_, 1));
    assert_eq!(before - info().0, 34 * MIB);
    f.free(block);
    assert_eq!(cu!(cuMemFree_v2(plain)), OK);
    synchronise(f.stream);
    assert_eq!(info().0, before);
    // More than the device has, less than the address space.
    assert_eq!(
        try_alloc(f.pool, total + 32 * MIB, f.stream),
        Err(OUT_OF_MEMORY)
    );
}

#[test]
fn a_free_may_take_what_the_other_kind_of_allocation_gave() {
    let f = Fixture::new();
    let plain: CUdeviceptr = get!(cuMemAlloc_v2(_, 1000));
    f.free(plain);
    let block = f.alloc(1000);
    synchronise(f.stream);
    assert_eq!(cu!(cuMemFree_v2(block)), OK);
    assert_eq!(used(f.pool), 0);
    assert_eq!(control().reports(), Vec::<String>::new());
    assert_eq!(control().live().allocations, 0);
}
