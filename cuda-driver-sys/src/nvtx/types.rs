//! The structs and constants of `nvToolsExtMem.h` and of the way in which tools attach, with their layouts checked.

use std::ffi::{c_char, c_int, c_void};

/// The extension for memory, among those of NVTX.
pub const NVTX_EXT_MODULEID_MEM: u16 = 1;
/// The version of the extension's structs, which each of them carries.
pub const NVTX_EXT_COMPATID_MEM: u16 = 0x0102;
/// The version of NVTX that these bindings follow.
pub const NVTX_VERSION: u16 = 3;
/// The slots of the extension, most of which are for functions to come.
pub const NVTX_EXT_MEM_SLOT_COUNT: usize = 63;

/// A heap that is divided by a sub-allocator: only its regions may be accessed.
pub const NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR: u32 = 1;
/// A heap that has a layout: all of it may be accessed.
pub const NVTX_MEM_HEAP_USAGE_TYPE_LAYOUT: u32 = 2;
/// Memory at addresses of the process.
pub const NVTX_MEM_TYPE_VIRTUAL_ADDRESS: u32 = 1;
/// A region is named by its address.
pub const NVTX_MEM_REGION_REF_TYPE_POINTER: u32 = 1;
/// A region is named by the handle that the tool gave it.
pub const NVTX_MEM_REGION_REF_TYPE_HANDLE: u32 = 2;
/// A text of bytes that ends in a zero.
pub const NVTX_MESSAGE_TYPE_ASCII: u32 = 1;

macro_rules! opaque {
    ($($(#[$docs:meta])* $name:ident, $handle:ident;)*) => {$(
        #[doc = concat!("What [`", stringify!($handle), "`] points at; only the tool knows.")]
        #[derive(Debug)]
        #[repr(C)]
        pub struct $name {
            _opaque: [u8; 0],
        }

        $(#[$docs])*
        pub type $handle = *mut $name;
    )*};
}

opaque! {
    /// A program's own part of NVTX. Null is the part without a name.
    nvtxDomainRegistration, nvtxDomainHandle_t;
    /// A text that was handed to the tool before.
    nvtxStringRegistration, nvtxStringHandle_t;
    /// A heap. Of addresses it is the heap's own.
    nvtxMemHeap_t, nvtxMemHeapHandle_t;
    /// A region.
    nvtxMemRegion_t, nvtxMemRegionHandle_t;
}

/// A text. Another field says of what kind.
#[derive(Clone, Copy)]
#[repr(C)]
pub union nvtxMessageValue_t {
    /// Bytes that end in a zero.
    pub ascii: *const c_char,
    /// Wide characters that end in a zero.
    pub unicode: *const c_void,
    /// A text that the tool has.
    pub registered: nvtxStringHandle_t,
}

/// Which region. Another field says how.
#[derive(Clone, Copy)]
#[repr(C)]
pub union nvtxMemRegionRef_t {
    /// Its address.
    pub pointer: *const c_void,
    /// Its handle.
    pub handle: nvtxMemRegionHandle_t,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvtxMemVirtualRangeDesc_t {
    /// Its bytes.
    pub size: usize,
    /// Where it begins.
    pub ptr: *const c_void,
}

/// A heap to be announced.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct nvtxMemHeapDesc_t {
    /// [`NVTX_EXT_COMPATID_MEM`].
    pub extCompatID: u16,
    /// The bytes of this struct.
    pub structSize: u16,
    /// Zero.
    pub reserved0: u32,
    /// `NVTX_MEM_HEAP_USAGE_TYPE_…`.
    pub usage: u32,
    /// `NVTX_MEM_TYPE_…`.
    pub r#type: u32,
    /// The bytes of what the next field points at.
    pub typeSpecificDescSize: usize,
    /// For addresses, a [`nvtxMemVirtualRangeDesc_t`].
    pub typeSpecificDesc: *const c_void,
    /// A number that the program chooses, or zero.
    pub category: u32,
    /// The kind of the text, or zero for none.
    pub messageType: u32,
    /// The heap's name.
    pub message: nvtxMessageValue_t,
}

/// Regions to be announced.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvtxMemRegionsRegisterBatch_t {
    /// [`NVTX_EXT_COMPATID_MEM`].
    pub extCompatID: u16,
    /// The bytes of this struct.
    pub structSize: u16,
    /// `NVTX_MEM_TYPE_…`.
    pub regionType: u32,
    /// The heap that all of them lie in.
    pub heap: nvtxMemHeapHandle_t,
    /// How many there are.
    pub regionCount: usize,
    /// The bytes of one.
    pub regionDescElementSize: usize,
    /// For addresses, an array of [`nvtxMemVirtualRangeDesc_t`].
    pub regionDescElements: *const c_void,
    /// Where the tool writes their handles, or null.
    pub regionHandleElementsOut: *mut nvtxMemRegionHandle_t,
}

/// Regions with new sizes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvtxMemRegionsResizeBatch_t {
    /// [`NVTX_EXT_COMPATID_MEM`].
    pub extCompatID: u16,
    /// The bytes of this struct.
    pub structSize: u16,
    /// `NVTX_MEM_TYPE_…`.
    pub regionType: u32,
    /// How many there are.
    pub regionDescCount: usize,
    /// The bytes of one.
    pub regionDescElementSize: usize,
    /// For addresses, an array of [`nvtxMemVirtualRangeDesc_t`].
    pub regionDescElements: *const c_void,
}

