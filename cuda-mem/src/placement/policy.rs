//! The decision table. Lines are tried from the top, and the first that matches decides.

#![forbid(unsafe_code)]

use super::capabilities::{Capability, DeviceCapabilities, Machine};
use super::error::PlaceError;
use super::pages::{LIMIT, PageClass, TWO_MIB, counted, whole};
use super::reason::PlacementStep as Step;
use super::request::{AccessPattern, Export, Lifetime, PlacementRequest};
use super::{Grant, Placement, PlacementKind, Zeroing};
use crate::device::HandleTypes;

type Result<T> = std::result::Result<T, PlaceError>;

pub(super) fn place(request: &PlacementRequest, machine: &Machine) -> Result<Placement> {
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

/// A request beside the machine that it is for.
pub(super) struct Case<'a> {
    pub(super) request: &'a PlacementRequest,
    pub(super) machine: &'a Machine,
    pub(super) home: &'a DeviceCapabilities,
    /// The home and its peers, in order.
    pub(super) users: Vec<usize>,
}

/// What a line of the table says.
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
        match (self.request.export, self.request.access) {
            (Export::None, A::Shared) => self.shared(),
            (Export::None, A::CpuWritesGpuReads | A::GpuWritesCpuReads | A::Streaming) => {
                self.on_host()
            }
            (Export::None, A::GpuOnly | A::GpuMostly) => self.on_device(),
            // Only memory of devices is exported, and the host has no access to that.
            (_, A::Shared) => Err(PlaceError::Conflict {
                first: "access that is shared with the host",
                second: "an export",
                why: "memory of a device is exported, and the host cannot touch that",
                remedy: "let the host copy (`AccessPattern::GpuMostly`), or do not export it",
            }),
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
        let devices = self.users.iter().copied().map(Grant::Device);
        let zeroing = match chosen.kind {
            // What the host writes first stays on the host until a device wants it.
            K::Managed => Zeroing::OnStream,
            _ if is_host => Zeroing::OnHost,
            _ => Zeroing::OnStream,
        };
        Placement {
            kind: chosen.kind,
            size,
            page_size: chosen.page,
            page_class: PageClass::of(chosen.page),
            page_size_is_fixed: chosen.is_fixed,
            home: request.home,
            grants: is_host
                .then_some(Grant::Host)
                .into_iter()
                .chain(devices)
                .collect(),
            stripes: chosen.stripes,
            export: request.export,
            gpu_direct: chosen.gpu_direct,
            zeroing: request.zeroed.then_some(zeroing),
            step: chosen.step,
        }
    }

    /// Steps 1a to 1d.
    fn exported(&self, export: Export) -> Result<Chosen> {
        let request = self.request;
        self.fits()?;
        self.reached()?;
        match export {
            Export::None => self.on_device(),
            Export::LegacyIpc => {
                if request.growable {
                    return Err(PlaceError::Conflict {
                        first: "growing",
                        second: "an export by cuIpcGetMemHandle",
                        why: "it takes memory of cuMemAlloc only, whose size stays",
                        remedy: "ask for another export (`Export::PosixFd`), or for all bytes at once",
                    });
                }
                self.need(
                    request.home,
                    Capability::LegacyIpc,
                    "an export by cuIpcGetMemHandle",
                    "ask for another export (`Export::PosixFd`)",
                )?;
                if let Some(asked) = request.page_size {
                    return Err(PlaceError::PageSize {
                        asked,
                        offered: Vec::new(),
                        place: "memory of cuMemAlloc",
                    });
                }
                Ok(self.driver_paged(PlacementKind::Device, Step::LegacyIpc))
            }
            Export::DmaBuf => {
                let purpose = "an export as a dma-buf";
                let remedy = "copy through memory of the host instead";
                self.need(request.home, Capability::DmaBuf, purpose, remedy)?;
                if request.growable || request.page_size.is_some() {
                    let purpose = "memory that grows or has a size of pages, as a dma-buf,";
                    let remedy = "ask for all bytes at once and for no size of pages";
                    self.need(request.home, Capability::VirtualMemory, purpose, remedy)?;
                    let capability = Capability::GpuDirectVirtualMemory;
                    self.need(request.home, capability, purpose, remedy)?;
                }
                if self.home.virtual_memory && self.home.gpu_direct_virtual_memory {
                    let mapped = self.mapped(Step::DmaBuf)?;
                    return Ok(Chosen {
                        gpu_direct: true,
                        ..mapped
                    });
                }
                Ok(self.driver_paged(PlacementKind::Device, Step::DmaBuf))
            }
            Export::PosixFd => {
                self.by_handle(HandleTypes::POSIX_FILE_DESCRIPTOR, Capability::PosixFd)
            }
            Export::Fabric => self.by_handle(HandleTypes::FABRIC, Capability::Fabric),
        }
    }

    fn by_handle(&self, handle: HandleTypes, capability: Capability) -> Result<Chosen> {
        let request = self.request;
        let pools = self.home.memory_pools && self.home.pool_handle_types.contains(handle);
        let may_be_pool = !request.growable && request.page_size.is_none();
        if pools && may_be_pool && request.lifetime == Lifetime::Short {
            return Ok(self.driver_paged(PlacementKind::Pool, Step::ExportedPool));
        }
        let purpose = "an export of mapped memory by handle";
        let remedy = match (pools, handle == HandleTypes::FABRIC) {
            (true, _) => {
                "pools of the device can be exported so: ask for a short lifetime, without growth and \
                 size of pages"
            }
            (false, true) => "ask for a file descriptor (`Export::PosixFd`), or for no export",
            (false, false) => "ask for `Export::LegacyIpc`, or for no export",
        };
        self.need(request.home, Capability::VirtualMemory, purpose, remedy)?;
        self.need(request.home, capability, purpose, remedy)?;
        self.mapped(Step::ExportedVmm)
    }

    /// Steps 4a to 4e, and 5 for those who want pages of one size.
    fn on_device(&self) -> Result<Chosen> {
        let request = self.request;
        let bytes = counted(request.bytes);
        let (_, free) = self.home.capacity();
        let [_, recommended] = self.home.device_pages();
        let mapped = whole(bytes, recommended);
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
            let remedy = "ask for all bytes at once";
            self.need(
                request.home,
                Capability::VirtualMemory,
                "memory that grows",
                remedy,
            )?;
            return self.mapped(Step::Growable);
        }
        if request.page_size.is_some() {
            let purpose = "a size of pages of its own";
            let remedy = "ask for no size of pages";
            self.need(request.home, Capability::VirtualMemory, purpose, remedy)?;
            return self.mapped(Step::AskedPages);
        }
        let pool = if self.home.memory_pools {
            PlacementKind::Pool
        } else {
            PlacementKind::Device
        };
        if request.lifetime == Lifetime::Short {
            return Ok(self.driver_paged(pool, Step::ShortLived));
        }
        if bytes < TWO_MIB {
            return Ok(self.driver_paged(pool, Step::LongLivedSmall));
        }
        if self.home.virtual_memory && mapped - bytes <= bytes / 8 {
            return self.mapped(Step::LongLivedLarge);
        }
        // Rounding to 2 MiB here would waste what this line is there to save.
        let page = PageClass::Big.bytes();
        Ok(Chosen::new(
            PlacementKind::Device,
            Step::LongLivedLarge,
            page,
        ))
    }

    /// Memory of the home in pages of the granularity.
    fn mapped(&self, step: Step) -> Result<Chosen> {
        let offered = self.home.device_pages();
        let page = self.kept_page(&offered, "mapped memory of the device")?;
        Ok(Chosen::fixed(PlacementKind::Vmm, step, page))
    }

    /// Memory in whose pages nobody has a say.
    fn driver_paged(&self, kind: PlacementKind, step: Step) -> Chosen {
        Chosen::new(kind, step, PageClass::of(self.request.bytes).bytes())
    }

    /// The page asked for if it is offered; without one, the last, which is the recommended.
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

    /// Step 4b: all users hold a part, and each reaches each.
    fn striped(&self) -> Result<Chosen> {
        let purpose = "memory that is spread over several devices";
        let remedy = "leave it out of the peers, or ask for less";
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

    fn fits(&self) -> Result<()> {
        self.fits_or(|| None)
    }

    /// An error if the home can never hold the bytes. Whether they are free now is not asked: a pool may
    /// hold what is not.
    fn fits_or(&self, striping: impl FnOnce() -> Option<PlaceError>) -> Result<()> {
        let (capacity, _) = self.home.capacity();
        let asked = counted(self.request.bytes);
        if asked <= capacity {
            return Ok(());
        }
        let tried = self.users.len() > 1;
        Err(PlaceError::NoRoom {
            device: self.request.home,
            asked,
            capacity,
            striping: striping().filter(|_| tried).map(Box::new),
        })
    }

    /// An error unless every peer can use memory of the home.
    fn reached(&self) -> Result<()> {
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
