//! Which driver functions are about memory, and why some of them have no wrapper.
//!
//! A pattern is a function's name, or its beginning followed by `*`. The lists are printed in the
//! page, so they say there what is left out as well.

/// A part of the page: the functions that one of its patterns fits, and that no part before has.
pub(super) struct Family {
    pub(super) title: &'static str,
    pub(super) patterns: &'static [&'static str],
}

pub(super) const FAMILIES: [Family; 14] = [
    Family {
        title: "Pools",
        patterns: &[
            "cuMemPoolCreate",
            "cuMemPoolDestroy",
            "cuMemPoolGetAttribute",
            "cuMemPoolSetAttribute",
            "cuMemPoolTrimTo",
            "cuMemGetDefaultMemPool",
            "cuMemGetMemPool",
            "cuMemSetMemPool",
            "cuDeviceGetDefaultMemPool",
            "cuDeviceGetMemPool",
            "cuDeviceSetMemPool",
        ],
    },
    Family {
        title: "Stream-ordered allocation",
        patterns: &[
            "cuMemAllocAsync",
            "cuMemAllocFromPoolAsync",
            "cuMemFreeAsync",
        ],
    },
    Family {
        title: "Access between devices",
        patterns: &[
            "cuMemPoolGetAccess",
            "cuMemPoolSetAccess",
            "cuDeviceCanAccessPeer",
            "cuDeviceGetP2P*",
            "cuCtxEnablePeerAccess",
            "cuCtxDisablePeerAccess",
        ],
    },
    Family {
        title: "Sharing between processes",
        patterns: &["cuMemPoolExport*", "cuMemPoolImport*", "cuIpc*"],
    },
    Family {
        title: "Plain allocation",
        patterns: &[
            "cuMemAlloc",
            "cuMemAllocPitch",
            "cuMemFree",
            "cuMemGetInfo",
            "cuDeviceTotalMem",
        ],
    },
    Family {
        title: "Questions about addresses",
        patterns: &["cuPointer*", "cuMemGetAddressRange", "cuMemGetLocationInfo"],
    },
    Family {
        title: "Copies and fills",
        patterns: &[
            "cuMemcpy*",
            "cuMemset*",
            "cuFabricCpy*",
            "cuMemBatchDecompress*",
        ],
    },
    Family {
        title: "Order: streams, events, host functions",
        patterns: &[
            "cuStreamCreate*",
            "cuStreamDestroy",
            "cuStreamQuery",
            "cuStreamSynchronize",
            "cuStreamWaitEvent",
            "cuStreamWaitValue*",
            "cuStreamWriteValue*",
            "cuStreamBatchMemOp",
            "cuStreamAddCallback",
            "cuStreamGetCtx",
            "cuStreamGetDevice",
            "cuStreamGetPriority",
            "cuStreamGetFlags",
            "cuStreamGetId",
            "cuCtxGetStreamPriorityRange",
            "cuLaunchHostFunc",
            "cuEvent*",
        ],
    },
    Family {
        title: "Capture and graph memory",
        patterns: &[
            "cuStreamBeginCapture*",
            "cuStreamBeginRecaptureToGraph",
            "cuStreamEndCapture*",
            "cuStreamIsCapturing",
            "cuStreamGetCaptureInfo",
            "cuStreamUpdateCaptureDependencies",
            "cuThreadExchangeStreamCaptureMode",
            "cuGraphAddMem*",
            "cuGraphMem*",
            "cuGraphExecMem*",
            "cuGraphAddNode",
            "cuGraphAddDependencies",
            "cuGraphAddChildGraphNode",
            "cuGraphCreate",
            "cuGraphDestroy",
            "cuGraphInstantiate*",
            "cuGraphExecDestroy",
            "cuGraphUpload",
            "cuGraphLaunch",
            "cuDeviceGetGraphMemAttribute",
            "cuDeviceSetGraphMemAttribute",
            "cuDeviceGraphMemTrim",
        ],
    },
    Family {
        title: "Host memory",
        patterns: &["cuMemAllocHost", "cuMemFreeHost", "cuMemHost*"],
    },
    Family {
        title: "Managed memory",
        patterns: &[
            "cuMemAllocManaged",
            "cuMemAdvise",
            "cuMemPrefetch*",
            "cuMemDiscard*",
            "cuMemRange*",
            "cuStreamAttachMemAsync",
        ],
    },
    Family {
        title: "Virtual memory",
        patterns: &[
            "cuMemAddress*",
            "cuMemCreate",
            "cuMemRelease",
            "cuMemMap",
            "cuMemUnmap",
            "cuMemSetAccess",
            "cuMemGetAccess",
            "cuMemGetAllocation*",
            "cuMemRetainAllocationHandle",
            "cuMemExport*",
            "cuMemImport*",
        ],
    },
    Family {
        title: "Other devices and other interfaces",
        patterns: &[
            "cuMemGetHandleForAddressRange",
            "cuFlushGPUDirectRDMAWrites",
            "cuMulticast*",
            "cuLogicalEndpoint*",
            "cuImportExternalMemory",
            "cuExternalMemoryGetMappedBuffer",
            "cuDestroyExternalMemory",
        ],
    },
    // Last, so that it gets what is left: whatever the crate itself calls belongs on the page.
    Family {
        title: CALLED,
        patterns: &[],
    },
];

/// The part for what `cuda-mem` calls and no pattern names.
pub(super) const CALLED: &str = "Start, devices, contexts, and the rest that is called";

