//! The functions of the memory extension that these bindings use, each an `Option`.

use super::{
    nvtxDomainHandle_t, nvtxMemHeapDesc_t, nvtxMemHeapHandle_t, nvtxMemRegionsNameBatch_t,
    nvtxMemRegionsRegisterBatch_t, nvtxMemRegionsResizeBatch_t, nvtxMemRegionsUnregisterBatch_t,
};
use crate::functions::functions;

// In the order of their slots, by which a tool fills them: 0, 1, 2, …
functions! {
    table NvtxMemTable, symbols NVTX_MEM_SYMBOLS, header "`nvToolsExtMem.h`";

    /// Announces memory that is to be divided into regions. Null if the tool refuses it.
    nvtxMemHeapRegister, PFN_nvtxMemHeapRegister:
        (nvtxDomainHandle_t, *const nvtxMemHeapDesc_t) -> nvtxMemHeapHandle_t;
    /// Ends a heap, and all regions in it.
    nvtxMemHeapUnregister, PFN_nvtxMemHeapUnregister: (nvtxDomainHandle_t, nvtxMemHeapHandle_t);
    /// Ends all regions of a heap.
    nvtxMemHeapReset, PFN_nvtxMemHeapReset: (nvtxDomainHandle_t, nvtxMemHeapHandle_t);
    /// Announces parts of a heap that are in use.
    nvtxMemRegionsRegister, PFN_nvtxMemRegionsRegister:
        (nvtxDomainHandle_t, *const nvtxMemRegionsRegisterBatch_t);
    /// Changes the size of regions.
    nvtxMemRegionsResize, PFN_nvtxMemRegionsResize:
        (nvtxDomainHandle_t, *const nvtxMemRegionsResizeBatch_t);
    /// Ends regions.
    nvtxMemRegionsUnregister, PFN_nvtxMemRegionsUnregister:
        (nvtxDomainHandle_t, *const nvtxMemRegionsUnregisterBatch_t);
    /// Names regions.
    nvtxMemRegionsName, PFN_nvtxMemRegionsName:
        (nvtxDomainHandle_t, *const nvtxMemRegionsNameBatch_t);
}
