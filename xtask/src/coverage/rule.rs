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
        patterns: &["cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemFreeAsync"],
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
        patterns: &["cuMemcpy*", "cuMemset*", "cuFabricCpy*", "cuMemBatchDecompress*"],
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
pub(super) const LEFT_OUT: [(&str, &str); 7] = [
    ("cuMemcpyAto*", "arrays are for textures"),
    ("cuMemcpyDtoA", "arrays are for textures"),
    ("cuMemcpyHtoA*", "arrays are for textures"),
    ("cuMemMapArrayAsync", "arrays are for textures"),
    ("cuStreamBeginCaptureToCig", "graphics interoperation"),
    ("cuStreamEndCaptureToCig", "graphics interoperation"),
    ("cuDeviceGetP2PAtomicCapabilities", "says nothing about memory"),
];

/// Why a function has no wrapper. The first that fits counts.
pub(super) const REASONS: [(&str, &str); 3] = [("cuMem*", "x"), ("cuGraph*", "x"), ("cu*", "x")];

/// Whether a pattern fits a function.
pub(super) fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => pattern == name,
    }
}
