//! Memory as NCCL allocates it: physical memory that other devices and processes can use, mapped.

use std::collections::BTreeMap;
use std::mem::zeroed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_driver_sys::{
    CUdevice_attribute, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType, CUmemLocationType,
    CUresult,
};

use crate::driver::{Driver, checked, cu, cu_code, driver};
use crate::export::{Answer, invalid_argument};
use crate::words;

#[derive(Clone, Copy, Debug)]
struct Allocation {
    bytes: usize,
    handle: u64,
}

static MEMORIES: Mutex<BTreeMap<u64, Allocation>> = Mutex::new(BTreeMap::new());

fn memories() -> MutexGuard<'static, BTreeMap<u64, Allocation>> {
    MEMORIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of allocations.
pub(crate) fn count() -> u64 {
    memories().len() as u64
}

fn has(driver: &Driver, device: i32, attribute: CUdevice_attribute) -> Answer<bool> {
    let mut value = 0;
    cu!(
        driver,
        cuDeviceGetAttribute(&raw mut value, attribute, device)
    )?;
    Ok(value != 0)
}

/// The devices that reach this one's memory, itself first.
fn accessors(driver: &Driver, device: i32) -> Answer<Vec<CUmemAccessDesc>> {
    let mut count = 0;
    cu!(driver, cuDeviceGetCount(&raw mut count))?;
    let mut all = vec![device];
    for peer in (0..count).filter(|peer| *peer != device) {
        let mut reaches = 0;
        cu!(
            driver,
            cuDeviceCanAccessPeer(&raw mut reaches, peer, device)
        )?;
        if reaches != 0 {
            all.push(peer);
        }
    }
    let descs = all.into_iter().map(|device| {
        // SAFETY: plain data, for which zero is valid.
        let mut desc: CUmemAccessDesc = unsafe { zeroed() };
        desc.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        desc.location.__bindgen_anon_1.id = device;
        desc.flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        desc
    });
    Ok(descs.collect())
}

/// Creates the memory with a handle for fabric if that works, as NCCL does.
fn create(driver: &Driver, device: i32, bytes: usize) -> Answer<(u64, usize)> {
    type Attribute = CUdevice_attribute;
    let descriptor = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let fabric = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
    // SAFETY: plain data, for which zero is valid.
    let mut prop: CUmemAllocationProp = unsafe { zeroed() };
    prop.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.__bindgen_anon_1.id = device;
    prop.requestedHandleTypes = descriptor;
    let direct = Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED;
    prop.allocFlags.gpuDirectRDMACapable = has(driver, device, direct)?.into();
    let mut granularity = 0;
    let recommended = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    cu!(
        driver,
        cuMemGetAllocationGranularity(&raw mut granularity, &raw const prop, recommended)
    )?;
    let Some(bytes) = bytes.checked_next_multiple_of(granularity.max(1)) else {
        return invalid_argument(format!("{bytes} bytes are too many"));
    };
    let mut handle = 0;
    // Drivers before CUDA 12.3 do not know the attribute.
    let has_fabric = Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED;
    if has(driver, device, has_fabric).unwrap_or(false) {
        prop.requestedHandleTypes.0 = descriptor.0 | fabric.0;
        let code = cu_code!(
            driver,
            cuMemCreate(&raw mut handle, bytes, &raw const prop, 0)
        );
        // The attribute does not say whether this process may have such handles; only an attempt does.
        let is_refused = [
            CUresult::CUDA_ERROR_NOT_PERMITTED,
            CUresult::CUDA_ERROR_NOT_SUPPORTED,
        ]
        .contains(&code);
        if !is_refused {
            checked("cuMemCreate", code)?;
            return Ok((handle, bytes));
        }
        prop.requestedHandleTypes = descriptor;
    }
    cu!(
        driver,
        cuMemCreate(&raw mut handle, bytes, &raw const prop, 0)
    )?;
    Ok((handle, bytes))
}

fn map(driver: &Driver, device: i32, bytes: usize, handle: u64) -> Answer<u64> {
    let accessors = accessors(driver, device)?;
    let mut address = 0;
    cu!(
        driver,
        cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0)
    )?;
    let mapped = cu!(driver, cuMemMap(address, bytes, 0, handle, 0)).and_then(|()| {
        let set = cu!(
            driver,
            cuMemSetAccess(address, bytes, accessors.as_ptr(), accessors.len())
        );
        if set.is_err() {
            // The first failure is told.
            let _ = cu!(driver, cuMemUnmap(address, bytes));
        }
        set
    });
    if mapped.is_err() {
        let _ = cu!(driver, cuMemAddressFree(address, bytes));
    }
    mapped.map(|()| address)
}

/// Allocates on the current device.
pub(crate) fn alloc(bytes: usize) -> Answer<u64> {
    if bytes == 0 {
        return Ok(0);
    }
    let driver = driver()?;
    let (_, device) = driver.current()?;
    let (handle, bytes) = create(driver, device, bytes)?;
    match map(driver, device, bytes, handle) {
        Ok(address) => {
            memories().insert(address, Allocation { bytes, handle });
            Ok(address)
        }
        Err(failure) => {
            let _ = cu!(driver, cuMemRelease(handle));
            Err(failure)
        }
    }
}

/// Frees what [`alloc`] returned.
pub(crate) fn free(address: u64) -> Answer {
    if address == 0 {
        return Ok(());
    }
    let Some(Allocation { bytes, handle }) = memories().remove(&address) else {
        let words = format!("{address:#x} is not of ncclMemAlloc");
        words::fault(words.clone());
        return invalid_argument(words);
    };
    let driver = driver()?;
    let unmapped = cu!(driver, cuMemUnmap(address, bytes));
    let released = cu!(driver, cuMemRelease(handle));
    let freed = cu!(driver, cuMemAddressFree(address, bytes));
    unmapped.and(released).and(freed)
}
