//! Kinds of memory that an all-reduce can use.

use std::alloc::Layout;
use std::ffi::c_void;
use std::fmt;

use clap::ValueEnum;
use cuda_mem::collective::{Communicator, Nccl, RegisteredResource};
use cuda_mem::memory::MemoryProperties;
use cuda_mem::sys::nccl::ncclResult_t;
use cuda_mem::{
    Arena, Context, Error, ErrorKind, MemoryResource, ReleaseThreshold, Resource, Result, Stream,
};

/// A kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// The driver's pool
    Pool,
    /// An arena of the device, which NCCL does not know
    Arena,
    /// An arena whose memory is registered
    Registered,
    /// An arena whose memory is a window too
    Window,
    /// Memory from `ncclMemAlloc`
    Nccl,
}

impl Kind {
    const ALL: [Self; 5] = [
        Self::Pool,
        Self::Arena,
        Self::Registered,
        Self::Window,
        Self::Nccl,
    ];

    pub(crate) fn wanted(chosen: &[Self]) -> Vec<Self> {
        if chosen.is_empty() {
            return Self::ALL.to_vec();
        }
        chosen.to_vec()
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::Arena => "arena",
            Self::Registered => "arena, registered",
            Self::Window => "arena, window",
            Self::Nccl => "ncclMemAlloc",
        }
    }

    /// Memory for two buffers of at most this size.
    pub(crate) fn resource(self, communicator: &Communicator, most: u64) -> Result<Resource> {
        let device = communicator.device();
        Ok(match self {
            Self::Pool => device.default_pool()?.into(),
            Self::Arena => Arena::builder(&device).build()?.into(),
            Self::Registered => {
                Arena::over(RegisteredResource::builder(communicator).build()?).into()
            }
            Self::Window => {
                // All memory at once: making a window needs all ranks.
                let memory = RegisteredResource::builder(communicator).windows(true);
                let bytes = 3 * most.next_multiple_of(2 << 20) + (8 << 20);
                let arena = Arena::builder_over(memory.build()?).initial_bytes(bytes);
                let arena = arena.max_bytes(bytes);
                arena
                    .release_threshold(ReleaseThreshold::Never)
                    .build()?
                    .into()
            }
            Self::Nccl => Resource::new(NcclMemory::new(communicator)),
        })
    }
}

/// Memory that NCCL allocates, to compare with.
struct NcclMemory {
    nccl: Nccl,
    context: Context,
}

impl NcclMemory {
    fn new(communicator: &Communicator) -> Self {
        Self {
            nccl: communicator.nccl(),
            context: communicator.context().clone(),
        }
    }
}

fn check(function: &str, code: ncclResult_t) -> Result<()> {
    if code == ncclResult_t::ncclSuccess {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Other,
        format!("{function} answered {code}"),
    ))
}

fn lacks() -> Error {
    Error::new(
        ErrorKind::SymbolMissing,
        "this NCCL does not allocate memory",
    )
}

// SAFETY: NCCL hands out whole pages that are nobody else's until they are freed, for which the host waits for the stream.
unsafe impl MemoryResource for NcclMemory {
    fn allocate(&self, layout: Layout, _: &Stream) -> Result<u64> {
        if layout.size() == 0 {
            return Ok(0);
        }
        let _current = self.context.bind()?;
        let call = self.nccl.table().ncclMemAlloc.ok_or_else(lacks)?;
        let mut place = std::ptr::null_mut::<c_void>();
        // SAFETY: the place is valid for a write, and the device's context is current.
        check("ncclMemAlloc", unsafe {
            call(&raw mut place, layout.size())
        })?;
        Ok(place.expose_provenance() as u64)
    }

    unsafe fn deallocate(&self, address: u64, _: Layout, stream: &Stream) -> Result<()> {
        if address == 0 {
            return Ok(());
        }
        stream.synchronize()?;
        let _current = self.context.bind()?;
        let call = self.nccl.table().ncclMemFree.ok_or_else(lacks)?;
        let place = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: it was allocated above, and nothing uses it any more.
        check("ncclMemFree", unsafe { call(place) })
    }

    fn memory_properties(&self) -> MemoryProperties {
        MemoryProperties::of_device(self.context.device())
    }
}

impl fmt::Debug for NcclMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ncclMemAlloc")
    }
}
