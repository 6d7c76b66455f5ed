//! Advice about managed memory, and what is told of it.

use std::ffi::{c_int, c_void};

use cuda_driver_sys::*;
use cuda_sim_support::page::host_page;

use crate::apart::{call, child_of, load};
use crate::harness::*;

const INVALID_DEVICE: CUresult = CUresult::CUDA_ERROR_INVALID_DEVICE;
/// More than blocks share.
const LEN: usize = 4 << 20;

fn managed(len: usize) -> CUdeviceptr {
    get!(cuMemAllocManaged(_, len, 1))
}

/// Advice by its number, about a place.
fn advise(range: (u64, usize), advice: u32, place: (u32, c_int)) -> CUresult {
    let place = location(CUmemLocationType(place.0), place.1);
    cu!(cuMemAdvise_v2(
        range.0,
        range.1,
        CUmem_advise(advice),
        place
    ))
}

/// One number of a range.
fn ask((address, len): (u64, usize), attribute: u32) -> c_int {
    let mut value = 77;
    let out: *mut c_void = (&raw mut value).cast();
    let attribute = CUmem_range_attribute(attribute);
    let code = cu!(cuMemRangeGetAttribute(out, 4, attribute, address, len));
    assert_eq!(code, OK, "{attribute:?}");
    value
}

/// Who accesses a range, in a list of three.
fn users((address, len): (u64, usize)) -> [c_int; 3] {
    let mut list = [77; 3];
    let out: *mut c_void = list.as_mut_ptr().cast();
    let attribute = CUmem_range_attribute(3);
    let code = cu!(cuMemRangeGetAttribute(out, 12, attribute, address, len));
    assert_eq!(code, OK);
    list
}

#[test]
fn what_is_told_of_a_range_is_told_of_its_pages() {
    let _turn = turn();
    let x = managed(LEN);
    let all = (x, LEN);
    assert_eq!([1, 2, 4, 5, 7].map(|id| ask(all, id)), [0, -2, -2, 0, 0]);
    assert_eq!(users(all), [-2; 3]);
    // Two bytes of two pages: the length is rounded up from the first page on, and so it is about one.
    let two = (x + host_page() - 1, 2);
    assert_eq!(advise(two, 1, (0, 0)), OK);
    assert_eq!(ask((x, host_page() as usize), 1), 1);
    assert_eq!(ask((x, 2 * host_page() as usize), 1), 0);
    assert_eq!(ask(all, 1), 0);
    assert_eq!(advise(all, 1, (77, 77)), OK, "the place is ignored");
    assert_eq!(advise((x + LEN as u64 - 1, 1), 2, (0, 0)), OK);
    assert_eq!(ask(all, 1), 0);
    assert_eq!(ask((x, LEN - host_page() as usize), 1), 1);
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
}

#[test]
fn a_preferred_place_is_one_or_none() {
    let _turn = turn();
    let x = managed(LEN);
    let (all, half) = ((x, LEN), (x, LEN / 2));
    let preferred = |range| [2, 5, 6].map(|id| ask(range, id));
    assert_eq!(advise(all, 3, (1, 1)), OK);
    assert_eq!(preferred(all), [1, 1, 1]);
    assert_eq!(advise(half, 3, (2, 99)), OK);
    assert_eq!(preferred(half)[..2], [-1, 2]);
    assert_eq!(preferred(all)[..2], [-2, 0]);
    // Of nodes nothing is told.
    assert_eq!(advise(half, 3, (3, 0)), OK);
    assert_eq!(advise(half, 3, (4, 7)), OK);
    assert_eq!(preferred(half)[..2], [-1, 2]);
    assert_eq!(advise(all, 4, (99, 99)), OK, "the place is ignored");
    assert_eq!(preferred(all)[..2], [-2, 0]);
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
}