/// Regions that end.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvtxMemRegionsUnregisterBatch_t {
    /// [`NVTX_EXT_COMPATID_MEM`].
    pub extCompatID: u16,
    /// The bytes of this struct.
    pub structSize: u16,
    /// `NVTX_MEM_REGION_REF_TYPE_…`.
    pub refType: u32,
    /// How many there are.
    pub refCount: usize,
    /// The bytes of one.
    pub refElementSize: usize,
    /// Which ones.
    pub refElements: *const nvtxMemRegionRef_t,
}

/// A region and its name.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct nvtxMemRegionNameDesc_t {
    /// `NVTX_MEM_REGION_REF_TYPE_…`.
    pub regionRefType: u32,
    /// The kind of the text.
    pub nameType: u32,
    /// Which region.
    pub region: nvtxMemRegionRef_t,
    /// Its name.
    pub name: nvtxMessageValue_t,
    /// A number that the program chooses, or zero.
    pub category: u32,
    /// Zero.
    pub reserved0: u32,
}

/// Regions to be named.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvtxMemRegionsNameBatch_t {
    /// [`NVTX_EXT_COMPATID_MEM`].
    pub extCompatID: u16,
    /// The bytes of this struct.
    pub structSize: u16,
    /// Zero.
    pub reserved0: u32,
    /// How many there are.
    pub regionCount: usize,
    /// The bytes of one.
    pub regionElementSize: usize,
    /// Which ones, and their names.
    pub regionElements: *const nvtxMemRegionNameDesc_t,
    /// Zero.
    pub reserved1: usize,
}

/// A table that a tool fills.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvtxExtModuleSegment_t {
    /// Which table of the extension: 1, the only one.
    pub segmentId: usize,
    /// Its length.
    pub slotCount: usize,
    /// The table. A slot that stays zero is a function that the tool lacks.
    pub functionSlots: *mut isize,
}

/// What a program tells a tool when it attaches.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct nvtxExtModuleInfo_t {
    /// [`NVTX_VERSION`].
    pub nvtxVer: u16,
    /// The bytes of this struct.
    pub structSize: u16,
    /// Which extension.
    pub moduleId: u16,
    /// The version of its structs.
    pub compatId: u16,
    /// How many tables it has.
    pub segmentsCount: usize,
    /// The tables.
    pub segments: *mut nvtxExtModuleSegment_t,
    /// A function through which the tool asks for more, or `None`.
    pub getExportFunction: Option<unsafe extern "C" fn(u32) -> isize>,
    /// What belongs to the extension, or null.
    pub extInfo: *const c_void,
}

