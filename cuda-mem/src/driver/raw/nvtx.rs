//! NVTX's memory extension, like the other files here for the driver. A tool answers these calls, not the driver, and
//! they report no errors.
//!
//! NVTX's rules: any thread may call; what a call points at is read during the call and not kept; addresses are only
//! noted, and never accessed. compute-sanitizer also wants CUDA to be initialised first, and accepts a heap only while a
//! context is current.

use std::ffi::{CStr, c_void};

use cuda_driver_sys::nvtx::{
    NVTX_EXT_COMPATID_MEM, NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR,
    NVTX_MEM_REGION_REF_TYPE_POINTER, NVTX_MEM_TYPE_VIRTUAL_ADDRESS, NVTX_MESSAGE_TYPE_ASCII,
    NvtxMemTable, nvtxDomainHandle_t, nvtxMemHeapDesc_t, nvtxMemHeapHandle_t,
    nvtxMemRegionNameDesc_t, nvtxMemRegionRef_t, nvtxMemRegionsNameBatch_t,
    nvtxMemRegionsRegisterBatch_t, nvtxMemRegionsUnregisterBatch_t, nvtxMemVirtualRangeDesc_t,
    nvtxMessageValue_t,
};

/// The part of NVTX without a name, which needs no call of NVTX's core.
const DOMAIN: nvtxDomainHandle_t = std::ptr::null_mut();

/// Calls a function of the table by its symbol. `None` if the tool lacks it, and in a fork: the tool watches the parent.
macro_rules! notify {
    ($table:expr, $symbol:ident($($argument:expr),* $(,)?)) => {
        match $table.$symbol {
            Some(function) if !$crate::base::report::is_forked() => {
                Some(function(DOMAIN, $($argument),*))
            }
            _ => None,
        }
    };
}

/// A heap that a tool has accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Heap(nvtxMemHeapHandle_t);

// SAFETY: the handle is a number of the tool's, which takes it on any thread.
unsafe impl Send for Heap {}
// SAFETY: as for `Send`.
unsafe impl Sync for Heap {}

fn pointer(address: u64) -> *const c_void {
    std::ptr::without_provenance(address as usize)
}

fn range(address: u64, bytes: u64) -> nvtxMemVirtualRangeDesc_t {
    nvtxMemVirtualRangeDesc_t {
        size: bytes as usize,
        ptr: pointer(address),
    }
}

fn size_of_struct<T>() -> u16 {
    size_of::<T>() as u16
}

/// `None` if the tool refuses the heap.
///
/// # Safety
/// The table's functions must be those that a tool filled in, as in every function below.
pub(crate) unsafe fn register_heap(table: &NvtxMemTable, address: u64, bytes: u64) -> Option<Heap> {
    let range = range(address, bytes);
    let heap = nvtxMemHeapDesc_t {
        extCompatID: NVTX_EXT_COMPATID_MEM,
        structSize: size_of_struct::<nvtxMemHeapDesc_t>(),
        reserved0: 0,
        usage: NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR,
        r#type: NVTX_MEM_TYPE_VIRTUAL_ADDRESS,
        typeSpecificDescSize: size_of::<nvtxMemVirtualRangeDesc_t>(),
        typeSpecificDesc: (&raw const range).cast(),
        category: 0,
        messageType: 0,
        message: nvtxMessageValue_t {
            ascii: std::ptr::null(),
        },
    };
    // SAFETY: the structs say their version and sizes, and are valid during the call.
    let handle = unsafe { notify!(table, nvtxMemHeapRegister(&raw const heap)) }?;
    // Null is a refusal, and the highest address the answer of NVTX without a tool.
    (!handle.is_null() && handle.addr() != usize::MAX).then_some(Heap(handle))
}

/// # Safety
/// As [`register_heap`]; the heap must be registered, and is not afterwards.
pub(crate) unsafe fn unregister_heap(table: &NvtxMemTable, heap: Heap) {
    // SAFETY: the handle is the tool's, of a heap that it still has.
    unsafe { notify!(table, nvtxMemHeapUnregister(heap.0)) };
}

/// # Safety
/// As [`register_heap`]; the heap must be registered and contain the region, which overlaps no other.
pub(crate) unsafe fn register_region(table: &NvtxMemTable, heap: Heap, address: u64, bytes: u64) {
    let range = range(address, bytes);
    let regions = nvtxMemRegionsRegisterBatch_t {
        extCompatID: NVTX_EXT_COMPATID_MEM,
        structSize: size_of_struct::<nvtxMemRegionsRegisterBatch_t>(),
        regionType: NVTX_MEM_TYPE_VIRTUAL_ADDRESS,
        heap: heap.0,
        regionCount: 1,
        regionDescElementSize: size_of::<nvtxMemVirtualRangeDesc_t>(),
        regionDescElements: (&raw const range).cast(),
        regionHandleElementsOut: std::ptr::null_mut(),
    };
    // SAFETY: the structs say their version, sizes and count, and are valid during the call; no handles are asked for.
    unsafe { notify!(table, nvtxMemRegionsRegister(&raw const regions)) };
}

/// # Safety
/// As [`register_heap`]; a region must begin at the address.
pub(crate) unsafe fn unregister_region(table: &NvtxMemTable, address: u64) {
    let region = nvtxMemRegionRef_t {
        pointer: pointer(address),
    };
    let regions = nvtxMemRegionsUnregisterBatch_t {
        extCompatID: NVTX_EXT_COMPATID_MEM,
        structSize: size_of_struct::<nvtxMemRegionsUnregisterBatch_t>(),
        refType: NVTX_MEM_REGION_REF_TYPE_POINTER,
        refCount: 1,
        refElementSize: size_of::<nvtxMemRegionRef_t>(),
        refElements: &raw const region,
    };
    // SAFETY: as in `register_region`.
    unsafe { notify!(table, nvtxMemRegionsUnregister(&raw const regions)) };
}

/// # Safety
/// As [`unregister_region`].
pub(crate) unsafe fn name_region(table: &NvtxMemTable, address: u64, name: &CStr) {
    let named = nvtxMemRegionNameDesc_t {
        regionRefType: NVTX_MEM_REGION_REF_TYPE_POINTER,
        nameType: NVTX_MESSAGE_TYPE_ASCII,
        region: nvtxMemRegionRef_t {
            pointer: pointer(address),
        },
        name: nvtxMessageValue_t {
            ascii: name.as_ptr(),
        },
        category: 0,
        reserved0: 0,
    };
    let regions = nvtxMemRegionsNameBatch_t {
        extCompatID: NVTX_EXT_COMPATID_MEM,
        structSize: size_of_struct::<nvtxMemRegionsNameBatch_t>(),
        reserved0: 0,
        regionCount: 1,
        regionElementSize: size_of::<nvtxMemRegionNameDesc_t>(),
        regionElements: &raw const named,
        reserved1: 0,
    };
    // SAFETY: as in `register_region`; the name ends in a zero.
    unsafe { notify!(table, nvtxMemRegionsName(&raw const regions)) };
}
