//! What a device reports and what it can do. Creates no context unless measuring.

use cuda_mem::driver::{AllocationType, Capabilities, Capability, HandleTypes, Location, Support};
use cuda_mem::memory::{DriverModel, Strategy};
use cuda_mem::{Device, MemoryPool, PoolBuilder, ReleaseThreshold, Result};

use crate::measure::{self, Times};

/// One device.
pub(crate) struct Facts {
    pub(crate) device: Device,
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) total_memory: u64,
    pub(crate) model: DriverModel,
    pub(crate) can: Capabilities,
    pub(crate) reported: Vec<Reported>,
    pub(crate) pools: Vec<(PoolKind, Answer)>,
    /// The source of the default resource's memory.
    pub(crate) strategy: Result<Strategy, String>,
    /// The threshold of the device's default pool, which other libraries may use.
    pub(crate) default_pool: Option<ReleaseThreshold>,
    pub(crate) peers: Vec<Peer>,
    pub(crate) context: ContextActive,
    pub(crate) times: Option<Result<Times, String>>,
}

/// Whether the process has a context on the device. This program should not create one.
pub(crate) struct ContextActive {
    pub(crate) before: Result<bool, String>,
    pub(crate) after: Result<bool, String>,
}

/// Whether a device can access another's memory.
pub(crate) struct Peer {
    pub(crate) ordinal: u32,
    pub(crate) reached: Result<bool, String>,
}

/// What processes of this system share pools through.
pub(crate) const HANDLE: &str = if cfg!(windows) {
    "handle"
} else {
    "descriptor"
};

/// A kind of pool that a program may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolKind {
    Plain,
    Descriptor,
    Fabric,
    Host,
    Numa,
    Managed,
}

impl PoolKind {
    const ALL: [Self; 6] = [
        Self::Plain,
        Self::Descriptor,
        Self::Fabric,
        Self::Host,
        Self::Numa,
        Self::Managed,
    ];

    /// The name in JSON.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Descriptor => HANDLE,
            Self::Fabric => "fabric",
            Self::Host => "host",
            Self::Numa => "numa_0",
            Self::Managed => "managed",
        }
    }

    /// The name in a table.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Plain => "pool of device memory",
            Self::Descriptor if cfg!(windows) => "  shared by handle",
            Self::Descriptor => "  shared by descriptor",
            Self::Fabric => "  shared over a fabric",
            Self::Host => "pool of host memory",
            Self::Numa => "pool on NUMA node 0",
            Self::Managed => "pool of managed memory",
        }
    }

    /// The handle types that the device must report for this kind.
    pub(crate) fn handle(self) -> HandleTypes {
        match self {
            Self::Descriptor if cfg!(windows) => HandleTypes::WIN32,
            Self::Descriptor => HandleTypes::POSIX_FILE_DESCRIPTOR,
            Self::Fabric => HandleTypes::FABRIC,
            _ => HandleTypes::empty(),
        }
    }

    /// Whether this depends on all devices together, so that the answer is the same for each (R5).
    pub(crate) fn is_of_the_machine(self) -> bool {
        matches!(self, Self::Host | Self::Numa | Self::Managed)
    }

    fn builder(self, device: &Device) -> PoolBuilder {
        let at = |location, kind| MemoryPool::builder_at(device.driver(), location, kind);
        match self {
            Self::Plain | Self::Descriptor | Self::Fabric => {
                MemoryPool::builder(device).handle_types(self.handle())
            }
            Self::Host => at(Location::Host, AllocationType::Pinned),
            Self::Numa => at(Location::HostNuma(0), AllocationType::Pinned),
            Self::Managed => at(Location::Anywhere, AllocationType::Managed),
        }
    }
}

/// Whether something is available.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Known(Support),
    /// The query itself failed.
    Failed(String),
}