/// What a pattern above fits and is about something else, with the reason.
pub(super) const LEFT_OUT: &[(&str, &str)] = &[
    ("cuMemcpyAto*", "arrays are for textures"),
    ("cuMemcpyDtoA", "arrays are for textures"),
    ("cuMemcpyHtoA*", "arrays are for textures"),
    ("cuMemMapArrayAsync", "arrays are for textures"),
    ("cuStreamBeginCaptureToCig", "graphics interoperation"),
    ("cuStreamEndCaptureToCig", "graphics interoperation"),
    (
        "cuDeviceGetP2PAtomicCapabilities",
        "says nothing about memory",
    ),
];

const OLD_IPC: &str = "for plain memory; pools are shared by handles of their own";
const PEERS: &str = "for plain memory; access to a pool is set on the pool";
const SYNCHRONOUS: &str = "not in a stream's order; the asynchronous function is used";
const SHAPES: &str = "waits for: two and three dimensions";
const BATCHES: &str = "waits for: copies in batches";
const PRIORITIES: &str = "waits for: priorities of streams";
const KNOWN: &str = "a stream of this crate knows it";
const VALUES: &str = "waits for: waiting for values in memory";
const CAPTURES: &str = "waits for: captures over several streams or into a graph";
const ONE_CALL: &str = "several ranges in one call; each is advised and prefetched by itself";
const OTHERS: &str = "waits for: other devices and interfaces";

/// Why a function has no wrapper. The first pattern that fits counts.
pub(super) const REASONS: &[(&str, &str)] = &[
    ("cuCtxDisablePeerAccess", PEERS),
    ("cuCtxEnablePeerAccess", PEERS),
    (
        "cuDeviceGetP2PAttribute",
        "says how fast a link is; whether there is one is asked",
    ),
    ("cuIpc*", OLD_IPC),
    ("cuMemAllocPitch", SHAPES),
    ("cuMemGetAddressRange", "`PointerInfo` has the answer"),
    (
        "cuMemGetLocationInfo",
        "samples where managed and pageable memory lies: no known use yet",
    ),
    (
        "cuPointerGetAttributes",
        "one question a call tells an unknown address apart (R62)",
    ),
    (
        "cuMemBatchDecompressAsync",
        "waits for: decompression in hardware",
    ),
    ("cuFabricCpyBatchAsync", BATCHES),
    ("cuMemcpy3DBatchAsync", BATCHES),
    ("cuMemcpyBatchAsync", BATCHES),
    ("cuMemcpyWithAttributesAsync", BATCHES),
    ("cuMemcpy2D*", SHAPES),
    ("cuMemcpy3D*", SHAPES),
    ("cuMemsetD2D*", SHAPES),
    ("cuMemcpy*", SYNCHRONOUS),
    ("cuMemset*", SYNCHRONOUS),
    ("cuCtxGetStreamPriorityRange", PRIORITIES),
    ("cuStreamCreateWithPriority", PRIORITIES),
    ("cuStreamGetPriority", PRIORITIES),
    ("cuStreamGetCtx", KNOWN),
    ("cuStreamGetDevice", KNOWN),
    ("cuStreamBatchMemOp", VALUES),
    ("cuStreamWaitValue*", VALUES),
    ("cuStreamWriteValue*", VALUES),
    ("cuStreamAddCallback", "`cuLaunchHostFunc` replaces it"),
    ("cuLaunchHostFunc", "waits for: host functions"),
    ("cuEventRecordWithFlags", "its flag is about capture"),
    ("cuStreamBegin*", CAPTURES),
    ("cuStreamGetCaptureInfo", CAPTURES),
    ("cuStreamUpdateCaptureDependencies", CAPTURES),
    (
        "cuGraphAddDependencies",
        "the order of memory comes by itself, other edges with the node",
    ),
    (
        "cuGraphAddChildGraphNode",
        "copies the child, which graphs with memory refuse (R73)",
    ),
    ("cuGraphExecMem*", "waits for: changing instances"),
    (
        "cuGraphMem*",
        "a graph's own memory is known; other nodes are not changed",
    ),
    (
        "cuGraphInstantiateWithParams",
        "waits for: uploads when an instance is made",
    ),
    (
        "cuGraphInstantiate",
        "`cuGraphInstantiateWithFlags`, whose ABI did not change, is used",
    ),
    (
        "cuMemAllocHost",
        "`cuMemHostAlloc` does the same with flags",
    ),
    (
        "cuMemDiscardAndPrefetchBatchAsync",
        "spares moving what is written anew next: no known use yet",
    ),
    ("cuMemPrefetchBatchAsync", ONE_CALL),
    (
        "cuMemRangeGetAttribute",
        "`cuMemRangeGetAttributes`, which answers several at once, is used",
    ),
    (
        "cuStreamAttachMemAsync",
        "for devices without concurrent managed access, on which `ManagedBuffer::host` is refused",
    ),
    (
        "cuMemRetainAllocationHandle",
        "finds the handle of an address; `MappedMemory` keeps those of its parts",
    ),
    ("cuImportExternalMemory", OTHERS),
    ("cuExternalMemoryGetMappedBuffer", OTHERS),
    ("cuDestroyExternalMemory", OTHERS),
    ("cuMulticast*", "waits for: multicast"),
    ("cuLogicalEndpoint*", "waits for: logical endpoints"),
];

/// Whether a pattern fits a function.
pub(super) fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => pattern == name,
    }
}
