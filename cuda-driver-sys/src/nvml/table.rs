//! The functions of NVML that are used here, each an `Option`.

use std::ffi::{c_char, c_int, c_uint};

use super::{
    nvmlBAR1Memory_t, nvmlComputeMode_t, nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t,
    nvmlPciInfo_t, nvmlProcessInfo_t, nvmlReturn_t,
};
use crate::functions::functions;

functions! {
    table NvmlTable, symbols NVML_SYMBOLS, header "NVML";

    /// Starts NVML; may be called again, and counts. Makes no context.
    nvmlInit_v2, PFN_nvmlInit_v2: () -> nvmlReturn_t;
    /// Ends what one start began.
    nvmlShutdown, PFN_nvmlShutdown: () -> nvmlReturn_t;
    /// Words for a code, in memory of the library.
    nvmlErrorString, PFN_nvmlErrorString: (nvmlReturn_t) -> *const c_char;
    /// The version of the driver, such as `580.95.05`: place and its size.
    nvmlSystemGetDriverVersion, PFN_nvmlSystemGetDriverVersion: (*mut c_char, c_uint) -> nvmlReturn_t;
    /// The newest CUDA version of the driver, as `cuDriverGetVersion` counts.
    nvmlSystemGetCudaDriverVersion_v2, PFN_nvmlSystemGetCudaDriverVersion_v2: (*mut c_int) -> nvmlReturn_t;
    /// The number of GPUs.
    nvmlDeviceGetCount_v2, PFN_nvmlDeviceGetCount_v2: (*mut c_uint) -> nvmlReturn_t;
    /// A GPU by its place in the order of the PCI bus, which is not CUDA's ordinal.
    nvmlDeviceGetHandleByIndex_v2, PFN_nvmlDeviceGetHandleByIndex_v2: (c_uint, *mut nvmlDevice_t) -> nvmlReturn_t;
    /// A GPU or a MIG instance by the text of its UUID.
    nvmlDeviceGetHandleByUUID, PFN_nvmlDeviceGetHandleByUUID: (*const c_char, *mut nvmlDevice_t) -> nvmlReturn_t;
    /// A GPU by the text of its PCI id.
    nvmlDeviceGetHandleByPciBusId_v2, PFN_nvmlDeviceGetHandleByPciBusId_v2: (*const c_char, *mut nvmlDevice_t) -> nvmlReturn_t;
    /// The index of a GPU, or of a MIG instance within its GPU.
    nvmlDeviceGetIndex, PFN_nvmlDeviceGetIndex: (nvmlDevice_t, *mut c_uint) -> nvmlReturn_t;
    /// The product name: place and its size.
    nvmlDeviceGetName, PFN_nvmlDeviceGetName: (nvmlDevice_t, *mut c_char, c_uint) -> nvmlReturn_t;
    /// The UUID as text: place and its size.
    nvmlDeviceGetUUID, PFN_nvmlDeviceGetUUID: (nvmlDevice_t, *mut c_char, c_uint) -> nvmlReturn_t;
    /// The place on the PCI bus.
    nvmlDeviceGetPciInfo_v3, PFN_nvmlDeviceGetPciInfo_v3: (nvmlDevice_t, *mut nvmlPciInfo_t) -> nvmlReturn_t;
    /// Memory, with what is reserved counted as used.
    nvmlDeviceGetMemoryInfo, PFN_nvmlDeviceGetMemoryInfo: (nvmlDevice_t, *mut nvmlMemory_t) -> nvmlReturn_t;
    /// Memory, with what is reserved told apart; the version word must be set.
    nvmlDeviceGetMemoryInfo_v2, PFN_nvmlDeviceGetMemoryInfo_v2: (nvmlDevice_t, *mut nvmlMemory_v2_t) -> nvmlReturn_t;
    /// The window on the memory.
    nvmlDeviceGetBAR1MemoryInfo, PFN_nvmlDeviceGetBAR1MemoryInfo: (nvmlDevice_t, *mut nvmlBAR1Memory_t) -> nvmlReturn_t;
    /// Whether MIG is on, and whether it will be after a reset.
    nvmlDeviceGetMigMode, PFN_nvmlDeviceGetMigMode: (nvmlDevice_t, *mut c_uint, *mut c_uint) -> nvmlReturn_t;
    /// How many MIG instances there may be.
    nvmlDeviceGetMaxMigDeviceCount, PFN_nvmlDeviceGetMaxMigDeviceCount: (nvmlDevice_t, *mut c_uint) -> nvmlReturn_t;
    /// A MIG instance of a GPU. Not every index has one.
    nvmlDeviceGetMigDeviceHandleByIndex, PFN_nvmlDeviceGetMigDeviceHandleByIndex: (nvmlDevice_t, c_uint, *mut nvmlDevice_t) -> nvmlReturn_t;
    /// The processes that have a context: how many there is room for and then are, and the place.
    nvmlDeviceGetComputeRunningProcesses_v3, PFN_nvmlDeviceGetComputeRunningProcesses_v3: (nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_t) -> nvmlReturn_t;
    /// Who may have a context.
    nvmlDeviceGetComputeMode, PFN_nvmlDeviceGetComputeMode: (nvmlDevice_t, *mut nvmlComputeMode_t) -> nvmlReturn_t;
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;

    use super::*;

    unsafe extern "C" fn init() -> nvmlReturn_t {
        nvmlReturn_t(7)
    }

    #[test]
    fn every_field_gets_the_address_of_its_own_symbol() {
        let mut asked = Vec::new();
        // SAFETY: only nvmlInit_v2 gets an address, and `init` has its signature.
        let table = unsafe {
            NvmlTable::fill(|name| {
                asked.push(name);
                let init: PFN_nvmlInit_v2 = init;
                if name == c"nvmlInit_v2" {
                    init as *const c_void
                } else {
                    std::ptr::null()
                }
            })
        };
        assert_eq!(asked, NVML_SYMBOLS);
        assert!(
            NVML_SYMBOLS
                .iter()
                .all(|name| name.to_bytes().starts_with(b"nvml"))
        );
        assert_eq!(table.count(), 1);
        let call = table.nvmlInit_v2.expect("it was supplied");
        // SAFETY: it is `init` above.
        assert_eq!(unsafe { call() }, nvmlReturn_t(7));
        assert_eq!(
            format!("{table:?}"),
            format!("NvmlTable(1 of {} functions)", asked.len())
        );
    }
}
