//! Managed memory and its prefetches.

use std::ffi::{c_int, c_void};

use cuda_driver_sys::*;

use crate::harness::*;

const LEN: usize = 4096;
const INVALID_DEVICE: CUresult = CUresult::CUDA_ERROR_INVALID_DEVICE;

fn managed(len: usize) -> CUdeviceptr {
    get!(cuMemAllocManaged(_, len, 1))
}

fn bytes(address: CUdeviceptr, len: usize) -> &'static mut [u8] {
    let start = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: managed memory that the test has not freed, with all work done.
    unsafe { std::slice::from_raw_parts_mut(start, len) }
}

/// A prefetch by its newer form.
fn prefetch(address: CUdeviceptr, len: usize, place: (u32, c_int), stream: CUstream) -> CUresult {
    let place = location(CUmemLocationType(place.0), place.1);
    cu!(cuMemPrefetchAsync_v2(address, len, place, 0, stream))
}

#[test]
fn the_host_and_every_device_reach_it() {
    let turn = turn();
    let x = managed(LEN);
    let second = handle!(cuDevicePrimaryCtxRetain(_, 1));
    let near = stream();
    assert_eq!(cu!(cuCtxSetCurrent(second)), OK);
    let far = stream();
    bytes(x, LEN).fill(3);
    assert_eq!(cu!(cuMemsetD8Async(x, 7, 10, near)), OK);
    synchronise(near);
    assert_eq!(cu!(cuMemsetD8Async(x + 10, 8, 10, far)), OK);
    let plain: CUdeviceptr = get!(cuMemAlloc_v2(_, LEN));
    assert_eq!(cu!(cuMemcpyDtoDAsync_v2(plain, x, LEN, far)), OK);
    assert_eq!(cu!(cuMemcpyDtoDAsync_v2(x + 20, plain, 10, far)), OK);
    synchronise(far);
    assert_eq!(bytes(x, 20), [[7; 10], [8; 10]].concat());
    assert_eq!(bytes(x, 31)[20..], [[7; 10].as_slice(), &[3]].concat());
    for address in [x, plain] {
        assert_eq!(cu!(cuMemFree_v2(address)), OK);
    }
    assert_eq!(cu!(cuStreamDestroy_v2(far)), OK);
    assert_eq!(cu!(cuCtxSetCurrent(turn.context)), OK);
    assert_eq!(cu!(cuStreamDestroy_v2(near)), OK);
    assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(1)), OK);
    assert_eq!(control().live().allocations, 0);
    assert_eq!(control().reports(), Vec::<String>::new());
}

#[test]
fn sizes_and_flags_that_make_no_sense_are_refused() {
    let turn = turn();
    let ask = |len, flags| {
        let mut out = 5;
        let code = cu!(cuMemAllocManaged(&raw mut out, len, flags));
        (code, out)
    };
    let no_context = CUresult::CUDA_ERROR_INVALID_CONTEXT;
    for (len, flags) in [(0, 1), (64, 0), (64, 3), (64, 4), (64, 5)] {
        let answer = ask(len, flags);
        assert_eq!(answer, (INVALID_VALUE, 0), "{len} B, flags {flags}");
    }
    assert_eq!(ask(1 << 46, 1), (OUT_OF_MEMORY, 0));
    let (code, block) = ask(64, 2);
    assert_eq!(code, OK);
    assert_eq!(cu!(cuCtxSetCurrent(std::ptr::null_mut())), OK);
    assert_eq!(ask(64, 1), (no_context, 0));
    assert_eq!(ask(0, 1), (INVALID_VALUE, 0));
    assert_eq!(cu!(cuCtxSetCurrent(turn.context)), OK);
    assert_eq!(cu!(cuMemFree_v2(block)), OK);
}

#[test]
fn it_may_be_more_than_the_device_has() {
    let _turn = turn();
    let before = available();
    let total: usize = get!(cuDeviceTotalMem_v2(_, 0));
    let x = managed(total * 2);
    assert_eq!(available(), before);
    assert_eq!(control().live().bytes, total as u64 * 2);
    let end = x + total as u64 * 2 - 16;
    assert_eq!(cu!(cuMemsetD8_v2(end, 9, 16)), OK);
    assert_eq!(cu!(cuCtxSynchronize()), OK);
    assert_eq!(bytes(end, 16), [9; 16]);
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
    assert_eq!(available(), before);
}

/// The device has less memory from when it is first used there until it is freed.
#[test]
fn it_takes_memory_of_the_device_that_gives_way() {
    let f = Fixture::new();
    let (before, x) = (available(), managed(64 << 20));
    bytes(x, 64 << 20).fill(1);
    let missing = || before - available();
    assert_eq!(missing(), 0);
    assert_eq!(prefetch(x, 4 << 20, (1, 0), f.stream), OK);
    assert_eq!(missing(), 4 * MIB);
    assert_eq!(cu!(cuMemsetD8Async(x + 1, 2, 8 << 20, f.stream)), OK);
    assert_eq!(missing(), 10 * MIB);
    assert_eq!(prefetch(x, 64 << 20, (2, 0), f.stream), OK);
    assert_eq!(missing(), 10 * MIB);
    // At another device it is no longer here.
    assert_eq!(prefetch(x, 4 << 20, (1, 1), f.stream), OK);
    assert_eq!(missing(), 6 * MIB);
    synchronise(f.stream);
    let plain: CUdeviceptr = get!(cuMemAlloc_v2(_, (before - 4 * MIB) as usize));
    assert!(available() <= 2 * MIB, "{} B", available());
    assert_eq!(cu!(cuMemFree_v2(plain)), OK);
    assert_eq!(missing(), 2 * MIB);
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
    assert_eq!(missing(), 0);
}

