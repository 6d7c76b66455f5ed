//! The decision table. Rows are tried from the top, and the first match decides.

#![forbid(unsafe_code)]

use super::error::PlaceError;
use super::pages::{LIMIT, PageClass, counted, whole};
use super::reason::PlacementStep as Step;
use super::request::{AccessPattern, Export, Lifetime, PlacementRequest};
use super::topology::{Topology, TopologyDevice};
use super::{Accessor, Placement, PlacementKind};
use crate::driver::capabilities::Capability;

type Result<T> = std::result::Result<T, PlaceError>;

pub(super) fn place(request: &PlacementRequest, machine: &Topology) -> Result<Placement> {
    decide(request, machine).map_err(|error| error.advised(request, machine))
}

/// As [`place`], without advice if the memory does not fit.
pub(super) fn decide(request: &PlacementRequest, machine: &Topology) -> Result<Placement> {
    if request.bytes == 0 {
        return Err(PlaceError::NoBytes);
    }
    if request.bytes > LIMIT {
        return Err(PlaceError::TooLarge {
            asked: request.bytes,
        });
    }
    let devices = machine.devices.len();
    let mut users = vec![request.home];
    users.extend(&request.peers);
    if let Some(&device) = users.iter().find(|device| **device >= devices) {
        return Err(PlaceError::NoSuchDevice { device, devices });
    }
    users.sort_unstable();
    users.dedup();
    let case = Case {
        request,
        machine,
        home: &machine.devices[request.home],
        users,
    };
    let chosen = case.choose()?;
    Ok(case.finish(chosen))
}

/// A request together with its topology.
pub(super) struct Case<'a> {
    pub(super) request: &'a PlacementRequest,
    pub(super) machine: &'a Topology,
    pub(super) home: &'a TopologyDevice,
    /// The home and its peers, in order.
    pub(super) users: Vec<usize>,
}

/// The result of a row of the table.
pub(super) struct Chosen {
    pub(super) kind: PlacementKind,
    pub(super) step: Step,
    pub(super) page: u64,
    pub(super) is_fixed: bool,
    pub(super) stripes: Vec<usize>,
    pub(super) gpu_direct: bool,
}

impl Chosen {
    pub(super) fn new(kind: PlacementKind, step: Step, page: u64) -> Self {
        Self {
            kind,
            step,
            page,
            is_fixed: false,
            stripes: Vec::new(),
            gpu_direct: false,
        }
    }

    pub(super) fn fixed(kind: PlacementKind, step: Step, page: u64) -> Self {
        Self {
            is_fixed: true,
            ..Self::new(kind, step, page)
        }
    }
}

