//! Which devices may touch the memory of a pool.

use std::ffi::c_int;

use cuda_driver_sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemLocation, CUmemLocationType, CUmemoryPool, CUresult,
    location_parts,
};

use super::Pool;
use crate::export::{Answer, INVALID_VALUE, In, Out, exports};
use crate::state::{State, state};

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

/// One entry of a request, as device and flags.
fn check(state: &State, owner: Option<usize>, wish: &CUmemAccessDesc) -> Answer<(usize, u32)> {
    let (kind, id): (_, c_int) = location_parts(wish.location);
    let flags = wish.flags.0;
    if kind != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
        return Err(INVALID_VALUE);
    }
    if ![NONE, READ, READWRITE].contains(&flags) {
        return Err(INVALID_VALUE);
    }
    let device = state.ordinal(id)?;
    if owner == Some(device) {
        return match flags {
            // Measured: the owner's access cannot be taken away.
            NONE => Err(CUresult::CUDA_ERROR_INVALID_DEVICE),
            READ => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
            _ => Ok((device, flags)),
        };
    }
    if flags == READ {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    if owner.is_some() && !state.knobs.peers {
        return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
    }
    Ok((device, flags))
}

exports! {
    plain fn cuMemPoolSetAccess(
        _, pool: CUmemoryPool, wishes: In<CUmemAccessDesc>, count: usize
    ) {
        let mut state = state()?;
        let owner = state.pool(pool)?.device;
        let wishes = wishes.read_all(count)?;
        // The whole list is checked before any of it counts.
        let wishes: Vec<(usize, u32)> = wishes
            .iter()
            .map(|wish| check(&state, owner, wish))
            .collect::<Answer<_>>()?;
        let pool = state.pool(pool)?;
        pool.access.extend(wishes);
        Ok(())
    }

    plain fn cuMemPoolGetAccess(
        _, out: Out<CUmemAccess_flags>, pool: CUmemoryPool, location: Out<CUmemLocation>
    ) {
        out.required()?;
        let (kind, id) = location_parts(location.as_input().read()?);
        if kind != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
            return Err(INVALID_VALUE);
        }
        let mut state = state()?;
        let device = state.ordinal(id)?;
        let flags = state.pool(pool)?.access_of(device);
        out.write(CUmemAccess_flags(flags))
    }
}
