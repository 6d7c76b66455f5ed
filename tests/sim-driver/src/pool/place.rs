//! Default and current pools by location and type of allocation (CUDA 13.0). Those of device memory belong to the
//! device.

use std::ffi::c_int;

use cuda_driver_sys::{
    CUmemAllocationType, CUmemLocation, CUmemLocationType, CUmemoryPool, CUresult, location_parts,
};

use super::PoolId;
use super::create::{DEVICE, HOST, HOST_NUMA, MANAGED, NONE, PINNED, Properties};
use crate::export::{Answer, INVALID_VALUE, Out, exports};
use crate::state::{State, from_handle, state, to_handle};

/// A location and type with a default and a current pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    is_managed: bool,
    location: u32,
    id: c_int,
}

impl Place {
    /// As measured: the number matters for devices and nodes only, and an unknown location is reported before an
    /// unknown allocation type.
    fn find(
        state: &State,
        kind: CUmemAllocationType,
        (location, id): (CUmemLocationType, c_int),
    ) -> Answer<Self> {
        if ![NONE, DEVICE, HOST, HOST_NUMA].contains(&location) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let is_managed = kind == MANAGED;
        let is_there = match location {
            NONE => is_managed,
            DEVICE => state.ordinal(id).is_ok(),
            HOST_NUMA => id == 0,
            _ => true,
        };
        if ![PINNED, MANAGED].contains(&kind) || !is_there {
            return Err(INVALID_VALUE);
        }
        match state.ordinal(id) {
            // Even a device with broken pools returns its default pool.
            Ok(device) if location == DEVICE && kind == PINNED => state.check_claim(device)?,
            Ok(device) if location == DEVICE => state.check_pools(device)?,
            _ => state.check_any_pools()?,
        }
        state.check_kind(kind, location)?;
        Ok(Self {
            is_managed,
            location: location.0,
            id: if [DEVICE, HOST_NUMA].contains(&location) {
                id
            } else {
                0
            },
        })
    }

    /// The device that owns these pools.
    fn device(self) -> Option<c_int> {
        (self.location == DEVICE.0 && !self.is_managed).then_some(self.id)
    }
}

impl State {
    /// The place in the arguments of a call.
    fn place_of(&self, location: Out<CUmemLocation>, kind: CUmemAllocationType) -> Answer<Place> {
        let location = location_parts(location.as_input().read()?);
        Place::find(self, kind, location)
    }

    fn default_at(&mut self, place: Place) -> Answer<PoolId> {
        if let Some(device) = place.device() {
            return self.default_pool(device);
        }
        if let Some(id) = self.default_at.get(&place) {
            return Ok(*id);
        }
        let properties = Properties {
            kind: if place.is_managed { MANAGED } else { PINNED },
            location: (CUmemLocationType(place.location), place.id),
            ..Properties::of_device(0)
        };
        let id = self.add_pool(properties, true)?;
        self.default_at.insert(place, id);
        Ok(id)
    }

    fn current_at(&mut self, place: Place) -> Answer<PoolId> {
        if let Some(device) = place.device() {
            return self.current_pool(device);
        }
        match self.current_at.get(&place) {
            Some(id) => Ok(*id),
            None => self.default_at(place),
        }
    }

    /// The place in a pool's own properties.
    fn place_of_pool(&mut self, pool: CUmemoryPool) -> Answer<Place> {
        let properties = self.pool(pool)?.properties;
        Place::find(self, properties.kind, properties.location)
    }

    /// Makes a pool current for its place.
    pub(super) fn set_current(&mut self, pool: CUmemoryPool) -> Answer {
        let place = self.place_of_pool(pool)?;
        let id = from_handle(pool);
        match place.device() {
            Some(device) => {
                let device = self.ordinal(device)?;
                self.devices[device].current_pool = Some(id);
            }
            None => {
                self.current_at.insert(place, id);
            }
        }
        Ok(())
    }
}

exports! {
    plain fn cuMemGetDefaultMemPool(
        _, out: Out<CUmemoryPool>, location: Out<CUmemLocation>, kind: CUmemAllocationType
    ) {
        out.required()?;
        let mut state = state()?;
        let place = state.place_of(location, kind)?;
        out.write(to_handle(state.default_at(place)?))
    }

    plain fn cuMemGetMemPool(
        _, out: Out<CUmemoryPool>, location: Out<CUmemLocation>, kind: CUmemAllocationType
    ) {
        out.required()?;
        let mut state = state()?;
        let place = state.place_of(location, kind)?;
        out.write(to_handle(state.current_at(place)?))
    }

    plain fn cuMemSetMemPool(
        _, location: Out<CUmemLocation>, kind: CUmemAllocationType, pool: CUmemoryPool
    ) {
        let mut state = state()?;
        let place = state.place_of(location, kind)?;
        if state.place_of_pool(pool) != Ok(place) {
            return Err(INVALID_VALUE);
        }
        state.refuse_while_recording()?;
        state.set_current(pool)
    }
}
