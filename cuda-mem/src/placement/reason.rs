//! The rows of the decision table, and the description of a placement.

#![forbid(unsafe_code)]

use std::fmt;

use super::{Accessor, Export, Placement, PlacementKind};
use crate::base::error::Bytes;

/// A row of the decision table. Displayed by its name in the table, such as `4d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum PlacementStep {
    /// 1b: exported as a dma-buf.
    DmaBuf,
    /// 1c: exported by handle, for a short time.
    ExportedPool,
    /// 1d: exported by handle otherwise.
    ExportedVmm,
    /// 1e: shared between host and devices, and exported as a file descriptor.
    ExportedHost,
    /// 1f: for libraries for communication.
    Collective,
    /// 2a: shared between host and devices in long turns.
    SharedInTurns,
    /// 2b: shared between host and devices at any time.
    Shared,
    /// 3a: a large amount of memory that the host writes and devices read.
    HostNuma,
    /// 3b: other memory that the host writes and devices read.
    WrittenByHost,
    /// 3c: memory that devices write and the host reads.
    ReadByHost,
    /// 3d: streamed data.
    Streaming,
    /// 3e: host memory that grows or has a requested page size.
    MappedHost,
    /// 4a: device memory that grows.
    Growable,
    /// 4b: more memory than the home device has.
    Striped,
    /// 4c: short-lived device memory.
    ShortLived,
    /// 4d: long-lived device memory.
    LongLived,
    /// 5: device memory with a requested page size.
    AskedPages,
}

impl PlacementStep {
    /// Its name in the table.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::DmaBuf => "1b",
            Self::ExportedPool => "1c",
            Self::ExportedVmm => "1d",
            Self::ExportedHost => "1e",
            Self::Collective => "1f",
            Self::SharedInTurns => "2a",
            Self::Shared => "2b",
            Self::HostNuma => "3a",
            Self::WrittenByHost => "3b",
            Self::ReadByHost => "3c",
            Self::Streaming => "3d",
            Self::MappedHost => "3e",
            Self::Growable => "4a",
            Self::Striped => "4b",
            Self::ShortLived => "4c",
            Self::LongLived => "4d",
            Self::AskedPages => "5",
        }
    }
}

impl fmt::Display for PlacementStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Placement {
    /// Describes why this kind was chosen, without the step.
    #[must_use]
    pub fn why(&self) -> &'static str {
        use PlacementKind as K;
        use PlacementStep as Step;
        match (self.step, self.kind) {
            (Step::DmaBuf, K::Vmm) => "mapped memory may be used by other devices of the bus here",
            (Step::DmaBuf, _) => {
                "only memory of cuMemAlloc may be used by other devices of the bus here"
            }
            (Step::ExportedPool, _) => {
                "a pool is exported once, and what comes and goes is cheap in it"
            }
            (Step::ExportedVmm, _) => {
                "mapped memory is exported on its own, with a handle of its own"
            }
            (Step::ExportedHost, _) => {
                "mapped memory of a node is exported with a handle of its own, and all reach it"
            }
            (Step::Collective, _) => {
                "libraries for communication take mapped memory, one piece of it under any range"
            }
            (Step::SharedInTurns, K::Managed) => {
                "managed memory moves to the side whose turn it is"
            }
            (Step::SharedInTurns, _) => {
                "pinned memory is in reach of all, and not all devices share managed memory with the host"
            }
            (Step::Shared, _) => "pinned memory is in reach of all, and moves for nobody",
            (Step::HostNuma, _) => "devices read much from the node that is nearest to them",
            (
                Step::WrittenByHost,
                K::PinnedHost {
                    write_combining: true,
                },
            ) => "the host only writes it, past its caches",
            (Step::WrittenByHost, K::HostPool) => {
                "devices read it where the host writes it, and it comes and goes without waiting"
            }
            (Step::WrittenByHost, _) => {
                "devices read it where the host writes it, through its caches"
            }
            (Step::ReadByHost, K::HostPool) => {
                "the host reads it through its caches, and it comes and goes without waiting"
            }
            (Step::ReadByHost, _) => "the host reads it through its caches",
            (Step::Streaming, K::HostNuma { .. }) => {
                "it crosses the bus once either way, from the node that is nearest"
            }
            (Step::Streaming, K::HostPool) => {
                "it crosses the bus once either way, and comes and goes without waiting"
            }
            (Step::Streaming, _) => "it crosses the bus once either way",
            (Step::MappedHost, _) => {
                "only mapped memory grows in its place, or keeps a size of pages"
            }
            (Step::Growable, _) => "only mapped memory grows in its place",
            (Step::Striped, _) => "one device lacks the room, and all reach each other",
            (Step::ShortLived, K::Pool) => "what comes and goes does so in the order of streams",
            (Step::ShortLived, K::Device) => {
                "short-lived memory of a device, and there are no pools"
            }
            (Step::LongLived, K::Pool) => {
                "memory of a pool is as fast as any of the device, and the quickest to make"
            }
            (Step::LongLived, K::Device) => "memory of a device that stays, and there are no pools",
            (Step::ShortLived | Step::LongLived, _) => {
                "there are no pools, and plain memory has no access for other devices"
            }
            (Step::AskedPages, _) => "only mapped memory keeps a size of pages",
        }
    }
}

