//! The rows of the decision table for memory that the host can access: steps 2 and 3.

#![forbid(unsafe_code)]

use super::PlacementKind;
use super::error::PlaceError;
use super::pages::{PageClass, TWO_MIB, whole};
use super::policy::{Case, Chosen};
use super::reason::PlacementStep as Step;
use super::request::{AccessPattern, Export, Lifetime};
use crate::driver::capabilities::Capability;

type Result<T> = std::result::Result<T, PlaceError>;

impl Case<'_> {
    /// Step 2.
    pub(super) fn shared(&self) -> Result<Chosen> {
        if self.wants_mapping() {
            return self.mapped_host();
        }
        if self.request.access != AccessPattern::SharedInTurns {
            return self.pinned(Step::Shared, false);
        }
        // Pages of managed memory are the driver's.
        let has_managed = self.all_have(Capability::ManagedMemory);
        if has_managed && self.machine.shares_managed_memory() && self.request.page_size.is_none() {
            let page = PageClass::of(self.request.bytes).bytes();
            let step = Step::SharedInTurns;
            return Ok(Chosen::new(PlacementKind::Managed, step, page));
        }
        self.pinned(Step::SharedInTurns, false)
    }

    /// An error unless write-combining memory is compatible with the rest of the request.
    pub(super) fn may_combine(&self) -> Result<()> {
        let request = self.request;
        let conflict = |second, why, remedy| {
            Err(PlaceError::Conflict {
                first: "write-combining memory",
                second,
                why,
                remedy,
            })
        };
        if request.export != Export::None {
            let why = "it is pinned, and pinned memory is not exported";
            return conflict("an export", why, "ask for one of the two");
        }
        if request.access != AccessPattern::CpuWritesGpuReads {
            return conflict(
                "another access pattern than `CpuWritesGpuReads`",
                "the host reads such memory very slowly",
                "ask for that pattern if the host only writes, or for ordinary memory",
            );
        }
        if self.wants_mapping() {
            return conflict(
                "growing, or pages of another size than the host's",
                "only mapped memory does that, and write-combining memory is pinned",
                "ask for one of the two",
            );
        }
        Ok(())
    }

    /// Step 3.
    pub(super) fn on_host(&self) -> Result<Chosen> {
        let request = self.request;
        if self.wants_mapping() {
            return self.mapped_host();
        }
        if request.write_combining {
            return self.pinned(Step::WrittenByHost, true);
        }
        // From here on a size of pages can only be that of the host, which pinned memory has.
        let is_open = request.page_size.is_none();
        let is_large = whole(request.bytes, self.host_page()) >= TWO_MIB;
        let numa = (is_large && is_open).then(|| self.numa()).flatten();
        match request.access {
            AccessPattern::CpuWritesGpuReads => match numa {
                Some((kind, page)) => Ok(self.of_node(kind, Step::HostNuma, page)),
                None => self.pooled_or_pinned(Step::WrittenByHost),
            },
            AccessPattern::GpuWritesCpuReads => self.pooled_or_pinned(Step::ReadByHost),
            _ => match numa {
                Some((kind, page)) if request.lifetime == Lifetime::Long => {
                    Ok(self.of_node(kind, Step::Streaming, page))
                }
                _ => self.pooled_or_pinned(Step::Streaming),
            },
        }
    }

    /// A pool suits short-lived memory better: allocating pinned memory takes longer, and freeing it waits for devices.
    fn pooled_or_pinned(&self, step: Step) -> Result<Chosen> {
        let request = self.request;
        let may_be_pool = request.lifetime == Lifetime::Short && request.page_size.is_none();
        if may_be_pool && self.all_have(Capability::HostMemoryPools) {
            let page = self.host_page();
            return Ok(Chosen::new(PlacementKind::HostPool, step, page));
        }
        self.pinned(step, false)
    }

    /// Whether only mapped memory is suitable: memory that grows, or whose page size differs from the host's.
    fn wants_mapping(&self) -> bool {
        let asked = self.request.page_size;
        self.request.growable || asked.is_some_and(|page| page != self.host_page())
    }

    fn host_page(&self) -> u64 {
        let page = self.machine.host_page;
        if page.is_power_of_two() && (PageClass::Small.bytes()..=TWO_MIB).contains(&page) {
            page
        } else {
            PageClass::Small.bytes()
        }
    }

    fn all_have(&self, capability: Capability) -> bool {
        let mut records = self.users.iter().map(|user| &self.machine.devices[*user]);
        records.all(|device| device.has(capability))
    }

    /// Memory of the nearest node: from a pool if short-lived, mapped if long-lived.
    fn numa(&self) -> Option<(PlacementKind, u64)> {
        let node = self.home.host_numa_node?;
        let pools = self.all_have(Capability::HostNumaMemoryPools);
        let mappings = self.all_have(Capability::HostNumaVirtualMemory);
        let pool = pools && (self.request.lifetime == Lifetime::Short || !mappings);
        let page = if pool {
            self.host_page()
        } else {
            self.home.host_pages()[1]
        };
        (pools || mappings).then_some((PlacementKind::HostNuma { node, pool }, page))
    }

    fn of_node(&self, kind: PlacementKind, step: Step, page: u64) -> Chosen {
        match kind {
            PlacementKind::HostNuma { pool: true, .. } => Chosen::new(kind, step, page),
            _ => Chosen::fixed(kind, step, page),
        }
    }

    /// Pinned host memory, for all users.
    fn pinned(&self, step: Step, write_combining: bool) -> Result<Chosen> {
        for &user in &self.users {
            self.need(
                user,
                Capability::CanMapHostMemory,
                "pinned memory of the host",
                "ask for memory of the device and copy (`AccessPattern::GpuMostly`)",
            )?;
        }
        let kind = PlacementKind::PinnedHost { write_combining };
        Ok(Chosen::fixed(kind, step, self.host_page()))
    }

    /// Step 3e.
    fn mapped_host(&self) -> Result<Chosen> {
        let of_node = Capability::HostNumaVirtualMemory;
        let node = self.home.host_numa_node;
        if let (Some(node), true) = (node, self.all_have(of_node)) {
            let kind = PlacementKind::HostNuma { node, pool: false };
            return Ok(Chosen::fixed(
                kind,
                Step::MappedHost,
                self.host_mapped_page()?,
            ));
        }
        if self.all_have(Capability::HostVirtualMemory) {
            let page = self.host_mapped_page()?;
            return Ok(Chosen::fixed(
                PlacementKind::HostVmm,
                Step::MappedHost,
                page,
            ));
        }
        let purpose = "host memory that grows, or has pages of another size than the host's,";
        let remedy = "ask for all bytes at once and for no size of pages, or use a newer driver";
        for &user in &self.users {
            self.need(user, of_node, purpose, remedy)?;
        }
        Err(PlaceError::NoHostNode {
            device: self.request.home,
            purpose,
            remedy,
        })
    }

    pub(super) fn host_mapped_page(&self) -> Result<u64> {
        let granularities = self.home.host_pages();
        let Some(asked) = self.request.page_size else {
            return Ok(granularities[1]);
        };
        if granularities.contains(&asked) {
            return Ok(asked);
        }
        let mut offered = granularities.to_vec();
        // What neither grows nor is exported can be pinned.
        if !self.request.growable && self.request.export == Export::None {
            offered.push(self.host_page());
        }
        offered.sort_unstable();
        offered.dedup();
        Err(PlaceError::PageSize {
            asked,
            offered,
            place: "memory of the host",
        })
    }
}
