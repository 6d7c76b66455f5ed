//! What NIXL can do with memory, as the driver tells it.

use std::ffi::c_void;

use bytemuck::Pod;
use cuda_mem::driver::{MemoryKind, PointerInfo};
use cuda_mem::sys::{CUpointer_attribute, CUresult};
use cuda_mem::{DeviceBuffer, Driver, ErrorKind};

use crate::error::{Error, Result};

/// The number of the device that the memory is on. An error if the memory is not device memory.
pub(crate) fn device_of<T: Pod>(memory: &DeviceBuffer<T>) -> Result<u32> {
    Ok(ordinal(&device_info(memory)?))
}

/// The same, and an error if a network card cannot register the memory.
pub(crate) fn device_for_network_card<T: Pod>(memory: &DeviceBuffer<T>) -> Result<u32> {
    let info = device_info(memory)?;
    let driver = memory.stream().device().driver();
    // `None`: the driver is too old to know. NIXL finds out then.
    if info.gpu_direct_rdma == Some(false) {
        return Err(why_not(driver, &info)?);
    }
    let (address, bytes) = (memory.as_raw(), memory.size_bytes() as u64);
    if let Some((start, len)) = mapping(driver, address)? {
        let first_bytes = start.saturating_add(len).saturating_sub(address);
        if first_bytes < bytes {
            return Err(Error::SeveralPieces { bytes, first_bytes });
        }
    }
    Ok(ordinal(&info))
}

fn device_info<T: Pod>(memory: &DeviceBuffer<T>) -> Result<PointerInfo> {
    let address = memory.as_raw();
    if memory.size_bytes() == 0 {
        return Err(Error::NoBytes);
    }
    let driver = memory.stream().device().driver();
    let info = driver
        .pointer_info(address)?
        .ok_or(Error::UnknownMemory { address })?;
    match info.kind {
        MemoryKind::Device => Ok(info),
        kind => Err(Error::NotDeviceMemory { kind }),
    }
}

/// NIXL counts devices as CUDA does.
fn ordinal(info: &PointerInfo) -> u32 {
    info.device.unsigned_abs()
}

fn why_not(driver: Driver, info: &PointerInfo) -> Result<Error> {
    if info.pool.is_some() {
        return Ok(Error::PoolMemory);
    }
    let ordinal = ordinal(info);
    let offers = driver.device(ordinal as usize)?.gpu_direct()?;
    Ok(if offers.rdma || offers.rdma_with_mapped_memory {
        Error::NotGpuDirect
    } else {
        Error::DeviceNotGpuDirect { ordinal }
    })
}

/// Where the mapping that an address is in begins, and its size. For memory that is not mapped: the allocation. `None` if the
/// driver is too old to tell.
fn mapping(driver: Driver, address: u64) -> Result<Option<(u64, u64)>> {
    use CUpointer_attribute as A;
    let start = wide(driver, A::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, address)?;
    let len = wide(driver, A::CU_POINTER_ATTRIBUTE_MAPPING_SIZE, address)?;
    Ok(start.zip(len))
}

/// An attribute of 8 bytes; `None` if the driver does not know it.
fn wide(driver: Driver, attribute: CUpointer_attribute, address: u64) -> Result<Option<u64>> {
    let Some(ask) = driver.table().cuPointerGetAttribute else {
        return Ok(None);
    };
    let mut value: u64 = 0;
    let out: *mut c_void = (&raw mut value).cast();
    // SAFETY: `out` is valid for the 8 bytes that the driver writes for the attributes asked for above. The address may be any
    // (`cuPointerGetAttribute` answers INVALID_VALUE if it does not know it).
    match unsafe { ask(out, attribute, address) } {
        CUresult::CUDA_SUCCESS => Ok(Some(value)),
        CUresult::CUDA_ERROR_INVALID_VALUE => Ok(None),
        code => {
            let text = format!("cuPointerGetAttribute of the mapping at {address:#x}: {code:?}");
            Err(cuda_mem::Error::new(ErrorKind::Other, text).into())
        }
    }
}
