//! Devices and contexts.

use std::ffi::{CStr, c_char, c_int, c_void};

use cuda_driver_sys::*;

use crate::harness::*;

const INVALID_DEVICE: CUresult = CUresult::CUDA_ERROR_INVALID_DEVICE;
const INVALID_CONTEXT: CUresult = CUresult::CUDA_ERROR_INVALID_CONTEXT;

fn is_active(device: c_int) -> bool {
    let (mut flags, mut active) = (9, 9);
    let answer = cu!(cuDevicePrimaryCtxGetState(
        device,
        &raw mut flags,
        &raw mut active
    ));
    assert_eq!((answer, flags), (OK, 0));
    active == 1
}

#[test]
fn two_devices_that_differ() {
    let _turn = turn();
    let count: c_int = get!(cuDeviceGetCount(_));
    assert_eq!(count, 2);
    let name = |device| {
        let mut text = [1 as c_char; 64];
        let place = text.as_mut_ptr();
        assert_eq!(cu!(cuDeviceGetName(place, 64, device)), OK);
        // SAFETY: the simulator ended the text with a zero.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        text.to_str().expect("ASCII").to_owned()
    };
    assert_eq!(name(0), "Simulated GPU 0");
    assert_eq!(name(1), "Simulated GPU 1");
    let uuids = [0, 1].map(|device| get!(cuDeviceGetUuid_v2(_, device)));
    let [first, second]: [CUuuid; 2] = uuids;
    assert_ne!(first.bytes, second.bytes);
    let memory: usize = get!(cuDeviceTotalMem_v2(_, 0));
    assert_eq!(memory as u64, 150_109_880_320);
    for (device, peer, expected) in [(0, 1, 1), (1, 0, 1), (0, 0, 0)] {
        let can: c_int = get!(cuDeviceCanAccessPeer(_, device, peer));
        assert_eq!(can, expected);
    }
}

#[test]
fn ordinals_past_the_end_are_refused() {
    let _turn = turn();
    let mut device = 5;
    for ordinal in [-1, 2, 99] {
        assert_eq!(cu!(cuDeviceGet(&raw mut device, ordinal)), INVALID_DEVICE);
    }
    assert_eq!(device, 5);
    assert_eq!(cu!(cuInit(1)), INVALID_VALUE);
}

#[test]
fn unknown_attributes_leave_the_result_alone() {
    let _turn = turn();
    assert_eq!(device_attribute(115), Ok(1));
    assert_eq!(device_attribute(119), Ok(9));
    assert_eq!(device_attribute(147), Ok(0));
    for unknown in [0, 148, 1000] {
        assert_eq!(device_attribute(unknown), Err(INVALID_VALUE));
    }
}

#[test]
fn names_of_errors() {
    let _turn = turn();
    let mut text = std::ptr::null();
    assert_eq!(cu!(cuGetErrorName(OUT_OF_MEMORY, &raw mut text)), OK);
    // SAFETY: the simulator's texts are constants.
    let name = unsafe { CStr::from_ptr(text) };
    assert_eq!(name, c"CUDA_ERROR_OUT_OF_MEMORY");
    let unknown = CUresult(31_337);
    assert_eq!(cu!(cuGetErrorString(unknown, &raw mut text)), INVALID_VALUE);
    assert!(text.is_null());
}

#[test]
fn looking_at_devices_makes_no_context() {
    let turn = turn();
    assert!(is_active(0) && !is_active(1));
    handle!(cuDeviceGetDefaultMemPool(_, 1));
    let mut wish = props();
    wish.location = location(CUmemLocationType(1), 1);
    let pool = pool(&wish);
    assert_eq!(cu!(cuMemPoolDestroy(pool)), OK);
    assert!(!is_active(1));
    assert_eq!(handle!(cuCtxGetCurrent(_)), turn.context);
}

#[test]
fn a_primary_context_lives_from_the_first_retain_to_the_last_release() {
    let _turn = turn();
    let first = handle!(cuDevicePrimaryCtxRetain(_, 1));
    let second = handle!(cuDevicePrimaryCtxRetain(_, 1));
    assert_eq!(first, second);
    assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(1)), OK);
    assert!(is_active(1));
    assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(1)), OK);
    assert!(!is_active(1));
    assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(1)), INVALID_CONTEXT);
}

