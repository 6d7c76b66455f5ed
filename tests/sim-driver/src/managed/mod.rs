//! Managed memory: the host and every device may access it, and it migrates on access. Here it does not migrate, as all
//! of them access the same host pages anyway. Only device memory is counted as if it did.

mod advise;
mod batch;
mod released;
mod told;

pub(crate) use released::Released;
pub(crate) use told::Hearsay;

use std::ffi::{c_int, c_uint};

use cuda_driver_sys::{
    CUdeviceptr, CUmemLocation, CUmemLocationType, CUresult, CUstream, location, location_parts,
};

use crate::alloc::Kind;
use crate::copy::{By, Side};
use crate::export::{Answer, Call, Export, INVALID_VALUE, Out, exports};
use crate::state::{State, state};

const ATTACH_GLOBAL: c_uint = 1;
const ATTACH_HOST: c_uint = 2;

/// `CU_DEVICE_CPU`: the host, as the device number of the older functions.
const CPU: c_int = -1;

const DEVICE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
const HOST: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST;
const HOST_NUMA: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA;
const HOST_NUMA_CURRENT: CUmemLocationType =
    CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;

/// The exports of this folder.
pub(crate) static ALL: &[&[&Export]] = &[EXPORTS, advise::EXPORTS, batch::EXPORTS];

/// The location that a device number means in the older functions.
fn place_of(number: c_int) -> CUmemLocation {
    match number {
        CPU => location(HOST, 0),
        device => location(DEVICE, device),
    }
}

impl State {
    /// The device that managed memory is prefetched to; `None` for the host.
    fn destination(&self, place: CUmemLocation) -> Answer<Option<usize>> {
        match location_parts(place) {
            (DEVICE, id) => {
                let device = self.ordinal(id)?;
                if self.configuration.has_concurrent_managed_access() {
                    Ok(Some(device))
                } else {
                    Err(CUresult::CUDA_ERROR_INVALID_DEVICE)
                }
            }
            // Measured: the number is ignored for the host, but not for a node.
            (HOST | HOST_NUMA_CURRENT, _) | (HOST_NUMA, 0) => Ok(None),
            _ => Err(INVALID_VALUE),
        }
    }

    /// Managed memory that a device writes becomes resident there.
    pub(crate) fn bring(&mut self, device: usize, to: Side, len: usize) {
        self.report_lost_writes(to, len);
        let address = to.address();
        let found = self.allocation(address).map(|(_, found)| found.kind);
        if found == Some(Kind::Managed) && !matches!(to, Side::Host(_)) {
            self.resident.bring(device, address, len as u64);
        }
    }

    /// Whether an address is in managed memory, from a pool or not.
    fn is_managed(&self, address: u64) -> bool {
        if let Some((_, allocation)) = self.allocation(address) {
            return allocation.kind == Kind::Managed;
        }
        let pool = self.pool_at(address);
        pool.is_some_and(|(_, pool)| pool.properties.is_managed())
    }

    /// A prefetch is ordered in its stream and takes device memory. Measured: the device keeps that memory when the
    /// bytes are prefetched back to the host.
    fn prefetch(
        &mut self,
        (address, len): (CUdeviceptr, usize),
        place: CUmemLocation,
        flags: c_uint,
        (stream, call): (CUstream, Call),
    ) -> Answer {
        let id = self.resolve(stream, call)?;
        if flags != 0 || len == 0 {
            return Err(INVALID_VALUE);
        }
        let is_managed = self.is_managed(address);
        if !is_managed && !self.is_pageable(address, len) {
            return Err(INVALID_VALUE);
        }
        let device = self.destination(place)?;
        if self.is_recording(id)? {
            return self.refuse_on_recorded(id);
        }
        let at = self.begin(id)?;
        // A guess: memory of the program is not counted as the device's, wherever its pages are.
        if !is_managed {
            return Ok(());
        }
        // Measured: an end that overflows the address space is not detected as past the block's.
        if address.checked_add(len as u64).is_none() {
            return Ok(());
        }
        let side = Side::Device(address);
        self.touch("prefetch", at, By::Stream(id), side, len)?;
        self.renew(address, len);
        if let Some(device) = device {
            self.bring(device, side, len);
        }
        let spot = advise::spot(place);
        self.hearsay
            .tell(address, len as u64, |told| told.prefetched = Some(spot));
        Ok(())
    }
}

exports! {
    plain fn cuMemAllocManaged(_, out: Out<CUdeviceptr>, size: usize, flags: c_uint) {
        // Measured: a failed call writes null.
        out.write(0)?;
        if size == 0 || ![ATTACH_GLOBAL, ATTACH_HOST].contains(&flags) {
            return Err(INVALID_VALUE);
        }
        let mut state = state()?;
        state.current()?;
        if !state.configuration.has_managed_memory() {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        state.refuse_while_recording()?;
        out.write(state.allocate(size, Kind::Managed)?)
    }

    plain fn cuMemPrefetchAsync(
        call, address: CUdeviceptr, len: usize, device: c_int, stream: CUstream
    ) twin cuMemPrefetchAsync_ptsz {
        state()?.prefetch((address, len), place_of(device), 0, (stream, call))
    }

    plain fn cuMemPrefetchAsync_v2(
        call, address: CUdeviceptr, len: usize, place: CUmemLocation, flags: c_uint,
        stream: CUstream
    ) twin cuMemPrefetchAsync_v2_ptsz {
        state()?.prefetch((address, len), place, flags, (stream, call))
    }
}
