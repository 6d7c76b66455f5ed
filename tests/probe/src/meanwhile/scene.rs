//! What the calls of a capture are made with.

use std::ffi::c_void;
use std::os::fd::{AsRawFd as _, OwnedFd};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::Environment;
use crate::ipc_events;
use crate::share::{self, DESCRIPTOR, Token};
use crate::vmm::{self, STEP};

/// What a call during a capture has at hand: made before it, but for `captured`.
pub(super) struct Scene {
    /// The stream that is captured, and one that is not.
    pub(super) stream: CUstream,
    pub(super) other: CUstream,
    pub(super) pool: CUmemoryPool,
    /// Memory of the pool, and memory of none.
    pub(super) block: CUdeviceptr,
    pub(super) plain: CUdeviceptr,
    pub(super) pinned: *mut c_void,
    /// Recorded in `other` before the capture.
    pub(super) event: CUevent,
    pub(super) fresh: CUevent,
    /// Allocated in the capture.
    pub(super) captured: CUdeviceptr,
    /// A graph with memory of its own, an instance of another such graph, and a pool without memory.
    pub(super) graph: CUgraph,
    pub(super) exec: CUgraphExec,
    pub(super) unused: CUmemoryPool,
    /// For the calls that [`is_of_sharing`] names.
    pub(super) shared: Option<Shared>,
    /// For the calls that [`is_of_mapping`] names.
    pub(super) mapped: Option<Mapped>,
}

/// Virtual memory: a step that is mapped, a step that is not, and a handle of memory that is not mapped.
pub(super) struct Mapped {
    pub(super) mapped: CUdeviceptr,
    pub(super) unmapped: CUdeviceptr,
    pub(super) handle: u64,
}

impl Mapped {
    pub(super) fn new(env: &Environment) -> Result<Self> {
        let (mapped, unmapped) = (vmm::reserve(env, STEP)?, vmm::reserve(env, STEP)?);
        vmm::back(env, mapped, STEP)?;
        let handle = vmm::create(env, STEP)?;
        Ok(Self {
            mapped,
            unmapped,
            handle,
        })
    }
}

/// Whether a call needs virtual memory.
pub(super) fn is_of_mapping(part: &str) -> bool {
    [
        "cuMemMap",
        "cuMemUnmap",
        "cuMemSetAccess",
        "cuMemRelease",
        "cuMemAddressFree",
    ]
    .contains(&part)
}

pub(super) fn mapping(scene: &Scene, call: impl FnOnce(&Mapped) -> CUresult) -> CUresult {
    let none = CUresult::CUDA_ERROR_NOT_FOUND;
    scene.mapped.as_ref().map_or(none, call)
}

/// What is shared with other processes, and imported in this one.
pub(super) struct Shared {
    /// A pool that was exported, and memory of it.
    pub(super) pool: CUmemoryPool,
    pub(super) block: CUdeviceptr,
    pub(super) descriptor: OwnedFd,
    pub(super) token: Token,
    pub(super) imported: CUmemoryPool,
    pub(super) event: CUevent,
    pub(super) handle: CUipcEventHandle,
}

impl Shared {
    pub(super) fn new(env: &Environment, stream: CUstream) -> Result<Self> {
        let pool = share::shared_pool(env)?;
        let block = env.alloc(pool, 1000, stream)?;
        let (code, descriptor) = share::export(env, pool, DESCRIPTOR, 0);
        env.fine("cuMemPoolExportToShareableHandle", code)?;
        let descriptor = share::own(descriptor);
        let (code, imported) = share::import(env, descriptor.as_raw_fd(), DESCRIPTOR, 0);
        env.fine("cuMemPoolImportFromShareableHandle", code)?;
        let (code, token) = share::token(env, block);
        env.fine("cuMemPoolExportPointer", code)?;
        let event = ipc_events::shared_event(env)?;
        let (code, handle) = ipc_events::handle(env, event);
        env.fine("cuIpcGetEventHandle", code)?;
        Ok(Self {
            pool,
            block,
            descriptor,
            token,
            imported,
            event,
            handle,
        })
    }
}

/// Whether a call needs what is shared, of which each takes descriptors.
pub(super) fn is_of_sharing(part: &str) -> bool {
    ["Shareable", "Pointer", "Ipc"]
        .iter()
        .any(|word| part.contains(word))
}

// SAFETY: handles of the driver may be used from any thread.
unsafe impl Send for Scene {}
// SAFETY: as above.
unsafe impl Sync for Scene {}