#[test]
fn a_stream_does_not_survive_its_context() {
    let turn = turn();
    let context = handle!(cuDevicePrimaryCtxRetain(_, 1));
    assert_eq!(cu!(cuCtxSetCurrent(context)), OK);
    let (stream, event) = (stream(), event());
    assert_eq!(cu!(cuCtxSetCurrent(turn.context)), OK);
    assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(1)), OK);
    let destroyed = CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED;
    let mut out = 0;
    assert_eq!(cu!(cuMemAllocAsync(&raw mut out, 1, stream)), destroyed);
    // The context comes back, its streams do not.
    assert_eq!(cu!(cuEventQuery(event)), destroyed);
    handle!(cuDevicePrimaryCtxRetain(_, 1));
    assert_eq!(cu!(cuEventQuery(event)), INVALID_CONTEXT);
    assert_eq!(cu!(cuEventDestroy_v2(event)), INVALID_CONTEXT);
    assert_eq!(
        cu!(cuEventDestroy_v2(event)),
        CUresult::CUDA_ERROR_INVALID_HANDLE
    );
    assert_eq!(cu!(cuStreamSynchronize(stream)), destroyed);
    assert_eq!(cu!(cuStreamDestroy_v2(stream)), destroyed);
    assert_eq!(cu!(cuDevicePrimaryCtxRelease_v2(1)), OK);
    assert_eq!(control().live().streams, 0);
}

#[test]
fn contexts_stack_on_each_thread() {
    let turn = turn();
    let mine = handle!(cuCtxCreate_v2(_, 0, 1));
    assert_eq!(handle!(cuCtxGetCurrent(_)), mine);
    let device: c_int = get!(cuCtxGetDevice(_));
    assert_eq!(device, 1);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            assert!(handle!(cuCtxGetCurrent(_)).is_null());
            let mut device = 0;
            assert_eq!(cu!(cuCtxGetDevice(&raw mut device)), INVALID_CONTEXT);
        });
    });
    assert_eq!(handle!(cuCtxPopCurrent_v2(_)), mine);
    assert_eq!(handle!(cuCtxGetCurrent(_)), turn.context);
    assert_eq!(cu!(cuCtxPushCurrent_v2(mine)), OK);
    assert_eq!(control().live().contexts, 1);
    assert_eq!(cu!(cuCtxDestroy_v2(mine)), OK);
    assert_eq!(handle!(cuCtxGetCurrent(_)), turn.context);
    assert_eq!(cu!(cuCtxDestroy_v2(mine)), INVALID_CONTEXT);
    let destroyed = CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED;
    assert_eq!(cu!(cuCtxSetCurrent(mine)), destroyed);
    assert_eq!(cu!(cuCtxPushCurrent_v2(mine)), destroyed);
    assert_eq!(handle!(cuCtxGetCurrent(_)), turn.context);

    let under = get!(cuCtxCreate_v2(_, 0, 0));
    assert_eq!(cu!(cuCtxPushCurrent_v2(turn.context)), OK);
    assert_eq!(cu!(cuCtxDestroy_v2(under)), OK);
    assert_eq!(handle!(cuCtxPopCurrent_v2(_)), turn.context);
    assert_eq!(handle!(cuCtxGetCurrent(_)), under);
    assert_eq!(cu!(cuCtxSynchronize()), destroyed);
    assert_eq!(handle!(cuCtxPopCurrent_v2(_)), under);
    let null = std::ptr::null_mut();
    assert_eq!(cu!(cuCtxPushCurrent_v2(null)), INVALID_VALUE);
    assert_eq!(cu!(cuCtxDestroy_v2(null)), INVALID_VALUE);
    assert_eq!(
        cu!(cuCtxDestroy_v2(turn.context)),
        INVALID_CONTEXT,
        "primary"
    );
}