impl Case<'_> {
    fn choose(&self) -> Result<Chosen> {
        use AccessPattern as A;
        let request = self.request;
        if request.write_combining {
            self.may_combine()?;
        }
        match (request.export, request.access) {
            (Export::None, A::Shared | A::SharedInTurns) => self.shared(),
            (Export::None, A::CpuWritesGpuReads | A::GpuWritesCpuReads | A::Streaming) => {
                self.on_host()
            }
            (Export::None, A::GpuOnly | A::GpuMostly) => self.on_device(),
            (export, _) => self.exported(export),
        }
    }

    fn finish(&self, chosen: Chosen) -> Placement {
        use PlacementKind as K;
        let request = self.request;
        let is_host = matches!(
            chosen.kind,
            K::PinnedHost { .. } | K::HostNuma { .. } | K::HostVmm | K::HostPool | K::Managed
        );
        let size = match chosen.stripes.len() as u64 {
            0 => whole(request.bytes, chosen.page),
            parts => whole(request.bytes.div_ceil(parts), chosen.page) * parts,
        };
        let devices = self.users.iter().copied().map(Accessor::Device);
        Placement {
            kind: chosen.kind,
            bytes: request.bytes,
            size,
            page_size: chosen.page,
            page_class: PageClass::of(chosen.page),
            page_size_is_fixed: chosen.is_fixed,
            home: request.home,
            grants: is_host
                .then_some(Accessor::Host)
                .into_iter()
                .chain(devices)
                .collect(),
            stripes: chosen.stripes,
            export: request.export,
            gpu_direct: chosen.gpu_direct,
            growable: request.growable,
            zeroed: request.zeroed,
            step: chosen.step,
            handles: self.machine.handles(&self.users),
        }
    }

    /// Steps 4a to 4d, and 5 for a requested page size.
    fn on_device(&self) -> Result<Chosen> {
        let request = self.request;
        let (_, free) = self.home.capacity();
        let [_, recommended] = self.home.device_pages();
        let mapped = whole(counted(request.bytes), recommended);
        // A single page is not worth spreading: every part would take as much.
        if mapped > free && mapped > recommended {
            match self.striped() {
                Ok(striped) => return Ok(striped),
                Err(why) => self.fits_or(|| Some(why))?,
            }
        }
        self.fits()?;
        self.reached()?;
        if request.growable {
            let purpose = "memory that grows";
            let remedy = "ask for all bytes at once";
            self.need(request.home, Capability::VirtualMemory, purpose, remedy)?;
            return self.mapped(Step::Growable);
        }
        if request.page_size.is_some() {
            let purpose = "a size of pages of its own";
            let remedy = "ask for no size of pages";
            self.need(request.home, Capability::VirtualMemory, purpose, remedy)?;
            return self.mapped(Step::AskedPages);
        }
        let step = match request.lifetime {
            Lifetime::Short => Step::ShortLived,
            Lifetime::Long => Step::LongLived,
        };
        if self.home.capabilities.memory_pools {
            return Ok(self.driver_paged(PlacementKind::Pool, step));
        }
        if !self.has_peers() {
            return Ok(self.driver_paged(PlacementKind::Device, step));
        }
        // Plain memory is its own device's: nobody else can be given access to it alone.
        if self.home.capabilities.virtual_memory {
            return self.mapped(step);
        }
        let purpose = "memory of one device in use by another";
        let remedy = "leave the peers out and copy";
        self.need(request.home, Capability::MemoryPools, purpose, remedy)?;
        Ok(self.driver_paged(PlacementKind::Pool, step))
    }

    pub(super) fn has_peers(&self) -> bool {
        self.users.len() > 1
    }

    /// Mapped memory of the home device, in pages of the granularity.
    pub(super) fn mapped(&self, step: Step) -> Result<Chosen> {
        let offered = self.home.device_pages();
        let page = self.kept_page(&offered, "mapped memory of the device")?;
        Ok(Chosen::fixed(PlacementKind::Vmm, step, page))
    }

    /// Memory whose page size only the driver chooses.
    pub(super) fn driver_paged(&self, kind: PlacementKind, step: Step) -> Chosen {
        Chosen::new(kind, step, PageClass::of(self.request.bytes).bytes())
    }

    /// The requested page size if it is offered. Without a request, the last one, which is the recommended size.
    fn kept_page(&self, offered: &[u64; 2], place: &'static str) -> Result<u64> {
        let Some(asked) = self.request.page_size else {
            return Ok(offered[1]);
        };
        if offered.contains(&asked) {
            return Ok(asked);
        }
        let mut offered = offered.to_vec();
        offered.sort_unstable();
        offered.dedup();
        Err(PlaceError::PageSize {
            asked,
            offered,
            place,
        })
    }

    /// Step 4b: every user holds a part, and all users can access all parts.
    fn striped(&self) -> Result<Chosen> {
        let purpose = "memory that is spread over several devices";
        let remedy = "leave it out of the peers, or ask for less";
        if self.request.growable {
            return Err(PlaceError::Conflict {
                first: "growing in place",
                second: "memory that is spread over several devices",
                why: "behind each part lies the next",
                remedy: "ask for all bytes at once, or for no more than one device has",
            });
        }
        let mut page = 0;
        for &device in &self.users {
            self.need(device, Capability::VirtualMemory, purpose, remedy)?;
            self.need(device, Capability::UnifiedAddressing, purpose, remedy)?;
            let others = self.users.iter().filter(|other| **other != device);
            for &to in others {
                if !self.machine.reaches(device, to) {
                    return Err(PlaceError::NoPeerAccess { from: device, to });
                }
            }
            let pages = self.machine.devices[device].device_pages();
            page = page.max(self.kept_page(&pages, "mapped memory of the devices")?);
        }
        let parts = self.users.len() as u64;
        let share = whole(self.request.bytes.div_ceil(parts), page);
        let asked = share.saturating_mul(parts);
        if asked > LIMIT {
            return Err(PlaceError::TooLarge { asked });
        }
        for &device in &self.users {
            let (_, capacity) = self.machine.devices[device].capacity();
            if share > capacity {
                return Err(PlaceError::NoRoomForShare {
                    device,
                    share,
                    capacity,
                });
            }
        }
        let chosen = Chosen::fixed(PlacementKind::VmmStriped, Step::Striped, page);
        Ok(Chosen {
            stripes: self.users.clone(),
            ..chosen
        })
    }

    pub(super) fn fits(&self) -> Result<()> {
        self.fits_or(|| None)
    }

    /// An error if the home device can never hold the bytes. Free memory is not considered, because a pool may hold
    /// memory that is not free.
    fn fits_or(&self, striping: impl FnOnce() -> Option<PlaceError>) -> Result<()> {
        let (capacity, _) = self.home.capacity();
        let asked = counted(self.request.bytes);
        if asked <= capacity {
            return Ok(());
        }
        Err(PlaceError::NoRoom {
            device: self.request.home,
            asked,
            capacity,
            striping: striping().filter(|_| self.has_peers()).map(Box::new),
            remedy: String::new(),
        })
    }

    /// An error unless every peer can use memory of the home device.
    pub(super) fn reached(&self) -> Result<()> {
        let home = self.request.home;
        for &from in self.users.iter().filter(|user| **user != home) {
            let purpose = "memory of one device in use by another";
            let remedy = "leave the peers out and copy";
            self.need(home, Capability::UnifiedAddressing, purpose, remedy)?;
            self.need(from, Capability::UnifiedAddressing, purpose, remedy)?;
            if !self.machine.reaches(from, home) {
                return Err(PlaceError::NoPeerAccess { from, to: home });
            }
        }
        Ok(())
    }

    pub(super) fn need(
        &self,
        device: usize,
        capability: Capability,
        purpose: &'static str,
        remedy: &'static str,
    ) -> Result<()> {
        if self.machine.devices[device].has(capability) {
            return Ok(());
        }
        Err(PlaceError::Missing {
            device,
            capability,
            purpose,
            remedy,
        })
    }
}
