//! NVML, like the other files here for the driver. Nothing here creates a context.
//!
//! NVML may be called from any thread, and its handles belong to the process.

use std::ffi::{CStr, c_char, c_int, c_uint};

use cuda_driver_sys::nvml::{
    NVML_DEVICE_NAME_V2_BUFFER_SIZE, NVML_DEVICE_UUID_V2_BUFFER_SIZE,
    NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE, NvmlTable, nvmlBAR1Memory_t, nvmlComputeMode_t,
    nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlPciInfo_t, nvmlProcessInfo_t, nvmlReturn_t,
};

use crate::base::error::{Error, Result};

/// Calls a function of the table by its symbol; a missing one is an error, and so is any call in a
/// fork.
macro_rules! ask {
    ($table:expr, $symbol:ident($($argument:expr),* $(,)?)) => {
        match $table.$symbol {
            _ if $crate::base::report::is_nvml_forked() => Err($crate::base::error::Error::nvml_forked()),
            Some(function) => check(stringify!($symbol), function($($argument),*)),
            None => Err($crate::base::error::Error::nvml_lacks(stringify!($symbol))),
        }
    };
}

fn check(function: &'static str, code: nvmlReturn_t) -> Result<()> {
    if code == nvmlReturn_t::NVML_SUCCESS {
        Ok(())
    } else {
        Err(Error::nvml(function, code))
    }
}

/// # Safety
/// The table's functions must be NVML's.
pub(crate) unsafe fn init(table: &NvmlTable) -> Result<()> {
    // SAFETY: nvmlInit takes nothing and may be called any number of times.
    unsafe { ask!(table, nvmlInit_v2()) }
}

/// # Safety
/// NVML must be initialised.
pub(crate) unsafe fn driver_version(table: &NvmlTable) -> Result<String> {
    text::<NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE>(|out, room| {
        // SAFETY: `out` is valid for `room` bytes, all that NVML may write.
        unsafe { ask!(table, nvmlSystemGetDriverVersion(out, room)) }
    })
}

/// # Safety
/// NVML must be initialised.
pub(crate) unsafe fn cuda_version(table: &NvmlTable) -> Result<c_int> {
    let mut version = 0;
    // SAFETY: `version` is valid for a write of one int.
    unsafe { ask!(table, nvmlSystemGetCudaDriverVersion_v2(&raw mut version)) }?;
    Ok(version)
}

/// # Safety
/// NVML must be initialised.
pub(crate) unsafe fn count(table: &NvmlTable) -> Result<c_uint> {
    let mut count = 0;
    // SAFETY: `count` is valid for a write of one unsigned int.
    unsafe { ask!(table, nvmlDeviceGetCount_v2(&raw mut count)) }?;
    Ok(count)
}

/// # Safety
/// NVML must be initialised.
pub(crate) unsafe fn by_index(table: &NvmlTable, index: c_uint) -> Result<nvmlDevice_t> {
    let mut device = std::ptr::null_mut();
    // SAFETY: `device` is valid for a write; a wrong index answers INVALID_ARGUMENT.
    unsafe { ask!(table, nvmlDeviceGetHandleByIndex_v2(index, &raw mut device)) }?;
    Ok(device)
}

/// # Safety
/// NVML must be initialised.
pub(crate) unsafe fn by_uuid(table: &NvmlTable, uuid: &CStr) -> Result<nvmlDevice_t> {
    let mut device = std::ptr::null_mut();
    // SAFETY: the text ends in a zero and `device` is valid for a write; an unknown UUID answers
    // NOT_FOUND.
    unsafe {
        ask!(
            table,
            nvmlDeviceGetHandleByUUID(uuid.as_ptr(), &raw mut device)
        )
    }?;
    Ok(device)
}

/// # Safety
/// NVML must be initialised.
pub(crate) unsafe fn by_pci(table: &NvmlTable, id: &CStr) -> Result<nvmlDevice_t> {
    let mut device = std::ptr::null_mut();
    // SAFETY: as in `by_uuid`.
    unsafe {
        ask!(
            table,
            nvmlDeviceGetHandleByPciBusId_v2(id.as_ptr(), &raw mut device)
        )
    }?;
    Ok(device)
}

/// # Safety
/// `device` must come from this table, as in every function below.
pub(crate) unsafe fn index(table: &NvmlTable, device: nvmlDevice_t) -> Result<c_uint> {
    let mut index = 0;
    // SAFETY: `index` is valid for a write of one unsigned int.
    unsafe { ask!(table, nvmlDeviceGetIndex(device, &raw mut index)) }?;
    Ok(index)
}

/// # Safety
/// As [`index`].
pub(crate) unsafe fn name(table: &NvmlTable, device: nvmlDevice_t) -> Result<String> {
    text::<NVML_DEVICE_NAME_V2_BUFFER_SIZE>(|out, room| {
        // SAFETY: `out` is valid for `room` bytes, all that NVML may write.
        unsafe { ask!(table, nvmlDeviceGetName(device, out, room)) }
    })
}

/// # Safety
/// As [`index`].
pub(crate) unsafe fn uuid(table: &NvmlTable, device: nvmlDevice_t) -> Result<String> {
    text::<NVML_DEVICE_UUID_V2_BUFFER_SIZE>(|out, room| {
        // SAFETY: as in `name`.
        unsafe { ask!(table, nvmlDeviceGetUUID(device, out, room)) }
    })
}

