//! Virtual memory management: addresses, and memory without an address.

use std::ffi::c_void;

use cuda_driver_sys::*;

use crate::apart::{call, child_of, load};
use crate::harness::*;

pub(crate) const STEP: u64 = 2 * MIB;
pub(crate) const DEVICE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
pub(crate) const INVALID_DEVICE: CUresult = CUresult::CUDA_ERROR_INVALID_DEVICE;
const NOT_PERMITTED: CUresult = CUresult::CUDA_ERROR_NOT_PERMITTED;
pub(crate) const NOT_SUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;

pub(crate) fn reserve(bytes: u64) -> CUdeviceptr {
    get!(cuMemAddressReserve(_, bytes as usize, 0, 0, 0))
}

pub(crate) fn address_free(address: CUdeviceptr, bytes: u64) -> CUresult {
    cu!(cuMemAddressFree(address, bytes as usize))
}

fn prop(device: i32) -> CUmemAllocationProp {
    CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: location(DEVICE, device),
        ..CUmemAllocationProp::default()
    }
}

fn try_create(bytes: u64, prop: &CUmemAllocationProp) -> Result<u64, CUresult> {
    let mut handle = 0;
    let prop = std::ptr::from_ref(prop);
    match cu!(cuMemCreate(&raw mut handle, bytes as usize, prop, 0)) {
        OK => Ok(handle),
        code => Err(code),
    }
}

pub(crate) fn create(bytes: u64) -> u64 {
    try_create(bytes, &prop(0)).expect("memory")
}

pub(crate) fn release(handle: u64) -> CUresult {
    cu!(cuMemRelease(handle))
}

pub(crate) fn map(address: CUdeviceptr, bytes: u64, handle: u64) -> CUresult {
    cu!(cuMemMap(address, bytes as usize, 0, handle, 0))
}

pub(crate) fn unmap(address: CUdeviceptr, bytes: u64) -> CUresult {
    cu!(cuMemUnmap(address, bytes as usize))
}

pub(crate) fn set_access(address: CUdeviceptr, bytes: u64, device: i32, flags: u32) -> CUresult {
    let wish = CUmemAccessDesc {
        location: location(DEVICE, device),
        flags: CUmemAccess_flags(flags),
    };
    cu!(cuMemSetAccess(address, bytes as usize, &raw const wish, 1))
}

/// Memory at an address, for device 0, without a handle.
pub(crate) fn back(address: CUdeviceptr, bytes: u64) {
    let handle = create(bytes);
    assert_eq!(map(address, bytes, handle), OK);
    assert_eq!(release(handle), OK);
    assert_eq!(set_access(address, bytes, 0, 3), OK);
}

pub(crate) fn fill(address: CUdeviceptr, value: u8, bytes: u64) -> CUresult {
    cu!(cuMemsetD8_v2(address, value, bytes as usize))
}

pub(crate) fn bytes_at(address: CUdeviceptr, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    let place = bytes.as_mut_ptr().cast::<c_void>();
    assert_eq!(cu!(cuMemcpyDtoH_v2(place, address, count)), OK);
    bytes
}

/// Every test leaves nothing behind.
pub(crate) fn clean(work: impl FnOnce()) {
    let _turn = turn();
    let (before, free) = (control().live(), available());
    work();
    assert_eq!(cu!(cuCtxSynchronize()), OK);
    assert_eq!(control().live(), before);
    assert_eq!(available(), free);
    assert!(control().reports().is_empty(), "{:?}", control().reports());
}

#[test]
fn memory_is_mapped_used_and_given_back() {
    clean(|| {
        assert_eq!(device_attribute(102), Ok(1));
        let free = available();
        let range = reserve(64 * STEP);
        let handle = create(2 * STEP);
        assert_eq!(available(), free - 2 * STEP);
        assert_eq!(map(range + STEP, 2 * STEP, handle), OK);
        assert_eq!(set_access(range + STEP, 2 * STEP, 0, 3), OK);
        assert_eq!(fill(range + STEP, 7, 2 * STEP), OK);
        assert_eq!(bytes_at(range + 3 * STEP - 2, 2), [7, 7]);
        let live = control().live();
        assert_eq!(
            (live.physical_allocations, live.physical_bytes),
            (1, 4 << 20)
        );
        assert_eq!((live.reservations, live.mappings), (1, 1));
        assert_eq!(cu!(cuCtxSynchronize()), OK);
        // The memory outlives its handle, and then ends with the mapping.
        assert_eq!(release(handle), OK);
        assert_eq!(release(handle), INVALID_VALUE);
        assert_eq!(available(), free - 2 * STEP);
        assert_eq!(unmap(range + STEP, 2 * STEP), OK);
        assert_eq!(available(), free);
        assert_eq!(address_free(range, 64 * STEP), OK);
    });
}

