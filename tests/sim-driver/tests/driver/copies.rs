//! Copies and memsets.

use std::ffi::c_void;

use cuda_driver_sys::*;

use crate::harness::*;

fn pinned(len: usize) -> *mut u8 {
    let mut pointer = std::ptr::null_mut();
    assert_eq!(cu!(cuMemHostAlloc(&raw mut pointer, len, 0)), OK);
    pointer.cast()
}

fn read(address: CUdeviceptr, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let place = bytes.as_mut_ptr().cast();
    assert_eq!(cu!(cuMemcpyDtoH_v2(place, address, len)), OK);
    bytes
}

#[test]
fn bytes_go_in_and_come_back() {
    let _turn = turn();
    let (pool, stream) = (pool(&props()), stream());
    let x = alloc(pool, 4096, stream);
    assert_eq!(cu!(cuMemsetD8Async(x, 7, 4096, stream)), OK);
    let sent: Vec<u8> = (0..100).collect();
    let from = sent.as_ptr().cast::<c_void>();
    assert_eq!(cu!(cuMemcpyHtoDAsync_v2(x + 10, from, 100, stream)), OK);
    let mut back = vec![0_u8; 120];
    let to = back.as_mut_ptr().cast::<c_void>();
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(to, x, 120, stream)), OK);
    assert_eq!(back[..10], [7; 10]);
    assert_eq!(back[10..110], sent);
    assert_eq!(back[110..], [7; 10]);
    free(x, stream);
    synchronise(stream);
    assert_eq!(cu!(cuMemPoolDestroy(pool)), OK);
    assert_eq!(cu!(cuStreamDestroy_v2(stream)), OK);
    assert_eq!(control().reports(), Vec::<String>::new());
}

#[test]
fn memsets_of_every_width() {
    let _turn = turn();
    let x: CUdeviceptr = get!(cuMemAlloc_v2(_, 64));
    assert_eq!(cu!(cuMemsetD8_v2(x, 1, 64)), OK);
    assert_eq!(cu!(cuMemsetD16_v2(x + 2, 0x0302, 2)), OK);
    assert_eq!(cu!(cuMemsetD32_v2(x + 8, 0x0706_0504, 1)), OK);
    assert_eq!(cu!(cuMemsetD32_v2(x + 6, 0, 1)), INVALID_VALUE, "alignment");
    assert_eq!(read(x, 13), [1, 1, 2, 3, 2, 3, 1, 1, 4, 5, 6, 7, 1]);
    assert_eq!(cu!(cuMemsetD8_v2(x, 1, 65)), INVALID_VALUE, "past the end");
    assert_eq!(
        cu!(cuMemsetD8_v2(4096, 1, 1)),
        INVALID_VALUE,
        "nothing there"
    );
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
}

#[test]
fn pinned_memory_is_read_and_written_later() {
    let _turn = turn();
    let a = stream();
    let x: CUdeviceptr = get!(cuMemAlloc_v2(_, 8));
    let host = pinned(16);
    let gate = Gate::hold(a);
    let out = host.wrapping_add(8);
    assert_eq!(cu!(cuMemcpyHtoDAsync_v2(x, host.cast(), 8, a)), OK);
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(out.cast(), x, 8, a)), OK);
    // The copy has not happened yet, so it takes what is written now.
    // SAFETY: the first eight bytes are this test's until the gate opens.
    unsafe { host.write_bytes(9, 8) };
    gate.open();
    synchronise(a);
    // SAFETY: the stream is done with all sixteen bytes.
    let bytes = unsafe { std::slice::from_raw_parts(host, 16) };
    assert_eq!(bytes, [9; 16]);
    assert_eq!(control().live().host_allocations, 1);
    assert_eq!(cu!(cuMemFreeHost(host.cast())), OK);
    assert_eq!(cu!(cuMemFreeHost(host.cast())), INVALID_VALUE);
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
    cu!(cuStreamDestroy_v2(a));
}

#[test]
fn small_pageable_sources_are_taken_at_once() {
    let _turn = turn();
    let a = stream();
    let x: CUdeviceptr = get!(cuMemAlloc_v2(_, 8));
    let gate = Gate::hold(a);
    let mut source = [5_u8; 8];
    let from = source.as_ptr().cast();
    assert_eq!(
        cu!(cuMemcpyHtoDAsync_v2(x, from, 8, a)),
        OK,
        "does not wait"
    );
    source.fill(6);
    gate.open();
    synchronise(a);
    assert_eq!(read(x, 8), [5; 8]);
    assert_eq!(source, [6; 8]);
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
    cu!(cuStreamDestroy_v2(a));
}

#[test]
fn unified_copies_find_out_themselves() {
    let _turn = turn();
    let x: CUdeviceptr = get!(cuMemAlloc_v2(_, 8));
    let y: CUdeviceptr = get!(cuMemAlloc_v2(_, 8));
    let source = [1_u8, 2, 3, 4, 5, 6, 7, 8];
    let from = source.as_ptr().expose_provenance() as u64;
    assert_eq!(cu!(cuMemcpy(x, from, 8)), OK);
    assert_eq!(cu!(cuMemcpyDtoD_v2(y, x, 8)), OK);
    let null = std::ptr::null_mut();
    assert_eq!(cu!(cuMemcpyAsync(y, x + 4, 4, null)), OK);
    assert_eq!(read(y, 8), [5, 6, 7, 8, 5, 6, 7, 8]);
    let context = handle!(cuCtxGetCurrent(_));
    assert_eq!(cu!(cuMemcpyPeerAsync(x, context, y, context, 8, null)), OK);
    assert_eq!(read(x, 8), [5, 6, 7, 8, 5, 6, 7, 8]);
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
    assert_eq!(cu!(cuMemFree_v2(y)), OK);
}

#[test]
fn freeing_plain_memory_waits_for_the_device() {
    let _turn = turn();
    let a = stream();
    let x: CUdeviceptr = get!(cuMemAlloc_v2(_, 8));
    let gate = Gate::hold(a);
    let opened = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(40));
            opened.store(true, std::sync::atomic::Ordering::SeqCst);
            gate.open();
        });
        assert_eq!(cu!(cuMemFree_v2(x)), OK);
        assert!(opened.load(std::sync::atomic::Ordering::SeqCst));
    });
    cu!(cuStreamDestroy_v2(a));
}
