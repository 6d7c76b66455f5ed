//! Managed memory: the host and every device may touch it, and it moves to whoever does. Here it
//! does not move: all of them see the same pages of the host anyway. Only the device's memory is
//! counted as if it did.

mod advise;
mod told;

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

/// `CU_DEVICE_CPU`: the host, where the old form of a prefetch wants a device.
const CPU: c_int = -1;

const DEVICE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
const HOST: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST;
const HOST_NUMA: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA;
const HOST_NUMA_CURRENT: CUmemLocationType =
    CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;

/// The exports of the whole folder.
pub(crate) static ALL: &[&[&Export]] = &[EXPORTS, advise::EXPORTS];

/// What the old forms mean by a number.
fn place_of(number: c_int) -> CUmemLocation {
    match number {
        CPU => location(HOST, 0),
        device => location(DEVICE, device),
    }
}

impl State {
    /// The device that managed memory is sent to, if it is one.
    fn destination(&self, place: CUmemLocation) -> Answer<Option<usize>> {
        match location_parts(place) {
            (DEVICE, id) => {
                let device = self.ordinal(id)?;
                if self.knobs.has_concurrent_managed_access() {
                    Ok(Some(device))
                } else {
                    Err(CUresult::CUDA_ERROR_INVALID_DEVICE)
                }
            }
            // Measured: the number of the host is ignored, that of a node is not.
            (HOST | HOST_NUMA_CURRENT, _) | (HOST_NUMA, 0) => Ok(None),
            _ => Err(INVALID_VALUE),
        }
    }

    /// A device writes: managed memory comes to it.
    pub(crate) fn bring(&mut self, device: usize, to: Side, len: usize) {
        let address = to.address();
        let found = self.allocation(address).map(|(_, found)| found.kind);
        if found == Some(Kind::Managed) && !matches!(to, Side::Host(_)) {
            self.resident.bring(device, address, len as u64);
        }
    }

    /// Whether an address is of managed memory, from a pool or not.
    fn is_managed(&self, address: u64) -> bool {
        if let Some((_, allocation)) = self.allocation(address) {
            return allocation.kind == Kind::Managed;
        }
        let pool = self.pool_at(address);
        pool.is_some_and(|(_, pool)| pool.properties.is_managed())
    }

    /// A prefetch is a place in the order of its stream, and takes memory of a device. Measured: that
    /// memory stays with the device when the bytes are sent to the host again.
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
        if !self.is_managed(address) {
            return Err(INVALID_VALUE);
        }
        let device = self.destination(place)?;
        if self.is_recording(id)? {
            return self.refuse_on_recorded(id);
        }
        let at = self.begin(id)?;
        // Measured: an end past the last address is not seen to be past the block's.
        if address.checked_add(len as u64).is_none() {
            return Ok(());
        }
        let side = Side::Device(address);
        self.touch("prefetch", at, By::Stream(id), side, len)?;
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
        // Measured: a failure nulls the result.
        out.write(0)?;
        if size == 0 || ![ATTACH_GLOBAL, ATTACH_HOST].contains(&flags) {
            return Err(INVALID_VALUE);
        }
        let mut state = state()?;
        state.current()?;
        if !state.knobs.has_managed_memory() {
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
