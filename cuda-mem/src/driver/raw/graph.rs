//! Graphs, captures, and the memory that is the graphs' own.

use std::ffi::c_ulonglong;

use cuda_driver_sys::{
    CUDA_CHILD_GRAPH_NODE_PARAMS, CUDA_MEM_ALLOC_NODE_PARAMS, CUDA_MEMCPY3D,
    CUDA_MEMSET_NODE_PARAMS, CUcontext, CUdevice, CUdeviceptr, CUgraph,
    CUgraphChildGraphNodeOwnership, CUgraphExec, CUgraphMem_attribute, CUgraphNode,
    CUgraphNodeParams, CUgraphNodeType, CUmemAllocationType, CUmemLocationType, CUmemPoolProps,
    CUmemorytype, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus, location,
};

use super::{Queue, Table, call};
use crate::base::error::Result;

/// # Safety
/// `stream` must be a live stream, in which nothing is done from now on that must not be recorded.
pub(crate) unsafe fn begin_capture(
    table: &Table,
    stream: CUstream,
    mode: CUstreamCaptureMode,
) -> Result<()> {
    // SAFETY: the caller vouches for the handle.
    unsafe { call!(table, cuStreamBeginCapture_v2(stream, mode)) }
}

/// The graph belongs to the caller, even after an error, if it is not null. Whatever the result, the stream is no
/// longer captured (measured), unless it was not the stream that the capture began with.
///
/// # Safety
/// `stream` must be a live stream whose capture is the caller's to end.
pub(crate) unsafe fn end_capture(table: &Table, stream: CUstream) -> (CUgraph, Result<()>) {
    let mut graph = std::ptr::null_mut();
    // SAFETY: `graph` is valid for a write of one handle.
    let ended = unsafe { call!(table, cuStreamEndCapture(stream, &raw mut graph)) };
    (graph, ended)
}

/// # Safety
/// `stream` must be a live stream.
pub(crate) unsafe fn capture_status(
    table: &Table,
    stream: CUstream,
) -> Result<CUstreamCaptureStatus> {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: `status` is valid for a write.
    unsafe { call!(table, cuStreamIsCapturing(stream, &raw mut status)) }?;
    Ok(status)
}

/// Sets what the calling thread may do during captures; returns the previous mode.
///
/// # Safety
/// The driver must be initialised.
pub(crate) unsafe fn exchange_capture_mode(
    table: &Table,
    mode: CUstreamCaptureMode,
) -> Result<CUstreamCaptureMode> {
    let mut mode = mode;
    // SAFETY: `mode` is valid for a read and a write.
    unsafe { call!(table, cuThreadExchangeStreamCaptureMode(&raw mut mode)) }?;
    Ok(mode)
}

/// # Safety
/// The driver must be initialised.
pub(crate) unsafe fn create(table: &Table) -> Result<CUgraph> {
    let mut graph = std::ptr::null_mut();
    // SAFETY: `graph` is valid for a write of one handle; there are no flags yet.
    unsafe { call!(table, cuGraphCreate(&raw mut graph, 0)) }?;
    Ok(graph)
}

/// # Safety
/// `graph` must be a live graph that is not used afterwards and not another one's child.
pub(crate) unsafe fn destroy(table: &Table, graph: CUgraph) -> Result<()> {
    // SAFETY: the caller gives up the handle.
    unsafe { call!(table, cuGraphDestroy(graph)) }
}

