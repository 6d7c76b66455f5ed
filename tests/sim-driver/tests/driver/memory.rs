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
    let before = available();
    let total: usize = get!(cuDeviceTotalMem_v2(_, 0));
    assert_eq!(total, 150_109_880_320);
    let block = f.alloc(10 * MIB);
    let plain: CUdeviceptr = get!(cuMemAlloc_v2(_, 1));
    assert_eq!(before - available(), 34 * MIB);
    f.free(block);
    assert_eq!(cu!(cuMemFree_v2(plain)), OK);
    synchronise(f.stream);
    assert_eq!(available(), before);
}

/// Blocks up to 1 MiB share 2 MiB of the device.
#[test]
fn small_blocks_share_memory_of_the_device() {
    let _turn = turn();
    let before = available();
    let blocks: [CUdeviceptr; 3] = [get!(cuMemAlloc_v2(_, 1)), get!(cuMemAlloc_v2(_, 1)), {
        get!(cuMemAlloc_v2(_, 1 << 20))
    }];
    assert_eq!(blocks[1], blocks[0] + 512);
    assert_eq!(before - available(), 2 * MIB);
    let large: CUdeviceptr = get!(cuMemAlloc_v2(_, (1 << 20) + 1));
    assert_eq!(before - available(), 4 * MIB);
    for block in blocks.into_iter().chain([large]) {
        assert_eq!(cu!(cuMemFree_v2(block)), OK);
    }
    assert_eq!(available(), before);
}

#[test]
fn plain_memory_freed_in_a_stream_stays_until_a_synchronise() {
    let f = Fixture::new();
    let x: CUdeviceptr = get!(cuMemAlloc_v2(_, 64 << 20));
    let before = available();
    f.free(x);
    assert_eq!(control().live().allocations, 0);
    assert_eq!(cu!(cuMemsetD8Async(x, 1, 64, f.stream)), OK);
    assert!(control().reports()[0].starts_with("after free"));
    assert_eq!(cu!(cuMemFreeAsync(x, f.stream)), INVALID_VALUE);
    assert_eq!(available(), before);
    synchronise(f.stream);
    assert_eq!(available(), before + 64 * MIB);
    assert_eq!(cu!(cuMemsetD8Async(x, 1, 64, f.stream)), INVALID_VALUE);
}

#[test]
fn the_device_needs_access_to_memory_of_the_host() {
    let f = Fixture::with(&CUmemPoolProps {
        location: location(CUmemLocationType(2), 0),
        ..props()
    });
    let block = f.alloc(100);
    let memset = || cu!(cuMemsetD8Async(block, 1, 100, f.stream));
    assert_eq!(memset(), INVALID_VALUE);
    let wish = CUmemAccessDesc {
        location: location(CUmemLocationType(1), 0),
        flags: CUmemAccess_flags(3),
    };
    assert_eq!(cu!(cuMemPoolSetAccess(f.pool, &raw const wish, 1)), OK);
    assert_eq!(memset(), OK);
    f.free(block);
}

#[test]
fn a_free_may_take_what_the_other_kind_of_allocation_gave() {
    let f = Fixture::new();
    let plain: CUdeviceptr = get!(cuMemAlloc_v2(_, 1000));
    f.free(plain);
    let block = f.alloc(1000);
    synchronise(f.stream);
    assert_eq!(cu!(cuMemFree_v2(block)), OK);
    assert_eq!(used(f.pool), 1000, "the driver forgets to count it");
    assert_eq!(control().live().bytes, 0);
    assert_eq!(control().reports(), Vec::<String>::new());
    assert_eq!(control().live().allocations, 0);
}

/// Documented: the ID of a buffer is unique over the lifetime of the process.
#[test]
fn a_later_buffer_has_another_id() {
    let fixture = Fixture::new();
    let id = |address: CUdeviceptr| {
        let mut id = 0_u64;
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_BUFFER_ID;
        let place = (&raw mut id).cast();
        assert_eq!(cu!(cuPointerGetAttribute(place, attribute, address)), OK);
        id
    };
    let mut ids = Vec::new();
    for _ in 0..3 {
        let plain: CUdeviceptr = get!(cuMemAlloc_v2(_, 64));
        ids.push(id(plain));
        assert_eq!(id(plain + 8), id(plain));
        assert_eq!(cu!(cuMemFree_v2(plain)), OK);
        let block = fixture.alloc(64);
        ids.push(id(block));
        assert_eq!(id(block + 8), id(block));
        fixture.free(block);
        let mut own = [0_u64; 64];
        let place = own.as_mut_ptr().cast();
        assert_eq!(cu!(cuMemHostRegister_v2(place, 512, 0)), OK);
        ids.push(id(place.expose_provenance() as u64));
        assert_eq!(cu!(cuMemHostUnregister(place)), OK);
    }
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all);
    assert!(!ids.contains(&0));
}
