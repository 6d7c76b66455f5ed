//! What the tool fills in, and what its library exports.

use std::ffi::{CStr, c_int, c_void};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use cuda_driver_sys::nvtx::{
    NVTX_EXT_COMPATID_MEM, NVTX_EXT_MODULEID_MEM, NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR,
    NVTX_MEM_REGION_REF_TYPE_POINTER, NVTX_MEM_SYMBOLS, NVTX_MEM_TYPE_VIRTUAL_ADDRESS,
    NVTX_MESSAGE_TYPE_ASCII, NvtxExtInitializeInjectionFunc_t, NvtxMemTable, nvtxDomainHandle_t,
    nvtxExtModuleInfo_t, nvtxExtModuleSegment_t, nvtxMemHeapDesc_t, nvtxMemHeapHandle_t,
    nvtxMemRegionNameDesc_t, nvtxMemRegionRef_t, nvtxMemRegionsNameBatch_t,
    nvtxMemRegionsRegisterBatch_t, nvtxMemRegionsResizeBatch_t, nvtxMemRegionsUnregisterBatch_t,
    nvtxMemVirtualRangeDesc_t,
};
use cuda_sim_support::settings::setting;

use crate::rules::Known;

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

/// The process that attached; forks do not report leaks.
static PROCESS: OnceLock<u32> = OnceLock::new();

fn locked() -> MutexGuard<'static, Option<Known>> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn with<T>(run: impl FnOnce(&mut Known) -> T) -> T {
    run(locked().get_or_insert_default())
}

fn refuses(what: &str) -> bool {
    setting("NVTX_SIM_REFUSE").is_some_and(|refused| refused == what)
}

/// # Safety
///
/// The address must be that of `count` values, which live as long as the slice.
unsafe fn elements<'a, T>(address: *const T, count: usize) -> &'a [T] {
    if address.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller's, and it is not null.
    unsafe { std::slice::from_raw_parts(address, count) }
}

/// Whether the head of a struct is right.
fn check<T>(known: &mut Known, compat: u16, size: u16) -> bool {
    let is_right = compat == NVTX_EXT_COMPATID_MEM && usize::from(size) == size_of::<T>();
    if !is_right {
        let name = std::any::type_name::<T>();
        known.fault(format!("{name} of version {compat:#x} and {size} bytes"));
    }
    is_right
}

fn is_range(kind: u32, size: usize) -> bool {
    kind == NVTX_MEM_TYPE_VIRTUAL_ADDRESS && size == size_of::<nvtxMemVirtualRangeDesc_t>()
}

