//! Mapped memory: what can be mapped and unmapped, who may use it, and what is known of its addresses.

use std::ffi::c_void;

use cuda_driver_sys::*;

use crate::harness::*;
use crate::vmm::*;

fn access(address: CUdeviceptr, device: i32) -> Result<u64, CUresult> {
    let (mut flags, location) = (77, location(DEVICE, device));
    match cu!(cuMemGetAccess(&raw mut flags, &raw const location, address)) {
        OK => Ok(flags),
        code => Err(code),
    }
}

fn pointer_attribute<T: Default>(address: CUdeviceptr, id: u32) -> Result<T, CUresult> {
    let mut value = T::default();
    let place = (&raw mut value).cast::<c_void>();
    match cu!(cuPointerGetAttribute(
        place,
        CUpointer_attribute(id),
        address
    )) {
        OK => Ok(value),
        code => Err(code),
    }
}

#[test]
fn mappings_are_checked() {
    clean(|| {
        let (range, handle) = (reserve(4 * STEP), create(STEP));
        assert_eq!(map(range + 4096, STEP, handle), INVALID_VALUE);
        assert_eq!(map(range, 0, handle), INVALID_VALUE);
        assert_eq!(map(range, STEP + 4096, handle), NOT_SUPPORTED);
        assert_eq!(
            map(range, 2 * STEP, handle),
            NOT_SUPPORTED,
            "more than there is"
        );
        assert_eq!(
            map(range + 4 * STEP, STEP, handle),
            INVALID_VALUE,
            "outside"
        );
        assert_eq!(map(range, STEP, handle + 1), INVALID_VALUE);
        let code = cu!(cuMemMap(range, STEP as usize, STEP as usize, handle, 0));
        assert_eq!(code, NOT_SUPPORTED, "an offset");
        assert_eq!(map(range, STEP, handle), OK);
        assert_eq!(map(range, STEP, handle), INVALID_VALUE, "taken");
        assert_eq!(address_free(range, 4 * STEP), INVALID_VALUE, "in use");
        assert_eq!(unmap(range, 5 * STEP), INVALID_VALUE, "past the end");
        assert_eq!(unmap(range + STEP, STEP), OK, "nothing is there");
        assert_eq!(unmap(range, STEP), OK);
        assert_eq!(unmap(range, STEP), OK, "again");
        assert_eq!(release(handle), OK);
        // Part of a mapping is not unmapped; several whole ones are, and what is not mapped with them.
        back(range, 2 * STEP);
        back(range + 3 * STEP, STEP);
        assert_eq!(unmap(range, STEP), INVALID_VALUE);
        assert_eq!(unmap(range + STEP, 3 * STEP), INVALID_VALUE);
        assert_eq!(control().live().mappings, 2, "a refusal leaves all");
        assert_eq!(unmap(range, 4 * STEP), OK);
        assert_eq!(control().live().mappings, 0);
        assert_eq!(address_free(range, 4 * STEP), OK);
    });
}

#[test]
fn access_is_per_device_and_needs_a_fully_mapped_range() {
    clean(|| {
        let range = reserve(4 * STEP);
        back(range, STEP);
        back(range + STEP, STEP);
        assert_eq!((access(range, 0), access(range, 1)), (Ok(3), Ok(0)));
        assert_eq!(access(range + 3 * STEP, 0), Err(INVALID_VALUE));
        assert_eq!(set_access(range, 3 * STEP, 0, 3), INVALID_VALUE, "a gap");
        assert_eq!(set_access(range, 4096, 0, 3), INVALID_VALUE, "a part");
        assert_eq!(set_access(range, STEP, 9, 3), INVALID_VALUE);
        assert_eq!(access(range, 9), Err(INVALID_DEVICE));
        assert_eq!(set_access(range, STEP, 0, 7), INVALID_VALUE);
        assert_eq!(set_access(range, 2 * STEP, 1, 3), OK);
        assert_eq!(access(range + STEP, 1), Ok(3));
        assert_eq!(set_access(range, STEP, 0, 1), OK);
        assert_eq!(access(range, 0), Ok(1));
        assert_eq!(fill(range, 1, 8), INVALID_VALUE, "read only");
        assert_eq!(bytes_at(range, 1), [0]);
        assert_eq!(set_access(range, STEP, 0, 0), OK);
        assert_eq!(fill(range, 1, 8), INVALID_VALUE);
        assert_eq!(fill(range + STEP, 1, 8), OK);
        assert_eq!(fill(range + STEP - 4, 1, 8), INVALID_VALUE);
        assert_eq!(cu!(cuCtxSynchronize()), OK);
        assert_eq!(unmap(range, 2 * STEP), OK);
        assert_eq!(address_free(range, 4 * STEP), OK);
    });
}