#[test]
fn the_same_memory_shows_wherever_it_is_mapped() {
    clean(|| {
        let (range, handle) = (reserve(4 * STEP), create(STEP));
        assert_eq!(map(range, STEP, handle), OK);
        assert_eq!(set_access(range, STEP, 0, 3), OK);
        assert_eq!(fill(range, 9, 16), OK);
        assert_eq!(map(range + 2 * STEP, STEP, handle), OK);
        assert_eq!(set_access(range + 2 * STEP, STEP, 0, 3), OK);
        assert_eq!(bytes_at(range + 2 * STEP, 17)[15..], [9, 0]);
        assert_eq!(cu!(cuCtxSynchronize()), OK);
        assert_eq!(unmap(range, STEP), OK);
        assert_eq!(bytes_at(range + 2 * STEP, 1), [9]);
        assert_eq!(unmap(range + 2 * STEP, STEP), OK);
        // A handle alone keeps the memory, with its bytes.
        assert_eq!(map(range, STEP, handle), OK);
        assert_eq!(
            fill(range, 1, 1),
            INVALID_VALUE,
            "access is to be set again"
        );
        assert_eq!(set_access(range, STEP, 0, 3), OK);
        assert_eq!(bytes_at(range, 1), [9]);
        assert_eq!(unmap(range, STEP), OK);
        assert_eq!(release(handle), OK);
        // Fresh memory is zero.
        back(range, STEP);
        assert_eq!(bytes_at(range, 1), [0]);
        assert_eq!(unmap(range, STEP), OK);
        assert_eq!(address_free(range, 4 * STEP), OK);
    });
}

#[test]
fn reservations_cost_nothing_and_are_checked() {
    clean(|| {
        let large = reserve(1 << 40);
        assert_eq!(fill(large + 5 * STEP, 1, 1), INVALID_VALUE);
        assert_eq!(address_free(large, 1 << 39), INVALID_VALUE);
        assert_eq!(address_free(large + STEP, STEP), INVALID_VALUE);
        assert_eq!(address_free(large, 1 << 40), OK);
        assert_eq!(address_free(large, 1 << 40), INVALID_VALUE);
        let aligned: CUdeviceptr = get!(cuMemAddressReserve(_, STEP as usize, 1 << 30, 0, 0));
        assert!(aligned.is_multiple_of(1 << 30));
        assert_eq!(address_free(aligned, STEP), OK);
        let hinted: CUdeviceptr = get!(cuMemAddressReserve(_, STEP as usize, 0, aligned, 0));
        assert_eq!(hinted, aligned);
        let mut out = 0;
        for (size, align, hint, flags) in [
            (0, 0, 0, 0),
            (1, 0, 0, 0),
            (4096, 0, 0, 0),
            (3 << 20, 0, 0, 0),
            (2 << 20, 3, 0, 0),
            (2 << 20, 0, 1, 0),
            (2 << 20, 0, 0, 1),
        ] {
            let code = cu!(cuMemAddressReserve(&raw mut out, size, align, hint, flags));
            assert_eq!(code, INVALID_VALUE, "{size} {align} {hint} {flags}");
        }
        let code = cu!(cuMemAddressReserve(&raw mut out, 1 << 47, 0, 0, 0));
        assert_eq!(code, OUT_OF_MEMORY);
        assert_eq!(address_free(hinted, STEP), OK);
    });
}

#[test]
fn memory_is_as_limited_as_the_device() {
    clean(|| {
        let free = available();
        let most = free / STEP * STEP;
        assert_eq!(try_create(most + STEP, &prop(0)), Err(OUT_OF_MEMORY));
        let all = create(most);
        assert_eq!(try_create(STEP, &prop(0)), Err(OUT_OF_MEMORY));
        let mut block = 0;
        assert_eq!(cu!(cuMemAlloc_v2(&raw mut block, 4 << 20)), OUT_OF_MEMORY);
        assert_eq!(release(all), OK);
        assert_eq!(available(), free);
        control().fail("cuMemCreate", 1, OUT_OF_MEMORY);
        assert_eq!(try_create(STEP, &prop(0)), Err(OUT_OF_MEMORY));
        assert_eq!(control().calls("cuMemCreate"), 4);
    });
}

#[test]
fn pools_give_way_to_physical_memory() {
    let fixture = Fixture::new();
    assert_eq!(set_attribute(fixture.pool, 4, u64::MAX), OK);
    let block = fixture.alloc(1 << 30);
    fixture.free(block);
    synchronise(fixture.stream);
    assert!(reserved(fixture.pool) >= 1024);
    let handle = create((available() + (512 << 20)) / STEP * STEP);
    assert!(reserved(fixture.pool) < 1024);
    assert_eq!(release(handle), OK);
}