unsafe extern "C" fn register_heap(
    _: nvtxDomainHandle_t,
    desc: *const nvtxMemHeapDesc_t,
) -> nvtxMemHeapHandle_t {
    // SAFETY: NVTX hands in one struct.
    let desc = unsafe { &*desc };
    with(|known| {
        if !check::<nvtxMemHeapDesc_t>(known, desc.extCompatID, desc.structSize) {
            return std::ptr::null_mut();
        }
        let is_known = desc.usage == NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR
            && is_range(desc.r#type, desc.typeSpecificDescSize);
        if !is_known || desc.typeSpecificDesc.is_null() {
            known.fault(format!(
                "a heap of usage {} and type {}",
                desc.usage, desc.r#type
            ));
            return std::ptr::null_mut();
        }
        if refuses("heaps") {
            return std::ptr::null_mut();
        }
        let range = desc.typeSpecificDesc.cast::<nvtxMemVirtualRangeDesc_t>();
        // SAFETY: a heap of this type has a range there, not null.
        let range = unsafe { &*range };
        known.add_heap(range.ptr.addr() as u64, range.size as u64);
        range.ptr.cast_mut().cast()
    })
}

unsafe extern "C" fn unregister_heap(_: nvtxDomainHandle_t, heap: nvtxMemHeapHandle_t) {
    with(|known| known.remove_heap(heap.addr() as u64));
}

unsafe extern "C" fn reset_heap(_: nvtxDomainHandle_t, heap: nvtxMemHeapHandle_t) {
    with(|known| known.reset_heap(heap.addr() as u64));
}

unsafe extern "C" fn register_regions(
    _: nvtxDomainHandle_t,
    batch: *const nvtxMemRegionsRegisterBatch_t,
) {
    // SAFETY: NVTX hands in one struct.
    let batch = unsafe { &*batch };
    with(|known| {
        if !check::<nvtxMemRegionsRegisterBatch_t>(known, batch.extCompatID, batch.structSize) {
            return;
        }
        if !is_range(batch.regionType, batch.regionDescElementSize) {
            known.fault(format!("regions of type {}", batch.regionType));
            return;
        }
        let regions = batch.regionDescElements.cast::<nvtxMemVirtualRangeDesc_t>();
        // SAFETY: regions of this type are so many ranges.
        for range in unsafe { elements(regions, batch.regionCount) } {
            let (address, bytes) = (range.ptr.addr() as u64, range.size as u64);
            known.add_region(batch.heap.addr() as u64, address, bytes);
        }
    });
}

unsafe extern "C" fn resize_regions(
    _: nvtxDomainHandle_t,
    batch: *const nvtxMemRegionsResizeBatch_t,
) {
    // SAFETY: NVTX hands in one struct.
    let batch = unsafe { &*batch };
    with(|known| {
        if !check::<nvtxMemRegionsResizeBatch_t>(known, batch.extCompatID, batch.structSize) {
            return;
        }
        let regions = batch.regionDescElements.cast::<nvtxMemVirtualRangeDesc_t>();
        // SAFETY: regions are so many ranges.
        for range in unsafe { elements(regions, batch.regionDescCount) } {
            known.resize_region(range.ptr.addr() as u64, range.size as u64);
        }
    });
}

/// The address of a region that is named by it.
fn address_of(known: &mut Known, kind: u32, region: nvtxMemRegionRef_t) -> Option<u64> {
    if kind != NVTX_MEM_REGION_REF_TYPE_POINTER {
        known.fault(format!("a region named by kind {kind}"));
        return None;
    }
    // SAFETY: the kind says that it is this field.
    Some(unsafe { region.pointer }.addr() as u64)
}

unsafe extern "C" fn unregister_regions(
    _: nvtxDomainHandle_t,
    batch: *const nvtxMemRegionsUnregisterBatch_t,
) {
    // SAFETY: NVTX hands in one struct.
    let batch = unsafe { &*batch };
    with(|known| {
        if !check::<nvtxMemRegionsUnregisterBatch_t>(known, batch.extCompatID, batch.structSize) {
            return;
        }
        // SAFETY: so many regions are named there.
        for region in unsafe { elements(batch.refElements, batch.refCount) } {
            if let Some(address) = address_of(known, batch.refType, *region) {
                known.remove_region(address);
            }
        }
    });
}

unsafe extern "C" fn name_regions(_: nvtxDomainHandle_t, batch: *const nvtxMemRegionsNameBatch_t) {
    // SAFETY: NVTX hands in one struct.
    let batch = unsafe { &*batch };
    with(|known| {
        if !check::<nvtxMemRegionsNameBatch_t>(known, batch.extCompatID, batch.structSize) {
            return;
        }
        // SAFETY: so many regions are named there.
        for named in unsafe { elements(batch.regionElements, batch.regionCount) } {
            let nvtxMemRegionNameDesc_t { region, name, .. } = *named;
            let Some(address) = address_of(known, named.regionRefType, region) else {
                continue;
            };
            if named.nameType != NVTX_MESSAGE_TYPE_ASCII {
                known.fault(format!("a name of type {}", named.nameType));
                continue;
            }
            // SAFETY: the type says that it is this field.
            let text = unsafe { name.ascii };
            // SAFETY: a text of this type ends in a zero.
            let text = unsafe { CStr::from_ptr(text) };
            known.name_region(address, text.to_bytes());
        }
    });
}

/// The functions, in the order of their slots. The types are those of the bindings: a wrong signature does not compile.
fn table() -> NvtxMemTable {
    NvtxMemTable {
        nvtxMemHeapRegister: Some(register_heap),
        nvtxMemHeapUnregister: Some(unregister_heap),
        nvtxMemHeapReset: Some(reset_heap),
        nvtxMemRegionsRegister: Some(register_regions),
        nvtxMemRegionsResize: Some(resize_regions),
        nvtxMemRegionsUnregister: Some(unregister_regions),
        nvtxMemRegionsName: Some(name_regions),
    }
}

fn addresses() -> [Option<*const c_void>; 7] {
    let table = table();
    [
        table
            .nvtxMemHeapRegister
            .map(|function| function as *const c_void),
        table
            .nvtxMemHeapUnregister
            .map(|function| function as *const c_void),
        table
            .nvtxMemHeapReset
            .map(|function| function as *const c_void),
        table
            .nvtxMemRegionsRegister
            .map(|function| function as *const c_void),
        table
            .nvtxMemRegionsResize
            .map(|function| function as *const c_void),
        table
            .nvtxMemRegionsUnregister
            .map(|function| function as *const c_void),
        table
            .nvtxMemRegionsName
            .map(|function| function as *const c_void),
    ]
}

/// A program attaches. Zero is a refusal.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "NVTX's name")]
unsafe extern "C" fn InitializeInjectionNvtxExtension(info: *mut nvtxExtModuleInfo_t) -> c_int {
    // SAFETY: NVTX hands in one struct.
    let info = unsafe { &*info };
    let is_known = usize::from(info.structSize) == size_of::<nvtxExtModuleInfo_t>()
        && info.moduleId == NVTX_EXT_MODULEID_MEM
        && info.compatId == NVTX_EXT_COMPATID_MEM;
    if !is_known || refuses("extension") {
        return 0;
    }
    if PROCESS.set(std::process::id()).is_ok() {
        // SAFETY: `at_exit` may be called at any time, and never unwinds.
        let _ = unsafe { libc::atexit(at_exit) };
    }
    let missing = setting("NVTX_SIM_MISSING").unwrap_or_default();
    // SAFETY: NVTX hands in so many segments.
    for segment in unsafe { elements(info.segments.cast_const(), info.segmentsCount) } {
        fill(segment, &missing);
    }
    1
}

const _: NvtxExtInitializeInjectionFunc_t = InitializeInjectionNvtxExtension;

fn fill(segment: &nvtxExtModuleSegment_t, missing: &str) {
    let named = NVTX_MEM_SYMBOLS.iter().zip(addresses());
    for (slot, (name, address)) in named.enumerate().take(segment.slotCount) {
        let is_missing = missing
            .split(',')
            .any(|one| one.as_bytes() == name.to_bytes());
        if let Some(address) = address.filter(|_| !is_missing) {
            let place = segment.functionSlots.wrapping_add(slot);
            // SAFETY: the segment has so many slots, which the tool is to fill.
            unsafe { place.write(address.expose_provenance() as isize) };
        }
    }
}

extern "C" fn at_exit() {
    if PROCESS.get() == Some(&std::process::id())
        && let Some(known) = &*locked()
    {
        known.tell_of_leaks();
    }
}

/// Hands what the tool knows, as text, to a function.
///
/// # Safety
///
/// `read` must take `data` and so many bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvtxsim_state(
    read: unsafe extern "C" fn(*mut c_void, *const u8, usize),
    data: *mut c_void,
) {
    let text = with(|known| known.text());
    // SAFETY: the caller's.
    unsafe { read(data, text.as_ptr(), text.len()) };
}