impl Facts {
    /// The result for a kind of pool.
    pub(crate) fn pool(&self, kind: PoolKind) -> Option<&Answer> {
        let found = self.pools.iter().find(|(known, _)| *known == kind);
        found.map(|(_, answer)| answer)
    }

    /// The driver's answer for one of the reported capabilities; `None` for any other.
    pub(crate) fn support(&self, capability: Capability) -> Option<Support> {
        let found = self.reported.iter().find(|it| it.capability == capability);
        found.map(|it| it.support)
    }
}

/// A capability, as the driver reports it.
pub(crate) struct Reported {
    capability: Capability,
    /// The name in a table.
    pub(crate) words: &'static str,
    /// The name in JSON.
    pub(crate) key: &'static str,
    pub(crate) support: Support,
}

fn reported(device: &Device) -> Result<Vec<Reported>> {
    use Capability as C;
    [
        (C::MemoryPools, "memory pools", "memory_pools"),
        (C::VirtualMemory, "virtual memory", "virtual_memory"),
        (
            C::UnifiedAddressing,
            "unified addressing",
            "unified_addressing",
        ),
        (
            C::ConcurrentManagedAccess,
            "managed, concurrent",
            "concurrent_managed_access",
        ),
        (
            C::PageableMemoryAccess,
            "pageable memory",
            "pageable_memory_access",
        ),
        (C::HostPageTables, "host page tables", "host_page_tables"),
        (C::GpuDirectRdma, "GPUDirect RDMA", "gpu_direct_rdma"),
        (C::DmaBuf, "dma-buf", "dma_buf"),
        (C::HostMemoryPools, "host memory pools", "host_memory_pools"),
    ]
    .into_iter()
    .map(|(capability, words, key)| {
        let support = device.support(capability)?;
        Ok(Reported {
            capability,
            words,
            key,
            support,
        })
    })
    .collect()
}

/// Queries everything. A query that only some devices or drivers support fails alone, not the whole.
pub(crate) fn gather(device: Device, all: &[Device], measure: bool) -> Result<Facts> {
    let before = in_words(device.has_active_context());
    let strategy = device.strategy();
    let pools = PoolKind::ALL
        .into_iter()
        .map(|kind| (kind, answer(kind, &device, &strategy)))
        .collect();
    let facts = Facts {
        device,
        name: device.name()?,
        uuid: device.uuid()?.to_string(),
        total_memory: device.total_memory()?,
        model: device.driver_model()?,
        can: device.capabilities()?,
        reported: reported(&device)?,
        pools,
        strategy: in_words(strategy),
        default_pool: default_pool(&device),
        peers: peers(&device, all),
        context: ContextActive {
            before,
            // Before measuring, which creates one.
            after: in_words(device.has_active_context()),
        },
        times: measure.then(|| in_words(measure::run(device))),
    };
    Ok(facts)
}

fn answer(kind: PoolKind, device: &Device, strategy: &Result<Strategy>) -> Answer {
    match kind.builder(device).support() {
        // `support` trusts the device about plain pools; the default resource has tried one.
        Ok(Support::Yes) if kind == PoolKind::Plain => match strategy {
            Ok(Strategy::Direct { reason, .. }) => Answer::Known(Support::No(*reason)),
            Ok(_) => Answer::Known(Support::Yes),
            Err(error) => Answer::Failed(error.to_string()),
        },
        Ok(support) => Answer::Known(support),
        Err(error) => Answer::Failed(error.to_string()),
    }
}

/// Only a hint depends on it, so a failure just omits the hint.
fn default_pool(device: &Device) -> Option<ReleaseThreshold> {
    device.default_pool().ok()?.release_threshold().ok()
}

fn peers(device: &Device, all: &[Device]) -> Vec<Peer> {
    all.iter()
        .filter(|other| *other != device)
        .map(|other| Peer {
            ordinal: other.ordinal(),
            reached: in_words(device.can_access_peer(other)),
        })
        .collect()
}

fn in_words<T>(result: Result<T>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}