/// Blocks of one kind share, and small ones begin anywhere.
#[test]
fn small_blocks_of_one_kind_lie_side_by_side() {
    let _turn = turn();
    let (before, x, y) = (available(), managed(1), managed(1000));
    assert_eq!((x % (2 * MIB), y), (0, x + 512));
    let pinned: *mut c_void = handle!(cuMemHostAlloc(_, 64, 0));
    let at = pinned.expose_provenance() as u64;
    assert!(at.is_multiple_of(2 * MIB) && at != x);
    assert_eq!(cu!(cuMemsetD8_v2(y, 1, 1000)), OK);
    assert_eq!(available(), before - 2 * MIB);
    assert_eq!(cu!(cuMemFreeHost(pinned)), OK);
    for block in [x, y] {
        assert_eq!(cu!(cuMemFree_v2(block)), OK);
    }
    assert_eq!(available(), before);
}

/// In the host's place it makes a copy wait, as a device's it does not.
#[test]
fn copies_that_name_it_as_the_hosts_wait() {
    let f = Fixture::new();
    let (x, plain) = (managed(LEN), get!(cuMemAlloc_v2(_, LEN)));
    for is_up in [true, false] {
        let gate = Gate::hold(f.stream);
        gate.wait();
        assert_eq!(cu!(cuMemcpyAsync(plain, x, LEN, f.stream)), OK);
        assert_eq!(cu!(cuMemcpyDtoDAsync_v2(x, plain, LEN, f.stream)), OK);
        let stream = f.stream.addr();
        std::thread::scope(|scope| {
            let copy = scope.spawn(move || {
                let stream = std::ptr::without_provenance_mut(stream);
                let host: *mut c_void = std::ptr::with_exposed_provenance_mut(x as usize);
                if is_up {
                    cu!(cuMemcpyHtoDAsync_v2(plain, host, LEN, stream))
                } else {
                    cu!(cuMemcpyDtoHAsync_v2(host, plain, LEN, stream))
                }
            });
            std::thread::sleep(std::time::Duration::from_millis(100));
            assert!(!copy.is_finished());
            gate.open();
            assert_eq!(copy.join().expect("no panics"), OK);
        });
    }
    for block in [x, plain] {
        assert_eq!(cu!(cuMemFree_v2(block)), OK);
    }
}

#[test]
fn it_tells_about_itself() {
    let turn = turn();
    let x = managed(1000);
    let ask = |id: u32| {
        let mut value = 0_u64;
        let place = (&raw mut value).cast::<c_void>();
        let code = cu!(cuPointerGetAttribute(place, CUpointer_attribute(id), x + 5));
        assert_eq!(code, OK, "attribute {id}");
        value
    };
    assert_eq!(ask(1), turn.context.addr() as u64);
    assert_eq!([2, 6, 8, 9, 10].map(ask), [2, 1, 1, 0, 0]);
    assert_eq!([12, 15, 17].map(ask), [1000, 0, 0]);
    assert_eq!([3, 4].map(ask), [x + 5; 2]);
    assert_eq!(ask(11), x);
    let mut handle = CUipcMemHandle::default();
    assert_eq!(cu!(cuIpcGetMemHandle(&raw mut handle, x)), INVALID_VALUE);
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
    assert_eq!(cu!(cuMemFree_v2(x)), INVALID_VALUE);
}

#[test]
fn a_free_waits_for_every_device_and_there_is_none_in_a_stream() {
    let turn = turn();
    let second = handle!(cuDevicePrimaryCtxRetain(_, 1));
    assert_eq!(cu!(cuCtxSetCurrent(second)), OK);
    let far = stream();
    assert_eq!(cu!(cuCtxSetCurrent(turn.context)), OK);
    let x = managed(LEN);
    let gate = Gate::hold(far);
    gate.wait();
    std::thread::scope(|scope| {
        let free = scope.spawn(|| cu!(cuMemFree_v2(x)));
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!free.is_finished());
        gate.open();
        assert_eq!(free.join().expect("no panics"), OK);
    });
    let y = managed(LEN);
    let not_supported = CUresult::CUDA_ERROR_NOT_SUPPORTED;
    assert_eq!(cu!(cuMemFreeAsync(y, far)), not_supported);
    assert_eq!(cu!(cuMemFreeAsync(y + 1, far)), INVALID_VALUE);
    synchronise(far);
    assert_eq!(prefetch(y, 1, (1, 0), far), OK);
    assert_eq!(cu!(cuMemFree_v2(y)), OK);
    assert_eq!(cu!(cuMemFreeAsync(y, far)), INVALID_VALUE);
    assert_eq!(prefetch(y, 1, (1, 0), far), INVALID_VALUE);
    assert_eq!(cu!(cuStreamDestroy_v2(far)), OK);
    assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(1)), OK);
}

