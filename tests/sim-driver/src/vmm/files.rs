//! Files of mapped memory, through which third parties reach it.

use std::os::fd::OwnedFd;

use cuda_driver_sys::CUresult;

use super::{Bytes, PhysicalId, pause};
use crate::export::{Answer, INVALID_VALUE};
use crate::pieces::{Bases, Part, reopen};
use crate::state::State;

const NOT_SUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;

impl State {
    /// The memory behind an address, the offset in it, and all its mappings.
    fn behind(&self, address: u64) -> Answer<(PhysicalId, u64, Vec<u64>)> {
        let (start, view) = self.view(address).ok_or(INVALID_VALUE)?;
        let views = self.vmm.views.iter();
        let same = views.filter(|(_, other)| other.physical == view.physical);
        let bases = same.map(|(start, _)| *start).collect();
        Ok((view.physical, address - start, bases))
    }

    /// A file of exactly this range, which must lie in one mapping and not be shared with other processes:
    /// NOT_SUPPORTED otherwise, both limits of the simulator.
    pub(crate) fn whole_mapped(&mut self, address: u64, len: u64) -> Answer<OwnedFd> {
        let (id, offset, bases) = self.behind(address)?;
        let physical = self.vmm.physicals.get_mut(&id).ok_or(INVALID_VALUE)?;
        let is_inside = offset + len <= physical.size;
        if !is_inside || !matches!(physical.bytes, Bytes::Part(_)) {
            return Err(NOT_SUPPORTED);
        }
        let _pause = pause();
        physical.pieces.whole(Bases(&bases), offset, len)
    }

    /// As much of a range as one file covers.
    pub(crate) fn part_of_mapped(&mut self, address: u64, len: u64) -> Answer<Part> {
        let (id, offset, bases) = self.behind(address)?;
        let physical = self.vmm.physicals.get_mut(&id).ok_or(INVALID_VALUE)?;
        let len = len.min(physical.size - offset);
        match &physical.bytes {
            Bytes::Shared(file) => Ok(Part {
                file: reopen(file.number(), true)?,
                offset,
                len,
            }),
            Bytes::Part(_) => {
                let _pause = pause();
                physical.pieces.part(Bases(&bases), offset, len)
            }
        }
    }
}