#[test]
fn several_may_access_a_range() {
    let _turn = turn();
    let x = managed(LEN);
    let (all, half) = ((x, LEN), (x, LEN / 2));
    for place in [(1, 1), (2, 5)] {
        assert_eq!(advise(all, 5, place), OK);
    }
    assert_eq!(advise(half, 5, (1, 0)), OK);
    assert_eq!(users(half), [0, 1, -1]);
    assert_eq!(users(all), [1, -1, -2]);
    assert_eq!(advise(all, 6, (2, 0)), OK);
    assert_eq!(advise(half, 6, (1, 1)), OK);
    assert_eq!(users(half), [0, -2, -2]);
    assert_eq!(users(all), [-2; 3]);
    let mut one = [77; 2];
    assert_eq!(advise(half, 5, (2, 0)), OK);
    let out: *mut c_void = one.as_mut_ptr().cast();
    let list = CUmem_range_attribute(3);
    assert_eq!(cu!(cuMemRangeGetAttribute(out, 4, list, x, 1)), OK);
    assert_eq!(one, [0, 77], "as many as fit");
    for size in [0, 2, 5] {
        let code = cu!(cuMemRangeGetAttribute(out, size, list, x, 1));
        assert_eq!(code, INVALID_VALUE, "{size} B");
    }
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
}

#[test]
fn the_last_prefetch_is_remembered() {
    let f = Fixture::new();
    let x = managed(LEN);
    let (all, half) = ((x, LEN), (x, LEN / 2));
    let prefetched = |range| [4, 7, 8].map(|id| ask(range, id));
    let go = |(address, len): (u64, usize), place: (u32, c_int)| {
        let place = location(CUmemLocationType(place.0), place.1);
        let code = cu!(cuMemPrefetchAsync_v2(address, len, place, 0, f.stream));
        assert_eq!(code, OK);
    };
    go(half, (1, 0));
    assert_eq!(prefetched(half), [0, 1, 0]);
    assert_eq!(prefetched(all)[..2], [-2, 0]);
    go(all, (2, 0));
    assert_eq!(prefetched(all)[..2], [-1, 2]);
    assert_eq!(cu!(cuMemPrefetchAsync(x, LEN, 1, f.stream)), OK);
    assert_eq!(prefetched(all), [1, 1, 1]);
    synchronise(f.stream);
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
    // Its addresses may come again, without what was told of them.
    let y = managed(LEN);
    assert_eq!(prefetched((y, LEN))[..2], [-2, 0]);
    assert_eq!(cu!(cuMemFree_v2(y)), OK);
}

#[test]
fn several_answers_come_at_once() {
    let _turn = turn();
    let x = managed(LEN);
    assert_eq!(advise((x, LEN), 1, (0, 0)), OK);
    let (mut flag, mut list) = (77, [77; 2]);
    let mut outs: [*mut c_void; 2] = [(&raw mut flag).cast(), list.as_mut_ptr().cast()];
    let mut ask = |sizes: [usize; 2], ids: [u32; 2], count| {
        let (mut sizes, mut ids) = (sizes, ids.map(CUmem_range_attribute));
        let (outs, sizes) = (outs.as_mut_ptr(), sizes.as_mut_ptr());
        cu!(cuMemRangeGetAttributes(
            outs,
            sizes,
            ids.as_mut_ptr(),
            count,
            x,
            LEN
        ))
    };
    assert_eq!(ask([4, 8], [1, 3], 2), OK);
    assert_eq!(ask([4, 8], [1, 3], 0), INVALID_VALUE);
    assert_eq!(ask([8, 8], [1, 3], 2), INVALID_VALUE);
    assert_eq!(ask([4, 8], [9, 3], 2), INVALID_VALUE);
    assert_eq!((flag, list), (1, [-2, -2]));
    let (null, none) = (std::ptr::null_mut(), std::ptr::null_mut());
    let code = cu!(cuMemRangeGetAttributes(
        null,
        none,
        std::ptr::null_mut(),
        1,
        x,
        LEN
    ));
    assert_eq!(code, INVALID_VALUE);
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let f = Fixture::new();
    let (x, block, plain) = (managed(LEN), f.alloc(64), get!(cuMemAlloc_v2(_, 64)));
    let past = x + LEN as u64;
    for range in [
        (x, 0),
        (x, LEN + 1),
        (past - 1, 2),
        (x, usize::MAX),
        (block, 1),
        (plain, 1),
        (0, 1),
    ] {
        assert_eq!(advise(range, 1, (0, 0)), INVALID_VALUE, "{range:?}");
        let mut value = 77;
        let out: *mut c_void = (&raw mut value).cast();
        let id = CUmem_range_attribute(1);
        let code = cu!(cuMemRangeGetAttribute(out, 4, id, range.0, range.1));
        assert_eq!((code, value), (INVALID_VALUE, 77), "{range:?}");
    }
    for (advice, place, expected) in [
        (0, (1, 0), INVALID_VALUE),
        (7, (1, 0), INVALID_VALUE),
        (3, (1, 2), INVALID_DEVICE),
        (3, (1, -1), INVALID_DEVICE),
        (3, (3, 9), INVALID_VALUE),
        (3, (0, 0), INVALID_VALUE),
        (5, (1, 2), INVALID_DEVICE),
        (5, (3, 0), INVALID_VALUE),
        (6, (4, 0), INVALID_VALUE),
    ] {
        assert_eq!(
            advise((x, LEN), advice, place),
            expected,
            "{advice} {place:?}"
        );
    }
    let old = |advice, device| cu!(cuMemAdvise(x, LEN, CUmem_advise(advice), device));
    assert_eq!([-1, 0, 1].map(|device| old(3, device)), [OK; 3]);
    assert_eq!([-2, 2].map(|device| old(3, device)), [INVALID_DEVICE; 2]);
    assert_eq!(old(1, 99), OK, "the number is ignored");
    let null = std::ptr::null_mut();
    let id = CUmem_range_attribute(1);
    assert_eq!(
        cu!(cuMemRangeGetAttribute(null, 4, id, x, 1)),
        INVALID_VALUE
    );
    f.free(block);
    for address in [x, plain] {
        assert_eq!(cu!(cuMemFree_v2(address)), OK);
    }
    assert_eq!(advise((x, 1), 1, (0, 0)), INVALID_VALUE);
}