/// ` and ` before the last, commas before.
fn list(f: &mut fmt::Formatter<'_>, names: &[String]) -> fmt::Result {
    for (index, name) in names.iter().enumerate() {
        f.write_str(match index {
            0 => "",
            _ if index + 1 == names.len() => " and ",
            _ => ", ",
        })?;
        f.write_str(name)?;
    }
    Ok(())
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use PlacementKind as K;
        let home = self.home;
        match self.kind {
            K::Pool => write!(f, "memory of a pool of device {home}")?,
            K::Device => write!(f, "plain memory of device {home}")?,
            K::Vmm => write!(f, "mapped memory of device {home}")?,
            K::VmmStriped => {
                let devices = self.stripes.iter().map(|device| format!("device {device}"));
                f.write_str("mapped memory in equal parts of ")?;
                list(f, &devices.collect::<Vec<_>>())?;
            }
            K::PinnedHost {
                write_combining: true,
            } => f.write_str("pinned, write-combining memory of the host")?,
            K::PinnedHost { .. } => f.write_str("pinned memory of the host")?,
            K::HostNuma { node, pool: true } => {
                write!(f, "memory of a pool of NUMA node {node} of the host")?;
            }
            K::HostNuma { node, .. } => write!(f, "mapped memory of NUMA node {node} of the host")?,
            K::HostVmm => f.write_str("mapped memory of the host")?,
            K::HostPool => f.write_str("memory of a pool of the host")?,
            K::Managed => write!(f, "managed memory, at first near device {home}")?,
        }
        write!(f, ": {}, ", Bytes(self.size))?;
        if self.page_size_is_fixed {
            write!(f, "in pages of {}, ", Bytes(self.page_size))?;
        } else {
            f.write_str("pages as the driver likes, ")?;
        }
        f.write_str("used by ")?;
        let users = self.grants.iter().map(|grant| match grant {
            Accessor::Host => "the host".to_owned(),
            Accessor::Device(device) => format!("device {device}"),
        });
        list(f, &users.collect::<Vec<_>>())?;
        f.write_str(match self.export {
            Export::None => "",
            Export::PosixFd => ", exported as a file descriptor",
            Export::Win32 => ", exported as a handle of Windows",
            Export::Fabric => ", exported by a fabric handle",
            Export::DmaBuf => ", for export as a dma-buf",
            Export::Collective => ", for collective operations",
        })?;
        write!(f, " (step {}: {})", self.step, self.why())
    }
}
