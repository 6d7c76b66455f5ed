//! The rows of the decision table for exported memory: step 1.

#![forbid(unsafe_code)]

use super::PlacementKind;
use super::error::PlaceError;
use super::pages::TWO_MIB;
use super::policy::{Case, Chosen};
use super::reason::PlacementStep as Step;
use super::request::{AccessPattern, Export, Lifetime};
use crate::driver::capabilities::Capability;
use crate::driver::device::HandleTypes;

type Result<T> = std::result::Result<T, PlaceError>;

impl Case<'_> {
    /// Steps 1b to 1f.
    pub(super) fn exported(&self, export: Export) -> Result<Chosen> {
        use AccessPattern as A;
        if matches!(self.request.access, A::Shared | A::SharedInTurns) {
            return self.exported_host(export);
        }
        self.fits()?;
        self.reached()?;
        match export {
            Export::Fabric => self.by_handle(HandleTypes::FABRIC, Capability::Fabric),
            Export::Win32 => self.by_handle(HandleTypes::WIN32, Capability::Win32Handle),
            Export::DmaBuf => self.as_dma_buf(),
            Export::Collective => self.collective(),
            _ => self.by_handle(HandleTypes::POSIX_FILE_DESCRIPTOR, Capability::PosixFd),
        }
    }

    /// Which handles the memory gets is decided where it is made: for fabric handles, only an attempt tells.
    fn collective(&self) -> Result<Chosen> {
        let purpose = "memory for collective operations";
        let remedy = "ask for no export: libraries copy through their own memory then";
        self.need(
            self.request.home,
            Capability::VirtualMemory,
            purpose,
            remedy,
        )?;
        self.mapped(Step::Collective)
    }

    fn as_dma_buf(&self) -> Result<Chosen> {
        let request = self.request;
        let purpose = "an export as a dma-buf";
        let remedy = "copy through memory of the host instead";
        self.need(request.home, Capability::DmaBuf, purpose, remedy)?;
        if request.growable || request.page_size.is_some() || self.has_peers() {
            let purpose =
                "memory that grows, has a size of pages or is used by other devices, as a dma-buf,";
            let remedy = "ask for all bytes at once, for no size of pages and no peers";
            self.need(request.home, Capability::VirtualMemory, purpose, remedy)?;
            let capability = Capability::GpuDirectVirtualMemory;
            self.need(request.home, capability, purpose, remedy)?;
        }
        if self.home.capabilities.virtual_memory && self.home.capabilities.gpu_direct_virtual_memory
        {
            return Ok(Chosen {
                gpu_direct: true,
                ..self.mapped(Step::DmaBuf)?
            });
        }
        // Whole large pages: nothing else of the program is in what the other driver gets.
        Ok(Chosen::new(PlacementKind::Device, Step::DmaBuf, TWO_MIB))
    }

    fn by_handle(&self, handle: HandleTypes, capability: Capability) -> Result<Chosen> {
        let request = self.request;
        let pools = self.home.capabilities.memory_pools
            && self.home.capabilities.pool_handle_types.contains(handle);
        let may_be_pool = !request.growable && request.page_size.is_none();
        if pools && may_be_pool && request.lifetime == Lifetime::Short {
            return Ok(self.driver_paged(PlacementKind::Pool, Step::ExportedPool));
        }
        let purpose = "an export of mapped memory by handle";
        let remedy = if pools {
            "pools of the device can be exported so: ask for a short lifetime, without growth and size of \
             pages"
        } else if handle == HandleTypes::FABRIC {
            "ask for a file descriptor (`Export::PosixFd`), or for no export"
        } else if handle == HandleTypes::POSIX_FILE_DESCRIPTOR
            && self.home.capabilities.win32_handle
        {
            "ask for a handle of Windows (`Export::Win32`), or for no export"
        } else {
            "ask for no export, and copy through memory that processes share"
        };
        self.need(request.home, Capability::VirtualMemory, purpose, remedy)?;
        self.need(request.home, capability, purpose, remedy)?;
        self.mapped(Step::ExportedVmm)
    }

    /// Step 1e. Of host memory, only that of a NUMA node can be exported by descriptor.
    fn exported_host(&self, export: Export) -> Result<Chosen> {
        if export != Export::PosixFd {
            return Err(PlaceError::Conflict {
                first: "access that is shared with the host",
                second: "an export as anything but a file descriptor",
                why: "memory of a device is exported so, and the host cannot touch that",
                remedy: "ask for a file descriptor (`Export::PosixFd`), let the host copy \
                         (`AccessPattern::GpuMostly`), or do not export it",
            });
        }
        let purpose = "memory of the host that is exported as a file descriptor";
        let remedy = "let the host copy (`AccessPattern::GpuMostly`), or do not export it";
        for &user in &self.users {
            self.need(user, Capability::HostNumaVirtualMemory, purpose, remedy)?;
        }
        self.need(self.request.home, Capability::PosixFd, purpose, remedy)?;
        let Some(node) = self.home.host_numa_node else {
            return Err(PlaceError::NoHostNode {
                device: self.request.home,
                purpose,
                remedy,
            });
        };
        let kind = PlacementKind::HostNuma { node, pool: false };
        let page = self.host_mapped_page()?;
        Ok(Chosen::fixed(kind, Step::ExportedHost, page))
    }
}