/// What a tool's library exports as `InitializeInjectionNvtxExtension`. Zero is a refusal.
pub type NvtxExtInitializeInjectionFunc_t = unsafe extern "C" fn(*mut nvtxExtModuleInfo_t) -> c_int;

macro_rules! without_contents {
    ($($name:ident),*) => {$(
        /// Without the contents: which field of a union holds is said elsewhere.
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    )*};
}

without_contents!(
    nvtxMessageValue_t,
    nvtxMemRegionRef_t,
    nvtxMemHeapDesc_t,
    nvtxMemRegionNameDesc_t
);

// Written down by hand, so checked by hand: sizes and places on 64-bit systems.
#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;

    assert!(size_of::<nvtxMessageValue_t>() == 8);
    assert!(size_of::<nvtxMemRegionRef_t>() == 8);
    assert!(size_of::<nvtxMemVirtualRangeDesc_t>() == 16);
    assert!(offset_of!(nvtxMemVirtualRangeDesc_t, ptr) == 8);

    assert!(size_of::<nvtxMemHeapDesc_t>() == 48);
    assert!(offset_of!(nvtxMemHeapDesc_t, usage) == 8);
    assert!(offset_of!(nvtxMemHeapDesc_t, r#type) == 12);
    assert!(offset_of!(nvtxMemHeapDesc_t, typeSpecificDescSize) == 16);
    assert!(offset_of!(nvtxMemHeapDesc_t, typeSpecificDesc) == 24);
    assert!(offset_of!(nvtxMemHeapDesc_t, category) == 32);
    assert!(offset_of!(nvtxMemHeapDesc_t, messageType) == 36);
    assert!(offset_of!(nvtxMemHeapDesc_t, message) == 40);

    assert!(size_of::<nvtxMemRegionsRegisterBatch_t>() == 48);
    assert!(offset_of!(nvtxMemRegionsRegisterBatch_t, regionType) == 4);
    assert!(offset_of!(nvtxMemRegionsRegisterBatch_t, heap) == 8);
    assert!(offset_of!(nvtxMemRegionsRegisterBatch_t, regionDescElements) == 32);
    assert!(offset_of!(nvtxMemRegionsRegisterBatch_t, regionHandleElementsOut) == 40);

    assert!(size_of::<nvtxMemRegionsResizeBatch_t>() == 32);
    assert!(size_of::<nvtxMemRegionsUnregisterBatch_t>() == 32);
    assert!(offset_of!(nvtxMemRegionsUnregisterBatch_t, refElements) == 24);

    assert!(size_of::<nvtxMemRegionNameDesc_t>() == 32);
    assert!(offset_of!(nvtxMemRegionNameDesc_t, region) == 8);
    assert!(offset_of!(nvtxMemRegionNameDesc_t, name) == 16);
    assert!(offset_of!(nvtxMemRegionNameDesc_t, category) == 24);

    assert!(size_of::<nvtxMemRegionsNameBatch_t>() == 40);
    assert!(offset_of!(nvtxMemRegionsNameBatch_t, regionElements) == 24);

    assert!(size_of::<nvtxExtModuleSegment_t>() == 24);
    assert!(size_of::<nvtxExtModuleInfo_t>() == 40);
    assert!(offset_of!(nvtxExtModuleInfo_t, segmentsCount) == 8);
    assert!(offset_of!(nvtxExtModuleInfo_t, segments) == 16);
    assert!(offset_of!(nvtxExtModuleInfo_t, getExportFunction) == 24);
    assert!(offset_of!(nvtxExtModuleInfo_t, extInfo) == 32);
};