#[test]
fn work_crosses_from_one_mapping_into_the_next() {
    clean(|| {
        let range = reserve(4 * STEP);
        back(range, STEP);
        back(range + STEP, STEP);
        assert_eq!(fill(range, 5, 2 * STEP), OK);
        let (to, from) = (range + STEP - 3, range);
        assert_eq!(fill(from, 6, 6), OK);
        assert_eq!(cu!(cuMemcpyDtoD_v2(to, from, 6)), OK);
        assert_eq!(bytes_at(to - 1, 8), [5, 6, 6, 6, 6, 6, 6, 5]);
        assert_eq!(
            fill(range + STEP, 5, STEP + 1),
            INVALID_VALUE,
            "past the end"
        );
        let mut host = [0_u8; 8];
        let place = host.as_mut_ptr().expose_provenance() as u64;
        let code = cu!(cuMemcpy(place, range + 2 * STEP - 4, 8));
        assert_eq!(code, INVALID_VALUE, "never taken for the host's");
        assert_eq!(cu!(cuCtxSynchronize()), OK);
        assert_eq!(unmap(range, 2 * STEP), OK);
        assert_eq!(address_free(range, 4 * STEP), OK);
    });
}

#[test]
fn a_mapping_names_its_memory() {
    clean(|| {
        let (range, handle) = (reserve(4 * STEP), create(STEP));
        assert_eq!(map(range, STEP, handle), OK);
        let inside = std::ptr::with_exposed_provenance_mut::<c_void>(range as usize + 77);
        let again: u64 = get!(cuMemRetainAllocationHandle(_, inside));
        assert_eq!(again, handle);
        assert_eq!((release(handle), release(handle)), (OK, OK));
        assert_eq!(release(handle), INVALID_VALUE);
        let third: u64 = get!(cuMemRetainAllocationHandle(_, inside));
        assert_eq!(unmap(range, STEP), OK);
        let mut none = 0;
        let code = cu!(cuMemRetainAllocationHandle(&raw mut none, inside));
        assert_eq!(code, INVALID_VALUE);
        assert_eq!(map(range + STEP, STEP, third), OK);
        assert_eq!(release(third), OK);
        assert_eq!(unmap(range + STEP, STEP), OK);
        assert_eq!(address_free(range, 4 * STEP), OK);
    });
}

#[test]
fn pointers_tell_range_and_mapping() {
    clean(|| {
        let range = reserve(4 * STEP);
        back(range + STEP, STEP);
        for id in [2, 9, 11, 12, 13] {
            let answer = pointer_attribute::<u64>(range, id);
            assert_eq!(answer, Err(INVALID_VALUE), "nothing is known of {id}");
        }
        let at = range + STEP + 9;
        assert_eq!(pointer_attribute(at, 13), Ok(1_u32));
        assert_eq!(pointer_attribute(at, 11), Ok(range));
        assert_eq!(pointer_attribute(at, 12), Ok(4 * STEP));
        assert_eq!(pointer_attribute(at, 19), Ok(range + STEP));
        assert_eq!(pointer_attribute(at, 18), Ok(STEP));
        assert_eq!(pointer_attribute(range + STEP, 2), Ok(2_u32));
        assert_eq!(pointer_attribute(range + STEP, 9), Ok(0_i32));
        let (mut base, mut len) = (0, 0);
        let code = cu!(cuMemGetAddressRange_v2(&raw mut base, &raw mut len, at));
        assert_eq!((code, base, len as u64), (OK, range + STEP, STEP));
        let code = cu!(cuMemGetAddressRange_v2(&raw mut base, &raw mut len, range));
        assert_eq!((code, base), (CUresult::CUDA_ERROR_NOT_FOUND, 0));
        assert_eq!(unmap(range + STEP, STEP), OK);
        assert_eq!(address_free(range, 4 * STEP), OK);
    });
}

/// Queued work outlives the mapping, and in the end the addresses: it is left out, and nothing crashes.
#[test]
fn an_unmap_waits_for_nothing_and_late_work_is_left_out() {
    let _turn = turn();
    let (stream, range) = (stream(), reserve(2 * STEP));
    back(range, STEP);
    let gate = Gate::hold(stream);
    gate.wait();
    assert_eq!(cu!(cuMemsetD8Async(range, 1, 64, stream)), OK);
    assert_eq!(unmap(range, STEP), OK);
    assert_eq!(address_free(range, 2 * STEP), OK);
    gate.open();
    synchronise(stream);
    let reports = control().reports();
    let kinds: Vec<&str> = reports.iter().filter_map(|r| r.split(':').next()).collect();
    assert_eq!(
        kinds,
        ["unmap before access", "after unmap"],
        "{reports:#?}"
    );
    cu!(cuStreamDestroy_v2(stream));
}

/// Work and unmapping at the same time, over and over.
#[test]
fn unmapping_under_running_work_is_survived() {
    let _turn = turn();
    let (stream, range) = (stream(), reserve(2 * STEP));
    for _ in 0..12 {
        back(range, STEP);
        back(range + STEP, STEP);
        for _ in 0..4 {
            let code = cu!(cuMemsetD8Async(range, 1, 2 * STEP as usize, stream));
            assert_eq!(code, OK);
        }
        assert_eq!(unmap(range, 2 * STEP), OK);
    }
    synchronise(stream);
    assert_eq!(address_free(range, 2 * STEP), OK);
    cu!(cuStreamDestroy_v2(stream));
}

#[test]
fn mapped_memory_outlives_the_context() {
    let mut turn = turn();
    let range = reserve(STEP);
    back(range, STEP);
    assert_eq!(fill(range, 3, 4), OK);
    turn.with_next_context();
    assert_eq!(bytes_at(range, 2), [3, 3]);
    assert_eq!(unmap(range, STEP), OK);
    assert_eq!(address_free(range, STEP), OK);
}
