//! Address ranges: reserving them, mapping memory to them, and access.

use std::ffi::{c_int, c_ulonglong};

use cuda_driver_sys::{
    CUdeviceptr, CUmemAccessDesc, CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType,
    CUresult, location_parts,
};
use cuda_sim_support::page::host_page;

use super::place::is_host;
use super::{Addresses, Bytes, PhysicalId, Place, READ, READ_AND_WRITE, View, granularity};
use crate::buffer_id::BufferId;
use crate::direct;
use crate::export::{Answer, INVALID_VALUE, In, Out, exports};
use crate::state::{State, state};

/// No address space has room for this size.
const TOO_LARGE: u64 = 1 << 47;

/// The end of a range, if both ends are multiples of the granularity.
fn whole_granules(start: u64, len: usize) -> Answer<u64> {
    let len = len as u64;
    let end = start.checked_add(len).ok_or(INVALID_VALUE)?;
    let is_whole = start.is_multiple_of(granularity()) && len.is_multiple_of(granularity());
    if is_whole && len > 0 {
        Ok(end)
    } else {
        Err(INVALID_VALUE)
    }
}

impl State {
    fn reserve(&mut self, len: usize, align: usize, hint: u64) -> Answer<u64> {
        let (len, align) = (len as u64, align as u64);
        let is_aligned = len.is_multiple_of(granularity()) && hint.is_multiple_of(host_page());
        if len == 0 || !is_aligned || align != 0 && !align.is_power_of_two() {
            return Err(INVALID_VALUE);
        }
        if len.max(align) >= TOO_LARGE {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let addresses = Addresses::reserve(len, align.max(granularity()), hint)?;
        let base = addresses.base();
        self.vmm.reservations.insert(base, addresses);
        Ok(base)
    }

    fn end_reservation(&mut self, start: u64, len: usize) -> Answer {
        let reservation = self.vmm.reservations.get(&start);
        let reservation = reservation.filter(|found| found.len() == len as u64);
        reservation.ok_or(INVALID_VALUE)?;
        if self.has_views(start, start + len as u64) {
            return Err(INVALID_VALUE);
        }
        if let Some(addresses) = self.vmm.reservations.remove(&start) {
            // Late work that still reaches it must find that nothing is mapped.
            self.bury(addresses);
        }
        Ok(())
    }

    fn has_views(&self, start: u64, end: u64) -> bool {
        let last = self.vmm.views.range(..end).next_back();
        last.is_some_and(|(at, view)| at + view.len > start)
    }

    fn reservation_of(&self, start: u64, end: u64) -> Answer<u64> {
        let found = self.vmm.reservations.range(..=start).next_back();
        let found = found.filter(|(base, found)| end <= *base + found.len());
        found.map(|(base, _)| *base).ok_or(INVALID_VALUE)
    }

    fn map(&mut self, start: u64, len: usize, skipped: usize, handle: PhysicalId) -> Answer {
        if len == 0 {
            return Err(INVALID_VALUE);
        }
        let physical = self.physical(handle)?;
        let place = physical.place;
        // Measured: only the whole memory can be mapped; this is checked even if the length is invalid anyway.
        if skipped != 0 || physical.size != len as u64 {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let end = whole_granules(start, len)?;
        // A known difference: the driver maps beyond the end of a reservation.
        let base = self.reservation_of(start, end)?;
        if self.has_views(start, end) {
            return Err(INVALID_VALUE);
        }
        let vmm = &mut self.vmm;
        let bytes = vmm.physicals.get(&handle).map(|physical| &physical.bytes);
        let source = match (bytes, &vmm.memory) {
            (Some(Bytes::Part(part)), Some(memory)) => memory.source(part),
            (Some(Bytes::Shared(file)), _) => file.source(),
            _ => return Err(INVALID_VALUE),
        };
        let addresses = vmm.reservations.get_mut(&base).ok_or(INVALID_VALUE)?;
        addresses.map(start, len as u64, source)?;
        if let Some(physical) = vmm.physicals.get(&handle) {
            physical.pieces.place(start)?;
        }
        let view = View {
            id: BufferId::next(),
            len: len as u64,
            physical: handle,
            place,
            access: Default::default(),
            host_access: 0,
            ends_fills: false,
            accesses: Vec::new(),
        };
        vmm.views.insert(start, view);
        self.physical(handle)?.views += 1;
        Ok(())
    }

    /// Takes effect at once, whatever runs. Measured: it waits for nothing, and unmapping nothing is allowed.
    fn unmap(&mut self, start: u64, len: usize) -> Answer {
        let end = whole_granules(start, len)?;
        self.reservation_of(start, end)?;
        let starts = self.uncut_views(start, end).ok_or(INVALID_VALUE)?;
        self.check_unmap(start, end);
        for at in starts {
            let Some(view) = self.vmm.views.remove(&at) else {
                continue;
            };
            direct::tell_freed(at, view.len);
            let base = self.reservation_of(at, at + view.len)?;
            if let Some(addresses) = self.vmm.reservations.get_mut(&base) {
                addresses.unmap(at, view.len)?;
            }
            if let Some(physical) = self.vmm.physicals.get_mut(&view.physical) {
                physical.views -= 1;
            }
            self.end_unused(view.physical);
        }
        Ok(())
    }

    /// The accessor in an entry of a request (`None` is the host), and its access.
    fn wish(&self, wish: &CUmemAccessDesc, owner: Place) -> Answer<(Option<usize>, u64)> {
        let (kind, id): (_, c_int) = location_parts(wish.location);
        let flags = wish.flags.0.into();
        let is_known = [0, READ, READ_AND_WRITE].contains(&flags);
        match (kind, owner.device()) {
            // The host cannot access device memory.
            (kind, Some(_)) if kind != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => {
                return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
            }
            (kind, None) if is_host(kind) && is_known => return Ok((None, flags)),
            (CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, _) => {}
            _ => return Err(INVALID_VALUE),
        }
        let device = self.ordinal(id).map_err(|_| INVALID_VALUE)?;
        if !is_known {
            return Err(INVALID_VALUE);
        }
        if let Some(owner) = owner.device()
            && device != owner
            && !self.are_peers(device, owner)
        {
            return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
        Ok((Some(device), flags))
    }

    fn set_access(&mut self, start: u64, len: usize, wishes: &[CUmemAccessDesc]) -> Answer {
        let end = whole_granules(start, len)?;
        let starts = self.whole_views(start, end).ok_or(INVALID_VALUE)?;
        let owners = starts.iter().filter_map(|at| self.vmm.views.get(at));
        let mut checked = Vec::new();
        // The whole list is checked before any entry takes effect.
        for owner in owners.map(|view| view.place) {
            for wish in wishes {
                checked.push(self.wish(wish, owner)?);
            }
        }
        for at in starts {
            if let Some(view) = self.vmm.views.get_mut(&at) {
                for (who, flags) in checked.iter().copied() {
                    match who {
                        Some(device) => _ = view.access.insert(device, flags),
                        None => {
                            view.ends_fills |= flags != 0 && view.access_of_devices() != 0;
                            view.host_access = flags;
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

exports! {
    plain fn cuMemAddressReserve(
        _, out: Out<CUdeviceptr>, size: usize, alignment: usize, hint: CUdeviceptr,
        flags: c_ulonglong
    ) {
        out.required()?;
        let mut state = state()?;
        state.check_vmm()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        out.write(state.reserve(size, alignment, hint)?)
    }

    release fn cuMemAddressFree(_, address: CUdeviceptr, size: usize) {
        let mut state = state()?;
        state.check_vmm()?;
        state.end_reservation(address, size)
    }

    plain fn cuMemMap(
        _, address: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle,
        flags: c_ulonglong
    ) {
        let mut state = state()?;
        state.check_vmm()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        state.map(address, size, offset, handle)
    }

    release fn cuMemUnmap(_, address: CUdeviceptr, size: usize) {
        let mut state = state()?;
        state.check_vmm()?;
        state.unmap(address, size)
    }

    plain fn cuMemSetAccess(
        _, address: CUdeviceptr, size: usize, wishes: In<CUmemAccessDesc>, count: usize
    ) {
        let mut state = state()?;
        state.check_vmm()?;
        if count == 0 {
            return Err(INVALID_VALUE);
        }
        let wishes = wishes.required()?.read_all(count)?;
        state.set_access(address, size, &wishes)
    }

    plain fn cuMemGetAccess(
        _, out: Out<c_ulonglong>, location: In<CUmemLocation>, address: CUdeviceptr
    ) {
        out.required()?;
        let (kind, id) = location_parts(location.read()?);
        let mut state = state()?;
        state.check_vmm()?;
        if let Some((_, view)) = state.view(address)
            && is_host(kind)
            && view.place.device().is_none()
        {
            // Measured: for the host, but not for a node, it reports the access of devices.
            let is_node = kind != CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST;
            let told = if is_node { 0 } else { view.access_of_devices() };
            return out.write(view.host_access.max(told));
        }
        // Measured: otherwise the kind is ignored, except for the calling thread's node.
        if kind == CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT {
            return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
        }
        let device = state.ordinal(id)?;
        let mapped = state.view(address).map(|(_, view)| view.access_of(device));
        match mapped {
            Some(access) => out.write(access),
            // Measured: of memory that was not mapped, the answer is no access.
            None if state.is_known(address) => out.write(0),
            None => Err(INVALID_VALUE),
        }
    }
}