/// Domain, bus and device.
///
/// # Safety
/// As [`index`].
pub(crate) unsafe fn pci(
    table: &NvmlTable,
    device: nvmlDevice_t,
) -> Result<(c_uint, c_uint, c_uint)> {
    let mut info = nvmlPciInfo_t {
        busIdLegacy: [0; 16],
        domain: 0,
        bus: 0,
        device: 0,
        pciDeviceId: 0,
        pciSubSystemId: 0,
        busId: [0; 32],
    };
    // SAFETY: `info` is valid for a write of the struct of the third version.
    unsafe { ask!(table, nvmlDeviceGetPciInfo_v3(device, &raw mut info)) }?;
    Ok((info.domain, info.bus, info.device))
}

/// # Safety
/// As [`index`].
pub(crate) unsafe fn memory(table: &NvmlTable, device: nvmlDevice_t) -> Result<nvmlMemory_v2_t> {
    // Its version word is set.
    let mut memory = nvmlMemory_v2_t::default();
    // SAFETY: `memory` is valid for a write of the struct that its version word names.
    unsafe { ask!(table, nvmlDeviceGetMemoryInfo_v2(device, &raw mut memory)) }?;
    Ok(memory)
}

/// # Safety
/// As [`index`].
pub(crate) unsafe fn memory_before_v2(
    table: &NvmlTable,
    device: nvmlDevice_t,
) -> Result<nvmlMemory_t> {
    let mut memory = nvmlMemory_t::default();
    // SAFETY: `memory` is valid for a write of the struct of the first version.
    unsafe { ask!(table, nvmlDeviceGetMemoryInfo(device, &raw mut memory)) }?;
    Ok(memory)
}

/// # Safety
/// As [`index`].
pub(crate) unsafe fn bar1(table: &NvmlTable, device: nvmlDevice_t) -> Result<nvmlBAR1Memory_t> {
    let mut memory = nvmlBAR1Memory_t::default();
    // SAFETY: `memory` is valid for a write of the struct.
    unsafe { ask!(table, nvmlDeviceGetBAR1MemoryInfo(device, &raw mut memory)) }?;
    Ok(memory)
}

/// The mode now, and the one after a reset.
///
/// # Safety
/// As [`index`].
pub(crate) unsafe fn mig_mode(table: &NvmlTable, device: nvmlDevice_t) -> Result<(c_uint, c_uint)> {
    let (mut current, mut pending) = (0, 0);
    // SAFETY: both are valid for a write of one unsigned int.
    unsafe {
        ask!(
            table,
            nvmlDeviceGetMigMode(device, &raw mut current, &raw mut pending)
        )
    }?;
    Ok((current, pending))
}

/// # Safety
/// As [`index`].
pub(crate) unsafe fn max_mig_count(table: &NvmlTable, device: nvmlDevice_t) -> Result<c_uint> {
    let mut count = 0;
    // SAFETY: `count` is valid for a write of one unsigned int.
    unsafe {
        ask!(
            table,
            nvmlDeviceGetMaxMigDeviceCount(device, &raw mut count)
        )
    }?;
    Ok(count)
}

/// The instance with this index, if there is one.
///
/// # Safety
/// As [`index`].
pub(crate) unsafe fn mig_by_index(
    table: &NvmlTable,
    device: nvmlDevice_t,
    index: c_uint,
) -> Result<Option<nvmlDevice_t>> {
    let mut instance = std::ptr::null_mut();
    // SAFETY: `instance` is valid for a write; an index without an instance answers NOT_FOUND.
    let answer = unsafe {
        ask!(
            table,
            nvmlDeviceGetMigDeviceHandleByIndex(device, index, &raw mut instance)
        )
    };
    match answer {
        Ok(()) => Ok(Some(instance)),
        Err(error) if error.nvml_code() == Some(nvmlReturn_t::NVML_ERROR_NOT_FOUND) => Ok(None),
        Err(error) => Err(error),
    }
}

/// # Safety
/// As [`index`].
pub(crate) unsafe fn compute_mode(
    table: &NvmlTable,
    device: nvmlDevice_t,
) -> Result<nvmlComputeMode_t> {
    let mut mode = nvmlComputeMode_t::default();
    // SAFETY: `mode` is valid for a write of one integer.
    unsafe { ask!(table, nvmlDeviceGetComputeMode(device, &raw mut mode)) }?;
    Ok(mode)
}

/// # Safety
/// As [`index`].
pub(crate) unsafe fn processes(
    table: &NvmlTable,
    device: nvmlDevice_t,
) -> Result<Vec<nvmlProcessInfo_t>> {
    // Processes come and go between asking how many there are and asking for them.
    let mut room: c_uint = 16;
    loop {
        let mut found = vec![nvmlProcessInfo_t::default(); room as usize];
        let mut count = room;
        // SAFETY: `found` is valid for `count` structs, all that NVML may write.
        let answer = unsafe {
            ask!(
                table,
                nvmlDeviceGetComputeRunningProcesses_v3(device, &raw mut count, found.as_mut_ptr())
            )
        };
        match answer {
            Ok(()) => {
                found.truncate(count as usize);
                return Ok(found);
            }
            Err(error)
                if error.nvml_code() == Some(nvmlReturn_t::NVML_ERROR_INSUFFICIENT_SIZE)
                    && room < 1 << 16 =>
            {
                room = count.max(room).saturating_mul(2);
            }
            Err(error) => return Err(error),
        }
    }
}

/// The text that a function writes into the place it is given.
fn text<const ROOM: usize>(ask: impl FnOnce(*mut c_char, c_uint) -> Result<()>) -> Result<String> {
    let mut text: [c_char; ROOM] = [0; ROOM];
    // One byte less than there is, so that the text ends in a zero whatever NVML does.
    ask(text.as_mut_ptr(), ROOM as c_uint - 1)?;
    // SAFETY: the last byte is zero, so there is a terminator inside the array.
    let text = unsafe { CStr::from_ptr(text.as_ptr()) };
    Ok(text.to_string_lossy().into_owned())
}