#[test]
fn requests_for_memory_are_checked() {
    clean(|| {
        let with = |kind: u32, id| CUmemAllocationProp {
            location: location(CUmemLocationType(kind), id),
            ..prop(0)
        };
        assert_eq!(try_create(0, &prop(0)), Err(INVALID_VALUE));
        assert_eq!(try_create(STEP + 4096, &prop(0)), Err(INVALID_VALUE));
        assert_eq!(try_create(STEP, &prop(9)), Err(INVALID_DEVICE));
        for kind in [0, 4] {
            assert_eq!(
                try_create(STEP, &with(kind, 0)),
                Err(INVALID_VALUE),
                "{kind}"
            );
        }
        for kind in [2, 3] {
            let handle = try_create(STEP, &with(kind, 0)).expect("memory of the host");
            assert_eq!(release(handle), OK);
        }
        assert_eq!(try_create(STEP, &with(3, 1)), Err(INVALID_VALUE));
        // Of Windows, of a fabric that is not there, and of nothing.
        for (types, code) in [
            (2, INVALID_VALUE),
            (4, INVALID_VALUE),
            (8, NOT_PERMITTED),
            (9, NOT_PERMITTED),
            (16, OK),
        ] {
            let prop = CUmemAllocationProp {
                requestedHandleTypes: CUmemAllocationHandleType(types),
                ..prop(0)
            };
            let handle = try_create(STEP, &prop);
            assert_eq!(handle.map_or_else(|code| code, release), code, "{types}");
        }
        let shared = CUmemAllocationProp {
            requestedHandleTypes: CUmemAllocationHandleType(1),
            ..prop(1)
        };
        let handle = try_create(STEP, &shared).expect("memory of device 1");
        let found: CUmemAllocationProp = get!(cuMemGetAllocationPropertiesFromHandle(_, handle));
        assert_eq!(location_parts(found.location), (DEVICE, 1));
        assert_eq!(found.requestedHandleTypes.0, 1);
        assert_eq!(release(handle), OK);
        for (device, option) in [(0, 0), (0, 1), (99, 0)] {
            let (prop, option) = (prop(device), CUmemAllocationGranularity_flags(option));
            let bytes: usize = get!(cuMemGetAllocationGranularity(_, &raw const prop, option));
            assert_eq!(bytes as u64, STEP, "nobody looks at the device");
        }
    });
}

#[test]
fn a_setting_and_virtual_gpus_have_none_of_it() {
    for setting in [("CUDA_SIM_VMM", "0"), ("CUDA_SIM_VGPU", "1")] {
        child_of(
            "vmm",
            "a_setting_and_virtual_gpus_have_none_of_it",
            &[setting],
            || {
                let table = load();
                assert_eq!(call!(table.cuInit(0)), OK);
                for id in [102, 103, 128] {
                    let (mut value, id) = (7, CUdevice_attribute(id));
                    let code = call!(table.cuDeviceGetAttribute(&raw mut value, id, 0));
                    assert_eq!((code, value), (OK, 0));
                }
                let (mut address, mut handle, prop) = (0, 0, prop(0));
                let code = call!(table.cuMemAddressReserve(&raw mut address, 1 << 21, 0, 0, 0));
                assert_eq!(code, NOT_SUPPORTED);
                let code = call!(table.cuMemCreate(&raw mut handle, 1 << 21, &raw const prop, 0));
                assert_eq!(code, NOT_SUPPORTED);
                assert_eq!(call!(table.cuMemUnmap(STEP, 1 << 21)), NOT_SUPPORTED);
            },
        );
    }
}

#[test]
#[cfg(target_os = "linux")]
fn physical_memory_is_no_pool_and_a_pool_is_no_physical_memory() {
    const DESCRIPTOR: CUmemAllocationHandleType = CUmemAllocationHandleType(1);
    let _turn = turn();
    let argument = |number: i32| std::ptr::without_provenance_mut::<c_void>(number as usize);
    let close = |number| {
        // SAFETY: the driver gave this descriptor to the test, which uses it no more.
        assert_eq!(unsafe { libc::close(number) }, 0);
    };
    let node = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA;
    for place in [location(DEVICE, 0), location(node, 0)] {
        let wish = CUmemAllocationProp {
            requestedHandleTypes: DESCRIPTOR,
            location: place,
            ..prop(0)
        };
        let memory = try_create(STEP, &wish).expect("memory");
        let (mut number, mut pool) = (-1, std::ptr::null_mut());
        let to = (&raw mut number).cast();
        assert_eq!(
            cu!(cuMemExportToShareableHandle(to, memory, DESCRIPTOR, 0)),
            OK
        );
        let from = argument(number);
        let code = cu!(cuMemPoolImportFromShareableHandle(
            &raw mut pool,
            from,
            DESCRIPTOR,
            0
        ));
        assert_eq!(code, NOT_SUPPORTED);
        close(number);
        assert_eq!(release(memory), OK);

        let wish = CUmemPoolProps {
            handleTypes: DESCRIPTOR,
            location: place,
            ..props()
        };
        let (made, mut memory) = (crate::harness::pool(&wish), 0);
        let to = (&raw mut number).cast();
        assert_eq!(
            cu!(cuMemPoolExportToShareableHandle(to, made, DESCRIPTOR, 0)),
            OK
        );
        let code = cu!(cuMemImportFromShareableHandle(
            &raw mut memory,
            argument(number),
            DESCRIPTOR
        ));
        assert_eq!(code, NOT_SUPPORTED);
        close(number);
        assert_eq!(cu!(cuMemPoolDestroy(made)), OK);
    }
}
