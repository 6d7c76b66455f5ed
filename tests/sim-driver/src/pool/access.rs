//! Which devices may touch the memory of a pool.

use std::ffi::c_int;

use cuda_driver_sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemLocation, CUmemLocationType, CUmemoryPool, CUresult,
    location_parts,
};

use super::Pool;
use crate::export::{Answer, INVALID_VALUE, In, Out, exports};
use crate::ipc::Imported;
use crate::state::{State, from_handle, state};

const NONE: u32 = 0;
const READ: u32 = 1;
const READWRITE: u32 = 3;

impl Pool {
    /// What a device may do here.
    pub(crate) fn access_of(&self, device: usize) -> u32 {
        if self.device == Some(device) || self.properties.is_managed() {
            return READWRITE;
        }
        self.access.get(&device).copied().unwrap_or(NONE)
    }
}

/// Of pools that were made here, and of imported ones.
impl State {
    fn owner_of(&mut self, pool: CUmemoryPool) -> Answer<Option<usize>> {
        match self.sharing.imported.get(&from_handle(pool)) {
            Some(imported) => Ok(imported.device),
            None => Ok(self.pool(pool)?.device),
        }
    }

    fn access_in(&mut self, pool: CUmemoryPool, device: usize) -> Answer<u32> {
        match self.sharing.imported.get(&from_handle(pool)) {
            Some(imported) => Ok(imported.access_of(device)),
            None => Ok(self.pool(pool)?.access_of(device)),
        }
    }

    fn grant(&mut self, pool: CUmemoryPool, wishes: Vec<(usize, u32)>) -> Answer {
        match self.sharing.imported.get_mut(&from_handle(pool)) {
            Some(imported) => imported.access.extend(wishes),
            None => self.pool(pool)?.access.extend(wishes),
        }
        Ok(())
    }
}

impl Imported {
    /// What a device may do here: the access of the exporter's devices is not inherited.
    pub(crate) fn access_of(&self, device: usize) -> u32 {
        if self.device == Some(device) {
            return READWRITE;
        }
        self.access.get(&device).copied().unwrap_or(NONE)
    }
}

/// The device of one entry of a request.
fn device_of(state: &State, wish: &CUmemAccessDesc) -> Answer<usize> {
    let (kind, id): (_, c_int) = location_parts(wish.location);
    if kind == CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
        state.ordinal(id)
    } else {
        Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
    }
}

/// The flags of one entry of a request, if that device may have them.
fn flags_of(
    state: &State,
    owner: Option<usize>,
    device: usize,
    wish: &CUmemAccessDesc,
) -> Answer<u32> {
    let flags = wish.flags.0;
    if ![NONE, READ, READWRITE].contains(&flags) {
        return Err(INVALID_VALUE);
    }
    if owner == Some(device) {
        return match flags {
            // Measured: the owner's access cannot be taken away.
            NONE => Err(CUresult::CUDA_ERROR_INVALID_DEVICE),
            READ => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
            _ => Ok(flags),
        };
    }
    if flags == READ {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    if owner.is_some() && !state.knobs.peers {
        return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
    }
    Ok(flags)
}

exports! {
    plain fn cuMemPoolSetAccess(
        _, pool: CUmemoryPool, wishes: In<CUmemAccessDesc>, count: usize
    ) {
        let mut state = state()?;
        let owner = state.owner_of(pool)?;
        let wishes = wishes.required()?.read_all(count)?;
        // The whole list is checked before any of it counts, all devices first.
        let devices: Vec<usize> = wishes
            .iter()
            .map(|wish| device_of(&state, wish))
            .collect::<Answer<_>>()?;
        let wishes: Vec<(usize, u32)> = devices
            .iter()
            .zip(&wishes)
            .map(|(device, wish)| Ok((*device, flags_of(&state, owner, *device, wish)?)))
            .collect::<Answer<_>>()?;
        state.grant(pool, wishes)
    }

    plain fn cuMemPoolGetAccess(
        _, out: Out<CUmemAccess_flags>, pool: CUmemoryPool, location: Out<CUmemLocation>
    ) {
        out.required()?;
        let (kind, id) = location_parts(location.as_input().read()?);
        let mut state = state()?;
        let flags = match kind {
            CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => {
                let device = state.ordinal(id).map_err(|_| INVALID_VALUE)?;
                state.access_in(pool, device)?
            }
            CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST
            | CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA => {
                state.owner_of(pool)?;
                NONE
            }
            _ => return Err(INVALID_VALUE),
        };
        out.write(CUmemAccess_flags(flags))
    }
}