#[test]
fn prefetches_go_to_devices_and_the_host() {
    let f = Fixture::new();
    let x = managed(LEN);
    bytes(x, LEN).fill(6);
    for place in [(1, 0), (1, 1), (2, 0), (2, 99), (3, 0), (4, 0)] {
        assert_eq!(prefetch(x, LEN, place, f.stream), OK, "{place:?}");
    }
    for (place, expected) in [
        ((1, 2), INVALID_DEVICE),
        ((1, -1), INVALID_DEVICE),
        ((3, 5), INVALID_VALUE),
        ((0, 0), INVALID_VALUE),
        ((77, 0), INVALID_VALUE),
    ] {
        assert_eq!(prefetch(x, LEN, place, f.stream), expected, "{place:?}");
    }
    let old = |device| cu!(cuMemPrefetchAsync(x, LEN, device, f.stream));
    assert_eq!([-1, 0, 1].map(old), [OK; 3]);
    assert_eq!([-2, 2].map(old), [INVALID_DEVICE; 2]);
    let null = std::ptr::null_mut();
    assert_eq!(cu!(cuMemPrefetchAsync_ptsz(x, LEN, 0, null)), OK);
    let place = location(CUmemLocationType(1), 0);
    let flags = |flags| cu!(cuMemPrefetchAsync_v2(x, LEN, place, flags, f.stream));
    assert_eq!([0, 1].map(flags), [OK, INVALID_VALUE]);
    synchronise(f.stream);
    assert!(bytes(x, LEN).iter().all(|byte| *byte == 6));
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
}

#[test]
fn only_managed_memory_is_prefetched_and_only_within_a_block() {
    let f = Fixture::new();
    let (block, plain) = (f.alloc(64), get!(cuMemAlloc_v2(_, 64)));
    let pinned = handle!(cuMemHostAlloc(_, 64, 0)).expose_provenance() as u64;
    let local = 0_u8;
    let foreign = (&raw const local).expose_provenance() as u64;
    for address in [block, plain, pinned, foreign, 0] {
        for device in [0, 99] {
            let answer = prefetch(address, 1, (1, device), f.stream);
            assert_eq!(answer, INVALID_VALUE);
        }
    }
    let x = managed(LEN);
    for (address, len, expected) in [
        (x + 1, LEN - 1, OK),
        (x + 1, LEN, INVALID_VALUE),
        (x, usize::MAX, OK),
        (x + 1, usize::MAX, OK),
        (x, 0, INVALID_VALUE),
    ] {
        let answer = prefetch(address, len, (1, 0), f.stream);
        assert_eq!(answer, expected, "{len} B");
    }
    f.free(block);
    assert_eq!(cu!(cuMemFree_v2(plain)), OK);
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
    let pinned = std::ptr::with_exposed_provenance_mut(pinned as usize);
    assert_eq!(cu!(cuMemFreeHost(pinned)), OK);
}

#[test]
fn memory_of_a_managed_pool_is_prefetched_too_but_not_past_its_free() {
    let f = Fixture::with(&CUmemPoolProps {
        allocType: CUmemAllocationType(2),
        ..props()
    });
    let block = f.alloc(LEN as u64);
    assert_eq!(prefetch(block, LEN, (1, 0), f.stream), OK);
    f.free(block);
    assert_eq!(prefetch(block, LEN, (1, 0), f.stream), INVALID_VALUE);
    assert!(control().reports()[0].starts_with("after free"));
}

#[test]
fn a_prefetch_takes_its_turn_and_cannot_be_recorded() {
    let f = Fixture::new();
    let (other, x) = (stream(), managed(LEN));
    let unsupported = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    let relaxed = CUstreamCaptureMode_enum(2);
    let code = cu!(cuStreamBeginCapture_v2(f.stream, relaxed));
    assert_eq!(code, OK);
    assert_eq!(prefetch(x, LEN, (1, 0), other), OK);
    assert_eq!(prefetch(x, LEN, (1, 0), f.stream), unsupported);
    let mut graph = std::ptr::null_mut();
    let code = cu!(cuStreamEndCapture(f.stream, &raw mut graph));
    assert_eq!(code, CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    // On a blocking stream it comes after what the legacy stream has to do.
    let blocking = handle!(cuStreamCreate(_, 0));
    let gate = Gate::hold(CU_STREAM_LEGACY);
    assert_eq!(prefetch(x, LEN, (1, 0), blocking), OK);
    let not_ready = CUresult::CUDA_ERROR_NOT_READY;
    assert_eq!(cu!(cuStreamQuery(blocking)), not_ready);
    gate.open();
    synchronise(blocking);
    for stream in [other, blocking] {
        assert_eq!(cu!(cuStreamDestroy_v2(stream)), OK);
    }
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
}
