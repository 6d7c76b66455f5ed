//! Pinned memory of the host, and memory of the program that is registered.

use std::ffi::c_void;

use cuda_driver_sys::*;

use crate::harness::*;

const LEN: usize = 4096;
const ALREADY: CUresult = CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
const NOT_REGISTERED: CUresult = CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;

fn at(memory: &mut [u8], offset: usize) -> *mut c_void {
    memory.as_mut_ptr().wrapping_add(offset).cast()
}

fn register(start: *mut c_void, len: usize, flags: u32) -> CUresult {
    cu!(cuMemHostRegister_v2(start, len, flags))
}

fn unregister(start: *mut c_void) -> CUresult {
    cu!(cuMemHostUnregister(start))
}

#[test]
fn a_range_is_registered_once_and_by_its_beginning() {
    let _turn = turn();
    let mut memory = vec![0u8; 4 * LEN];
    let start = at(&mut memory, LEN);
    assert_eq!(unregister(start), NOT_REGISTERED);
    assert_eq!(register(start, 2 * LEN, 3), OK);
    for (offset, len) in [
        (0, LEN + 1),
        (LEN, 2 * LEN),
        (LEN, 1),
        (3 * LEN - 1, LEN),
        (0, 4 * LEN),
    ] {
        let answer = register(at(&mut memory, offset), len, 3);
        assert_eq!(answer, ALREADY, "{len} at {offset}");
    }
    // Beside it there is room.
    assert_eq!(register(at(&mut memory, 0), LEN, 0), OK);
    assert_eq!(register(at(&mut memory, 3 * LEN), LEN, 0), OK);
    assert_eq!(control().live().registrations, 3);
    assert_eq!(unregister(at(&mut memory, LEN + 1)), INVALID_VALUE);
    for offset in [LEN, 0, 3 * LEN] {
        assert_eq!(unregister(at(&mut memory, offset)), OK);
        assert_eq!(unregister(at(&mut memory, offset)), NOT_REGISTERED);
    }
    assert_eq!(control().live().registrations, 0);
}

#[test]
fn what_makes_no_sense_is_not_registered() {
    let turn = turn();
    let mut memory = vec![0u8; LEN];
    let start = at(&mut memory, 0);
    for (start, len, flags) in [
        (std::ptr::null_mut(), LEN, 0),
        (start, 0, 0),
        (start, usize::MAX, 0),
        (start, LEN, 16),
        // Memory of a bus, which this is not.
        (start, LEN, 4),
    ] {
        assert_eq!(register(start, len, flags), INVALID_VALUE, "{len} {flags}");
    }
    assert_eq!(cu!(cuCtxSetCurrent(std::ptr::null_mut())), OK);
    let no_context = CUresult::CUDA_ERROR_INVALID_CONTEXT;
    assert_eq!(register(start, LEN, 0), no_context);
    assert_eq!(cu!(cuCtxSetCurrent(turn.context)), OK);
    let pinned: *mut c_void = handle!(cuMemHostAlloc(_, LEN, 0));
    assert_eq!(register(pinned, LEN, 0), INVALID_VALUE);
    assert_eq!(unregister(pinned), INVALID_VALUE);
    assert_eq!(cu!(cuMemFreeHost(pinned)), OK);
    assert_eq!(control().live().registrations, 0);
}

#[test]
fn copies_of_registered_memory_do_not_wait() {
    let _turn = turn();
    let (stream, device) = (stream(), get!(cuMemAlloc_v2(_, LEN)));
    let mut memory = vec![3u8; LEN];
    let start = at(&mut memory, 0);
    assert_eq!(register(start, LEN, 3), OK);
    let address: CUdeviceptr = get!(cuMemHostGetDevicePointer_v2(_, start, 0));
    let gate = Gate::hold(stream);
    assert_eq!(cu!(cuMemcpyHtoDAsync_v2(device, start, LEN, stream)), OK);
    assert_eq!(cu!(cuMemsetD8Async(device, 7, 10, stream)), OK);
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(start, device, 20, stream)), OK);
    // By the device's name for it.
    assert_eq!(cu!(cuMemsetD8Async(address + 20, 8, 10, stream)), OK);
    assert_eq!(memory[..30], [3; 30]);
    gate.open();
    synchronise(stream);
    assert_eq!(memory[..30], [[7; 10], [3; 10], [8; 10]].concat());
    assert_eq!(memory[30..], [3; LEN - 30]);
    // Unregistered memory is no device's.
    assert_eq!(unregister(start), OK);
    assert_eq!(cu!(cuMemsetD8Async(address, 8, 10, stream)), INVALID_VALUE);
    let mut out: CUdeviceptr = 0;
    assert_eq!(
        cu!(cuMemHostGetDevicePointer_v2(&raw mut out, start, 0)),
        INVALID_VALUE
    );
    assert_eq!(cu!(cuMemFree_v2(device)), OK);
    assert_eq!(cu!(cuStreamDestroy_v2(stream)), OK);
    assert_eq!(control().reports(), Vec::<String>::new());
}

#[test]
fn what_devices_may_only_read_they_do_not_write() {
    let _turn = turn();
    let (stream, device) = (stream(), get!(cuMemAlloc_v2(_, LEN)));
    let mut memory = vec![3u8; LEN];
    let start = at(&mut memory, 0);
    assert_eq!(register(start, LEN, 8), OK);
    assert_eq!(cu!(cuMemcpyHtoDAsync_v2(device, start, LEN, stream)), OK);
    assert_eq!(
        cu!(cuMemcpyDtoHAsync_v2(start, device, LEN, stream)),
        INVALID_VALUE
    );
    synchronise(stream);
    assert_eq!(unregister(start), OK);
    assert_eq!(cu!(cuMemFree_v2(device)), OK);
    assert_eq!(cu!(cuStreamDestroy_v2(stream)), OK);
}

#[test]
fn flags_are_told_of_pinned_and_registered_memory() {
    let _turn = turn();
    for flags in [0, 1, 2, 4, 7] {
        let pinned: *mut c_void = handle!(cuMemHostAlloc(_, LEN, flags));
        let found: u32 = get!(cuMemHostGetFlags(_, pinned.wrapping_byte_add(LEN - 1)));
        assert_eq!(found, flags | 2, "all of it is mapped");
        assert_eq!(cu!(cuMemFreeHost(pinned)), OK);
    }
    let mut memory = vec![0u8; LEN];
    let start = at(&mut memory, 0);
    let mut out = 9;
    assert_eq!(cu!(cuMemHostGetFlags(&raw mut out, start)), INVALID_VALUE);
    assert_eq!(register(start, LEN, 9), OK);
    assert_eq!(cu!(cuMemHostGetFlags(&raw mut out, start)), OK);
    assert_eq!(out, 3, "read-only is not told");
    assert_eq!(unregister(start), OK);
}

#[test]
fn a_context_takes_its_registrations_with_it() {
    let _turn = turn();
    let mut memory = vec![0u8; LEN];
    let start = at(&mut memory, 0);
    let context = handle!(cuDevicePrimaryCtxRetain(_, 1));
    let before: CUcontext = handle!(cuCtxGetCurrent(_));
    assert_eq!(cu!(cuCtxSetCurrent(context)), OK);
    assert_eq!(register(start, LEN, 3), OK);
    assert_eq!(cu!(cuCtxSetCurrent(before)), OK);
    assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(1)), OK);
    assert_eq!(control().live().registrations, 0);
    assert_eq!(unregister(start), NOT_REGISTERED);
}
