//! Device access to the memory of a pool.

use std::ffi::c_int;

use cuda_driver_sys::{
    CUmemAccess_flags, CUmemAccessDesc, CUmemLocation, CUmemLocationType, CUmemoryPool, CUresult,
    location_parts,
};

use super::Pool;
use crate::export::{Answer, INVALID_VALUE, In, Out, exports};
use crate::ipc::Imported;
use crate::state::{State, from_handle, state};

pub(super) const NONE: u32 = 0;
const READ: u32 = 1;
pub(super) const READWRITE: u32 = 3;

impl Pool {
    /// A device's access according to the pool. Measured: a managed pool reports no access until it is set.
    pub(crate) fn access_of(&self, device: usize) -> u32 {
        if self.device == Some(device) {
            return READWRITE;
        }
        self.access.get(&device).copied().unwrap_or(NONE)
    }

    /// Whether a device can access the memory.
    pub(crate) fn is_open_to(&self, device: usize) -> bool {
        self.properties.is_managed() || self.access_of(device) != NONE
    }
}

/// The kind of a pool, imported or not.
impl State {
    fn kind_of(&mut self, pool: CUmemoryPool) -> Answer<Of> {
        if let Some(imported) = self.sharing.imported.get(&from_handle(pool)) {
            return Ok(imported.device.map_or(Of::Host, Of::Device));
        }
        let asked = self.pool(pool)?;
        Ok(match asked.device {
            Some(device) => Of::Device(device),
            None if asked.is_host() => Of::Host,
            None => Of::Managed,
        })
    }
}

impl Imported {
    /// A device's access; that of the exporter's devices is not inherited.
    fn access_of(&self, device: usize) -> u32 {
        if self.device == Some(device) {
            return READWRITE;
        }
        self.access.get(&device).copied().unwrap_or(NONE)
    }

    pub(crate) fn is_open_to(&self, device: usize) -> bool {
        self.access_of(device) != NONE
    }
}

/// The accessor in an entry of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Device(usize),
    /// The host, with any number.
    Host,
    Nobody,
}

/// The kind of pool in a request, as far as results differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Device(usize),
    Host,
    Managed,
}

fn who(state: &State, of: Of, wish: &CUmemAccessDesc) -> Answer<Who> {
    let (kind, id): (_, c_int) = location_parts(wish.location);
    match (kind, of) {
        (CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, _) => state.ordinal(id).map(Who::Device),
        (_, Of::Device(_)) => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        (
            CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST
            | CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA,
            _,
        ) => Ok(Who::Host),
        _ => Ok(Who::Nobody),
    }
}

/// The flags of one entry of a request, if allowed for it. As measured, except for devices without peer access.
fn flags_of(state: &State, of: Of, who: Who, wish: &CUmemAccessDesc) -> Answer<u32> {
    let flags = wish.flags.0;
    match (of, who) {
        _ if ![NONE, READ, READWRITE].contains(&flags) => Err(INVALID_VALUE),
        // The owner's access cannot be revoked.
        (Of::Device(owner), Who::Device(device)) if owner == device && flags == NONE => {
            Err(CUresult::CUDA_ERROR_INVALID_DEVICE)
        }
        (Of::Host, Who::Host) if flags == NONE => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        _ if flags == READ => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        (_, Who::Nobody) => Err(INVALID_VALUE),
        (Of::Device(owner), Who::Device(device))
            if owner != device && !state.are_peers(owner, device) =>
        {
            Err(CUresult::CUDA_ERROR_INVALID_DEVICE)
        }
        _ => Ok(flags),
    }
}

exports! {
    plain fn cuMemPoolSetAccess(
        _, pool: CUmemoryPool, wishes: In<CUmemAccessDesc>, count: usize
    ) {
        let mut state = state()?;
        let of = state.kind_of(pool)?;
        let wishes = wishes.required()?.read_all(count)?;
        // The whole list is checked before any entry takes effect, all devices first.
        let named: Vec<Who> = wishes
            .iter()
            .map(|wish| who(&state, of, wish))
            .collect::<Answer<_>>()?;
        let wishes: Vec<(Who, u32)> = named
            .iter()
            .zip(&wishes)
            .map(|(who, wish)| Ok((*who, flags_of(&state, of, *who, wish)?)))
            .collect::<Answer<_>>()?;
        state.refuse_while_recording()?;
        if let Some(imported) = state.sharing.imported.get_mut(&from_handle(pool)) {
            for (who, flags) in wishes {
                if let Who::Device(device) = who {
                    imported.access.insert(device, flags);
                }
            }
            return Ok(());
        }
        let pool = state.pool(pool)?;
        for (who, flags) in wishes {
            match who {
                Who::Device(device) => {
                    pool.access.insert(device, flags);
                }
                Who::Host => pool.host_access = flags,
                Who::Nobody => {}
            }
        }
        Ok(())
    }

    plain fn cuMemPoolGetAccess(
        _, out: Out<CUmemAccess_flags>, pool: CUmemoryPool, location: Out<CUmemLocation>
    ) {
        out.required()?;
        let (kind, id) = location_parts(location.as_input().read()?);
        let mut state = state()?;
        state.refuse_while_recording()?;
        let flags = match kind {
            CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => {
                let device = state.ordinal(id).map_err(|_| INVALID_VALUE)?;
                match state.sharing.imported.get(&from_handle(pool)) {
                    Some(imported) => imported.access_of(device),
                    None => state.pool(pool)?.access_of(device),
                }
            }
            CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST
            | CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA => {
                // Measured for an imported pool of a device; for one of the host it is a guess.
                if state.sharing.imported.contains_key(&from_handle(pool)) {
                    NONE
                } else {
                    state.pool(pool)?.host_access
                }
            }
            _ => return Err(INVALID_VALUE),
        };
        out.write(CUmemAccess_flags(flags))
    }
}