/// Memory of a device, for that device alone.
///
/// # Safety
/// `graph` must be live, and `after` nodes of it.
pub(crate) unsafe fn add_alloc(
    table: &Table,
    graph: CUgraph,
    after: &[CUgraphNode],
    bytes: usize,
    device: CUdevice,
) -> Result<(CUgraphNode, CUdeviceptr)> {
    let mut params = CUDA_MEM_ALLOC_NODE_PARAMS {
        poolProps: CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            location: location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, device),
            ..CUmemPoolProps::default()
        },
        bytesize: bytes,
        ..CUDA_MEM_ALLOC_NODE_PARAMS::default()
    };
    let mut node = std::ptr::null_mut();
    let (list, count) = (after.as_ptr(), after.len());
    // SAFETY: `node` is valid for a write, the parameters for a read and a write.
    unsafe {
        call!(
            table,
            cuGraphAddMemAllocNode(&raw mut node, graph, list, count, &raw mut params)
        )
    }?;
    Ok((node, params.dptr))
}

/// # Safety
/// `graph` must be live, `after` nodes of it, and every use of the memory must come before this.
pub(crate) unsafe fn add_free(
    table: &Table,
    graph: CUgraph,
    after: &[CUgraphNode],
    address: CUdeviceptr,
) -> Result<CUgraphNode> {
    let mut node = std::ptr::null_mut();
    let (list, count) = (after.as_ptr(), after.len());
    // SAFETY: `node` is valid for a write.
    unsafe {
        call!(
            table,
            cuGraphAddMemFreeNode(&raw mut node, graph, list, count, address)
        )
    }?;
    Ok(node)
}

/// Repeats an element of 1, 2 or 4 bytes.
///
/// # Safety
/// `graph` must be live, `after` nodes of it that make the range valid; `context` must be live and
/// current.
pub(crate) unsafe fn add_fill(
    table: &Table,
    graph: CUgraph,
    after: &[CUgraphNode],
    (to, count): (CUdeviceptr, usize),
    (value, size): (u32, u32),
    context: CUcontext,
) -> Result<CUgraphNode> {
    let params = CUDA_MEMSET_NODE_PARAMS {
        dst: to,
        pitch: 0,
        value,
        elementSize: size,
        width: count,
        height: 1,
    };
    let mut node = std::ptr::null_mut();
    let (list, len) = (after.as_ptr(), after.len());
    let params = &raw const params;
    // SAFETY: `node` is valid for a write, the parameters for a read.
    unsafe {
        call!(
            table,
            cuGraphAddMemsetNode(&raw mut node, graph, list, len, params, context)
        )
    }?;
    Ok(node)
}

/// # Safety
/// `graph` must be live, `after` nodes of it that make both ranges valid; they must not overlap, and
/// `context` must be live and current.
pub(crate) unsafe fn add_copy(
    table: &Table,
    graph: CUgraph,
    after: &[CUgraphNode],
    (to, from): (CUdeviceptr, CUdeviceptr),
    bytes: usize,
    context: CUcontext,
) -> Result<CUgraphNode> {
    let params = CUDA_MEMCPY3D {
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcDevice: from,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstDevice: to,
        WidthInBytes: bytes,
        Height: 1,
        Depth: 1,
        ..CUDA_MEMCPY3D::default()
    };
    let mut node = std::ptr::null_mut();
    let (list, len) = (after.as_ptr(), after.len());
    let params = &raw const params;
    // SAFETY: `node` is valid for a write, the parameters for a read.
    unsafe {
        call!(
            table,
            cuGraphAddMemcpyNode(&raw mut node, graph, list, len, params, context)
        )
    }?;
    Ok(node)
}

/// Puts a graph into another, which then owns it. Needs 12.9.
///
/// # Safety
/// Both must be live, `after` nodes of `graph`; `child` may be used no more.
pub(crate) unsafe fn add_child(
    table: &Table,
    graph: CUgraph,
    after: &[CUgraphNode],
    child: CUgraph,
) -> Result<CUgraphNode> {
    let mut params = CUgraphNodeParams {
        type_: CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH,
        ..CUgraphNodeParams::default()
    };
    params.__bindgen_anon_1.graph = CUDA_CHILD_GRAPH_NODE_PARAMS {
        graph: child,
        ownership: CUgraphChildGraphNodeOwnership::CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE,
    };
    let mut node = std::ptr::null_mut();
    let (list, len, edges) = (after.as_ptr(), after.len(), std::ptr::null());
    // The symbol is 12.3's, whose ABI the base name has from 13.0 on (R78).
    // SAFETY: `node` is valid for a write, the parameters for a read and a write; without edge data
    // all edges are plain.
    unsafe {
        call!(
            table,
            cuGraphAddNode_v2(&raw mut node, graph, list, edges, len, &raw mut params)
        )
    }?;
    Ok(node)
}

