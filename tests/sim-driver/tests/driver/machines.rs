//! Machines whose devices lack pools, or more, or where only some of them do; and drivers from before
//! there were pools.

use std::ffi::{c_int, c_void};

use cuda_driver_sys::*;

use crate::apart::{call, child_of, load};
use crate::harness::{INVALID_VALUE, OK};

const NOT_SUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;

/// Runs `body` with a started driver, in a process of its own.
fn machine(name: &str, variables: &[(&str, &str)], body: impl FnOnce(&'static DriverTable)) {
    child_of("machines", name, variables, || {
        let table = load();
        assert_eq!(call!(table.cuInit(0)), OK);
        body(table);
    });
}

fn attribute(table: &DriverTable, id: u32, device: c_int) -> Result<c_int, CUresult> {
    let mut value = 7;
    let id = CUdevice_attribute(id);
    match call!(table.cuDeviceGetAttribute(&raw mut value, id, device)) {
        OK => Ok(value),
        code => Err(code),
    }
}

/// What a plain pool of a device answers when it is made, and its handle.
fn make(table: &DriverTable, device: c_int) -> (CUresult, CUmemoryPool) {
    let wish = CUmemPoolProps {
        allocType: CUmemAllocationType(1),
        location: location(CUmemLocationType(1), device),
        ..CUmemPoolProps::default()
    };
    let mut pool = std::ptr::null_mut();
    let code = call!(table.cuMemPoolCreate(&raw mut pool, &raw const wish));
    (code, pool)
}

/// Makes the primary context of a device current, and a stream there.
fn enter(table: &DriverTable, device: c_int) -> CUstream {
    let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
    let code = call!(table.cuDevicePrimaryCtxRetain(&raw mut context, device));
    assert_eq!(code, OK);
    assert_eq!(call!(table.cuCtxSetCurrent(context)), OK);
    assert_eq!(call!(table.cuStreamCreate(&raw mut stream, 1)), OK);
    stream
}

fn plain(table: &DriverTable) -> CUdeviceptr {
    let mut address = 0;
    assert_eq!(call!(table.cuMemAlloc_v2(&raw mut address, 4096)), OK);
    address
}

/// Nothing that allocates or frees in stream order works on this device, and plain memory does.
fn has_no_pools(table: &DriverTable, device: c_int) {
    let stream = enter(table, device);
    assert_eq!(make(table, device).0, NOT_SUPPORTED);
    let mut address = 0;
    let code = call!(table.cuMemAllocAsync(&raw mut address, 64, stream));
    assert_eq!(code, NOT_SUPPORTED);
    let block = plain(table);
    let code = call!(table.cuMemFreeAsync(block, stream));
    assert_eq!(code, NOT_SUPPORTED);
    moves_bytes(table, block, stream);
    assert_eq!(call!(table.cuMemFree_v2(block)), OK);
}

fn moves_bytes(table: &DriverTable, block: CUdeviceptr, stream: CUstream) {
    let mut bytes = [0_u8; 64];
    let to = bytes.as_mut_ptr().cast::<c_void>();
    assert_eq!(call!(table.cuMemsetD8Async(block, 5, 64, stream)), OK);
    let code = call!(table.cuMemcpyDtoHAsync_v2(to, block, 64, stream));
    assert_eq!(code, OK);
    assert_eq!(call!(table.cuStreamSynchronize(stream)), OK);
    assert_eq!(bytes, [5; 64]);
}

#[test]
fn windows_has_no_pools() {
    for model in ["tcc", "wddm"] {
        let settings = [("CUDA_SIM_DRIVER_MODEL", model)];
        machine("windows_has_no_pools", &settings, |table| {
            // The child goes through the list too, and has the model that its parent gave it.
            let model = std::env::var("CUDA_SIM_DRIVER_MODEL").expect("set by the parent");
            assert_eq!(attribute(table, 35, 0), Ok((model == "tcc").into()));
            assert_eq!(attribute(table, 83, 0), Ok(1));
            for id in [89, 103, 110, 115, 116, 119, 124, 128, 142, 144] {
                assert_eq!(attribute(table, id, 0), Ok(0), "attribute {id}");
            }
            assert_eq!(attribute(table, 104, 0), Ok(cfg!(windows).into()));
            let mut pool = std::ptr::null_mut();
            let code = call!(table.cuDeviceGetDefaultMemPool(&raw mut pool, 0));
            assert_eq!(code, NOT_SUPPORTED);
            has_no_pools(table, 0);
            let mut address = 0;
            let code = call!(table.cuMemAllocManaged(&raw mut address, 64, 1));
            assert_eq!(code, OK);
            let null = std::ptr::null_mut();
            let code = call!(table.cuMemPrefetchAsync(address, 64, 0, null));
            assert_eq!(code, CUresult::CUDA_ERROR_INVALID_DEVICE);
        });
    }
}

#[test]
fn a_guest_with_a_virtual_gpu_has_only_plain_memory() {
    let settings = [("CUDA_SIM_VGPU", "1")];
    let name = "a_guest_with_a_virtual_gpu_has_only_plain_memory";
    machine(name, &settings, |table| {
        for id in [35, 83, 89, 102, 103, 115, 119, 125, 142, 144] {
            assert_eq!(attribute(table, id, 0), Ok(0), "attribute {id}");
        }
        has_no_pools(table, 0);
        let mut address = 7;
        let code = call!(table.cuMemAllocManaged(&raw mut address, 64, 1));
        assert_eq!((code, address), (NOT_SUPPORTED, 0));
        let (mut handle, block) = (CUipcMemHandle::default(), plain(table));
        let code = call!(table.cuIpcGetMemHandle(&raw mut handle, block));
        assert_eq!(code, NOT_SUPPORTED);
    });
}

#[test]
fn broken_pools_are_promised_and_fail() {
    let settings = [("CUDA_SIM_BROKEN_POOLS", "1")];
    machine("broken_pools_are_promised_and_fail", &settings, |table| {
        assert_eq!(attribute(table, 115, 0), Ok(1));
        assert_eq!(attribute(table, 119, 0), Ok(9));
        let mut pool = std::ptr::null_mut();
        let code = call!(table.cuDeviceGetDefaultMemPool(&raw mut pool, 0));
        assert_eq!(code, OK);
        let stream = enter(table, 0);
        let mut address = 0;
        let code = call!(table.cuMemAllocFromPoolAsync(&raw mut address, 64, pool, stream));
        assert_eq!(code, NOT_SUPPORTED);
        has_no_pools(table, 0);
    });
}

#[test]
fn some_devices_of_a_machine_have_pools_and_some_do_not() {
    let settings = [
        ("CUDA_SIM_DEVICES", "4"),
        ("CUDA_SIM_NO_POOLS", "1,3"),
        ("CUDA_VISIBLE_DEVICES", "3,2"),
    ];
    let name = "some_devices_of_a_machine_have_pools_and_some_do_not";
    machine(name, &settings, |table| {
        // The first that the program sees is the last of the machine.
        for (device, expected) in [(0, [0, 0, 0]), (1, [1, 9, 1])] {
            let answers = [115, 119, 144].map(|id| attribute(table, id, device));
            assert_eq!(answers, expected.map(Ok), "device {device}");
        }
        let mut pool = std::ptr::null_mut();
        for call in [table.cuDeviceGetDefaultMemPool, table.cuDeviceGetMemPool] {
            let call = call.expect("exported");
            // SAFETY: the pointer is to a live local.
            let codes = [0, 1].map(|device| unsafe { call(&raw mut pool, device) });
            assert_eq!(codes, [NOT_SUPPORTED, OK]);
        }
        let (code, pool) = make(table, 1);
        assert_eq!(code, OK);
        let code = call!(table.cuDeviceSetMemPool(0, pool));
        assert_eq!(code, NOT_SUPPORTED);
        has_no_pools(table, 0);
        // A pool of the other device does not help: it is the stream's device that has to have them.
        let without = enter(table, 0);
        let with = enter(table, 1);
        let mut address = 0;
        let mut alloc =
            |stream| call!(table.cuMemAllocFromPoolAsync(&raw mut address, 64, pool, stream));
        assert_eq!(alloc(without), NOT_SUPPORTED);
        assert_eq!(alloc(with), OK);
        moves_bytes(table, address, with);
        assert_eq!(call!(table.cuMemFreeAsync(address, with)), OK);
        // A device that is not there is still that.
        assert_eq!(make(table, 9).0, INVALID_VALUE);
    });
}

#[test]
fn a_driver_from_before_pools_has_plain_memory_and_streams() {
    for version in ["11000", "11010"] {
        let settings = [("CUDA_SIM_DRIVER_VERSION", version)];
        let name = "a_driver_from_before_pools_has_plain_memory_and_streams";
        machine(name, &settings, |table| {
            for newer in [
                "cuMemPoolCreate",
                "cuMemAllocAsync",
                "cuMemFreeAsync",
                "cuMemAllocFromPoolAsync_ptsz",
                "cuDeviceGetDefaultMemPool",
                "cuMemPrefetchAsync_v2",
                "cuMemPrefetchAsync_v2_ptsz",
                "cuGetProcAddress",
            ] {
                assert!(!table.has(newer), "{newer}");
            }
            for id in [115, 119] {
                assert_eq!(attribute(table, id, 0), Err(INVALID_VALUE));
            }
            assert_eq!(attribute(table, 83, 0), Ok(1));
            let stream = enter(table, 0);
            let block = plain(table);
            moves_bytes(table, block, stream);
            let mut event = std::ptr::null_mut();
            assert_eq!(call!(table.cuEventCreate(&raw mut event, 2)), OK);
            assert_eq!(call!(table.cuEventRecord(event, stream)), OK);
            assert_eq!(call!(table.cuStreamWaitEvent(stream, event, 0)), OK);
            assert_eq!(call!(table.cuMemFree_v2(block)), OK);
            let mut managed = 0;
            let code = call!(table.cuMemAllocManaged(&raw mut managed, 64, 1));
            assert_eq!(code, OK);
            let code = call!(table.cuMemPrefetchAsync(managed, 64, 0, stream));
            assert_eq!(code, OK);
            assert_eq!(call!(table.cuMemFree_v2(managed)), OK);
        });
    }
}