fn started(table: &DriverTable) -> CUdeviceptr {
    let mut context = std::ptr::null_mut();
    assert_eq!(call!(table.cuInit(0)), OK);
    let code = call!(table.cuDevicePrimaryCtxRetain(&raw mut context, 0));
    assert_eq!(code, OK);
    assert_eq!(call!(table.cuCtxSetCurrent(context)), OK);
    let mut x = 0;
    assert_eq!(call!(table.cuMemAllocManaged(&raw mut x, LEN, 1)), OK);
    x
}

#[test]
fn an_older_driver_knows_numbers_only() {
    let version = [("CUDA_SIM_DRIVER_VERSION", "12010")];
    let name = "an_older_driver_knows_numbers_only";
    child_of("told", name, &version, || {
        let table = load();
        assert!(table.cuMemAdvise_v2.is_none() && table.cuMemPrefetchAsync_v2.is_none());
        let x = started(table);
        let code = call!(table.cuMemAdvise(x, LEN, CUmem_advise(3), -1));
        assert_eq!(code, OK);
        let ask = |id: u32| {
            let mut value = 77;
            let out: *mut c_void = (&raw mut value).cast();
            let id = CUmem_range_attribute(id);
            let code = call!(table.cuMemRangeGetAttribute(out, 4, id, x, LEN));
            (code, value)
        };
        assert_eq!(ask(2), (OK, -1));
        for id in 5..9 {
            assert_eq!(ask(id), (INVALID_VALUE, 77), "{id}");
        }
    });
}

#[test]
fn a_device_without_concurrent_access_is_no_place() {
    let model = [("CUDA_SIM_DRIVER_MODEL", "wddm")];
    let name = "a_device_without_concurrent_access_is_no_place";
    child_of("told", name, &model, || {
        let table = load();
        let x = started(table);
        let ask = |advice, kind| {
            let place = location(CUmemLocationType(kind), 0);
            call!(table.cuMemAdvise_v2(x, LEN, CUmem_advise(advice), place))
        };
        assert_eq!([3, 5].map(|advice| ask(advice, 1)), [INVALID_DEVICE; 2]);
        assert_eq!([1, 3, 5].map(|advice| ask(advice, 2)), [OK; 3]);
    });
}