/// # Safety
/// `graph` must be live, and a context current.
pub(crate) unsafe fn instantiate(
    table: &Table,
    graph: CUgraph,
    flags: c_ulonglong,
) -> Result<CUgraphExec> {
    let mut exec = std::ptr::null_mut();
    // SAFETY: `exec` is valid for a write.
    unsafe {
        call!(
            table,
            cuGraphInstantiateWithFlags(&raw mut exec, graph, flags)
        )
    }?;
    Ok(exec)
}

/// # Safety
/// `exec` must be a live instance that is not used afterwards. A launch that runs still completes
/// (measured).
pub(crate) unsafe fn destroy_exec(table: &Table, exec: CUgraphExec) -> Result<()> {
    // SAFETY: the caller gives up the handle.
    unsafe { call!(table, cuGraphExecDestroy(exec)) }
}

/// # Safety
/// Both must be live, and all memory of others that the graph uses must be valid at this point of
/// the stream.
pub(crate) unsafe fn launch(queue: Queue<'_>, exec: CUgraphExec) -> Result<()> {
    // SAFETY: the caller vouches for the handles.
    unsafe { call!(queue.table, cuGraphLaunch(exec, queue.stream)) }
}

/// # Safety
/// Both must be live.
pub(crate) unsafe fn upload(queue: Queue<'_>, exec: CUgraphExec) -> Result<()> {
    // SAFETY: the caller vouches for the handles.
    unsafe { call!(queue.table, cuGraphUpload(exec, queue.stream)) }
}

/// # Safety
/// The driver must be initialised.
pub(crate) unsafe fn memory_attribute(
    table: &Table,
    device: CUdevice,
    attribute: CUgraphMem_attribute,
) -> Result<u64> {
    let mut value = 0_u64;
    let out = (&raw mut value).cast();
    // SAFETY: all attributes of graph memory are 64 bits wide, and `value` is valid for a write.
    unsafe { call!(table, cuDeviceGetGraphMemAttribute(device, attribute, out)) }?;
    Ok(value)
}

/// Resets a high mark; nothing else can be set.
///
/// # Safety
/// The driver must be initialised.
pub(crate) unsafe fn reset_memory_attribute(
    table: &Table,
    device: CUdevice,
    attribute: CUgraphMem_attribute,
) -> Result<()> {
    let mut zero = 0_u64;
    let value = (&raw mut zero).cast();
    // SAFETY: as above, for a read.
    unsafe {
        call!(
            table,
            cuDeviceSetGraphMemAttribute(device, attribute, value)
        )
    }
}

/// # Safety
/// The driver must be initialised.
pub(crate) unsafe fn trim_memory(table: &Table, device: CUdevice) -> Result<()> {
    // SAFETY: the driver checks the device.
    unsafe { call!(table, cuDeviceGraphMemTrim(device)) }
}

/// An empty node, only for ordering.
///
/// # Safety
/// `graph` must be live, and `after` nodes of it.
pub(crate) unsafe fn add_empty(
    table: &Table,
    graph: CUgraph,
    after: &[CUgraphNode],
) -> Result<CUgraphNode> {
    let mut node = std::ptr::null_mut();
    let (list, count) = (after.as_ptr(), after.len());
    // SAFETY: `node` is valid for a write.
    unsafe {
        call!(
            table,
            cuGraphAddEmptyNode(&raw mut node, graph, list, count)
        )
    }?;
    Ok(node)
}