#[test]
fn what_needs_a_current_context_and_what_does_not() {
    let turn = turn();
    let (stream, pool) = (stream(), pool(&props()));
    let plain_block: CUdeviceptr = get!(cuMemAlloc_v2(_, 100));
    assert_eq!(cu!(cuCtxSetCurrent(std::ptr::null_mut())), OK);
    let block = alloc(pool, 100, stream);
    let mut bytes = [0_u8; 100];
    let host = bytes.as_mut_ptr().cast::<c_void>();
    assert_eq!(cu!(cuMemsetD8Async(block, 1, 100, stream)), OK);
    assert_eq!(cu!(cuMemcpyHtoDAsync_v2(block, host, 10, stream)), OK);
    assert_eq!(cu!(cuMemcpyDtoDAsync_v2(block + 50, block, 10, stream)), OK);
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(host, block, 100, stream)), OK);
    assert_eq!((bytes[9], bytes[10], bytes[59], bytes[60]), (0, 1, 0, 1));
    let host = bytes.as_ptr().cast::<c_void>();
    assert_eq!(cu!(cuMemcpyHtoD_v2(block, host, 10)), INVALID_CONTEXT);
    let (mut base, mut size) = (0, 0);
    let range = cu!(cuMemGetAddressRange_v2(&raw mut base, &raw mut size, block));
    assert_eq!(range, INVALID_CONTEXT);
    let plain: CUdeviceptr = get!(cuMemAllocAsync(_, 100, stream));
    free(plain, stream);
    free(block, stream);
    synchronise(stream);
    assert_eq!(cu!(cuStreamQuery(stream)), OK);
    let mut out = 0;
    let null = std::ptr::null_mut();
    for default in [null, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD] {
        assert_eq!(
            cu!(cuMemAllocAsync(&raw mut out, 1, default)),
            INVALID_CONTEXT
        );
        assert_eq!(cu!(cuMemFreeAsync(block, default)), INVALID_CONTEXT);
        assert_eq!(cu!(cuStreamSynchronize(default)), INVALID_CONTEXT);
    }
    assert_eq!(cu!(cuMemAlloc_v2(&raw mut out, 1)), INVALID_CONTEXT);
    let (mut event, mut made) = (std::ptr::null_mut(), std::ptr::null_mut());
    assert_eq!(cu!(cuEventCreate(&raw mut event, 0)), INVALID_CONTEXT);
    assert_eq!(cu!(cuStreamCreate(&raw mut made, 0)), INVALID_CONTEXT);
    let (mut a, mut b) = (0, 0);
    assert_eq!(
        cu!(cuMemGetInfo_v2(&raw mut a, &raw mut b)),
        INVALID_CONTEXT
    );
    assert_eq!(cu!(cuCtxSynchronize()), INVALID_CONTEXT);
    let block = alloc(pool, 100, stream);
    assert_eq!(cu!(cuMemFree_v2(block)), OK);
    assert_eq!(cu!(cuMemFree_v2(plain_block)), OK);
    assert_eq!(cu!(cuStreamDestroy_v2(stream)), OK);
    assert_eq!(cu!(cuMemPoolDestroy(pool)), OK);
    assert_eq!(cu!(cuCtxSetCurrent(turn.context)), OK);
}

#[test]
fn functions_are_found_by_base_name_and_version() {
    let _turn = turn();
    let find = |name: &CStr, version: c_int, flags: u64| {
        let mut address = std::ptr::without_provenance_mut::<c_void>(1);
        let mut status = CUdriverProcAddressQueryResult(9);
        let answer = cu!(cuGetProcAddress_v2(
            name.as_ptr(),
            &raw mut address,
            version,
            flags,
            &raw mut status
        ));
        (answer, address.addr(), status.0)
    };
    let address = |function: *const c_void| function.addr();
    let alloc = address(table().cuMemAlloc_v2.expect("exported") as *const c_void);
    assert_eq!(find(c"cuMemAlloc", 3020, 0), (OK, alloc, 0));
    let twin = address(table().cuMemFreeAsync_ptsz.expect("exported") as *const c_void);
    assert_eq!(find(c"cuMemFreeAsync", 13000, 2), (OK, twin, 0));
    assert_eq!(find(c"cuTeapot", 13000, 0), (OK, 0, 1));
    assert_eq!(find(c"cuMemAlloc_v2", 13000, 0), (OK, 0, 1));
    assert_eq!(find(c"cuMemPoolCreate", 11000, 0), (OK, 0, 2));
    assert_eq!(find(c"cuMemAlloc", -1, 0), (OK, alloc, 0));
    assert_eq!(find(c"cuMemAlloc", 13010, 0).0, INVALID_VALUE);
    assert_eq!(find(c"cuMemAlloc", 13000, 4).0, INVALID_VALUE);
    let mut address = std::ptr::without_provenance_mut::<c_void>(1);
    let teapot = c"cuTeapot".as_ptr();
    let answer = cu!(cuGetProcAddress(teapot, &raw mut address, 13000, 0));
    let untouched = (CUresult::CUDA_ERROR_NOT_FOUND, 1);
    assert_eq!((answer, address.addr()), untouched);
}
