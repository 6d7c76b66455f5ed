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
    /// What a device may do here, as the pool says. Measured: a managed pool says that nobody may
    /// do anything, until somebody sets it.
    pub(crate) fn access_of(&self, device: usize) -> u32 {
        if self.device == Some(device) {
            return READWRITE;
        }
        self.access.get(&device).copied().unwrap_or(NONE)
    }

    /// Whether a device reaches the memory.
    pub(crate) fn is_open_to(&self, device: usize) -> bool {
        self.properties.is_managed() || self.access_of(device) != NONE
    }
}

/// The device of one entry of a request; none in one for the host, which pools of host or managed
/// memory take and ignore.
fn device_of(state: &State, has_host: bool, wish: &CUmemAccessDesc) -> Answer<Option<usize>> {
    let (kind, id): (_, c_int) = location_parts(wish.location);
    match kind {
        CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => state.ordinal(id).map(Some),
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST
        | CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA
            if has_host =>
        {
            Ok(None)
        }
        _ => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
    }
}

/// The flags of one entry of a request, if that device may have them.
fn flags_of(
    state: &State,
    owner: Option<usize>,
    device: Option<usize>,
    wish: &CUmemAccessDesc,
) -> Answer<u32> {
    let flags = wish.flags.0;
    if ![NONE, READ, READWRITE].contains(&flags) {
        return Err(INVALID_VALUE);
    }
    if owner.is_some() && owner == device && flags == NONE {
        // Measured: the owner's access cannot be taken away.
        return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
    }
    if flags == READ {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    if let (Some(owner), Some(device)) = (owner, device)
        && owner != device
        && !state.are_peers(owner, device)
    {
        return Err(CUresult::CUDA_ERROR_INVALID_DEVICE);
    }
    Ok(flags)
}

exports! {
    plain fn cuMemPoolSetAccess(
        _, pool: CUmemoryPool, wishes: In<CUmemAccessDesc>, count: usize
    ) {
        let mut state = state()?;
        let of = state.pool(pool)?;
        let (owner, has_host) = (of.device, of.device.is_none());
        let wishes = wishes.required()?.read_all(count)?;
        // The whole list is checked before any of it counts, all devices first.
        let devices: Vec<Option<usize>> = wishes
            .iter()
            .map(|wish| device_of(&state, has_host, wish))
            .collect::<Answer<_>>()?;
        let wishes: Vec<(Option<usize>, u32)> = devices
            .iter()
            .zip(&wishes)
            .map(|(device, wish)| Ok((*device, flags_of(&state, owner, *device, wish)?)))
            .collect::<Answer<_>>()?;
        let pool = state.pool(pool)?;
        let wishes = wishes.into_iter();
        pool.access
            .extend(wishes.filter_map(|(device, flags)| Some((device?, flags))));
        Ok(())
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
                state.pool(pool)?.access_of(device)
            }
            CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST
            | CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA => {
                if state.pool(pool)?.is_host() { READWRITE } else { NONE }
            }
            _ => return Err(INVALID_VALUE),
        };
        out.write(CUmemAccess_flags(flags))
    }
}
