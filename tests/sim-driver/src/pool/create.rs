//! Making and destroying pools, and a device's default and current pool.

use std::ffi::c_int;

use cuda_driver_sys::{
    CUmemAllocationType, CUmemLocationType, CUmemPoolProps, CUmemoryPool, CUresult, location_parts,
};

use super::PoolId;
use crate::export::{Answer, INVALID_VALUE, In, Out, exports};
use crate::state::{State, from_handle, state, to_handle};

/// What a pool was asked to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    pub(crate) kind: CUmemAllocationType,
    pub(crate) handle_types: u32,
    pub(crate) location: (CUmemLocationType, c_int),
    pub(crate) max_size: u64,
    pub(crate) usage: u16,
}

const DEVICE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
const HOST: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST;
const HOST_NUMA: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA;
const HOST_NUMA_CURRENT: CUmemLocationType =
    CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
const NONE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_NONE;
const PINNED: CUmemAllocationType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
const MANAGED: CUmemAllocationType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED;

impl Properties {
    /// Those of a default pool.
    pub(super) fn of_device(device: usize) -> Self {
        Self {
            kind: PINNED,
            handle_types: 0,
            location: (DEVICE, c_int::try_from(device).unwrap_or(0)),
            max_size: 0,
            usage: 0,
        }
    }

    pub(crate) fn is_managed(&self) -> bool {
        self.kind == MANAGED
    }

    /// The device that the memory comes from.
    pub(super) fn device(&self) -> Option<usize> {
        let (kind, id) = self.location;
        let id = usize::try_from(id).ok();
        id.filter(|_| kind == DEVICE && !self.is_managed())
    }

    /// As measured, and as documented for what was not.
    fn check(props: &CUmemPoolProps, state: &State) -> Answer<Self> {
        let version = state.knobs.version;
        let (kind, id) = location_parts(props.location);
        // Bytes that the simulated version does not know yet must be zero.
        let too_new = props.reserved.iter().any(|byte| *byte != 0)
            || props.maxSize != 0 && version < 12020
            || props.usage != 0 && version < 12060
            || props.gpuDirectRDMACapable != 0 && version < 13040;
        let is_device = kind == DEVICE && state.ordinal(id).is_ok();
        let allowed = match props.allocType {
            PINNED => match kind {
                DEVICE => is_device,
                HOST_NUMA => version >= 12020 && id == 0,
                HOST => version >= 13000 && props.handleTypes.0 == 0,
                _ => false,
            },
            MANAGED => {
                let known = [NONE, HOST, HOST_NUMA, HOST_NUMA_CURRENT].contains(&kind);
                version >= 13000 && props.maxSize == 0 && (is_device || known)
            }
            _ => false,
        };
        // WIN32 handles are refused here, whatever the mask says.
        let types = props.handleTypes.0;
        let unshareable =
            types & !(state.knobs.handle_types & 0b1001) != 0 || types & 8 != 0 && version < 12030;
        if too_new || !allowed || unshareable {
            return Err(INVALID_VALUE);
        }
        Ok(Self {
            kind: props.allocType,
            handle_types: types,
            location: (kind, id),
            max_size: props.maxSize as u64,
            usage: props.usage,
        })
    }
}

impl State {
    fn destroy_pool(&mut self, handle: CUmemoryPool) -> Answer {
        let pool = self.pool(handle)?;
        if pool.is_default {
            return Err(INVALID_VALUE);
        }
        pool.is_destroyed = true;
        let id: PoolId = from_handle(handle);
        for device in &mut self.devices {
            if device.current_pool == Some(id) {
                device.current_pool = None;
            }
        }
        self.end_if_empty(id);
        Ok(())
    }
}

/// Measured: some functions say INVALID_VALUE of a device that is not there.
fn unknown_device(code: CUresult) -> CUresult {
    match code {
        CUresult::CUDA_ERROR_INVALID_DEVICE => INVALID_VALUE,
        code => code,
    }
}

exports! {
    plain fn cuMemPoolCreate(_, out: Out<CUmemoryPool>, props: In<CUmemPoolProps>) {
        out.required()?;
        let props = props.read()?;
        let mut state = state()?;
        state.check_pools()?;
        state.refuse_while_recording()?;
        let properties = Properties::check(&props, &state)?;
        let id = state.add_pool(properties, false)?;
        out.write(to_handle(id))
    }

    release fn cuMemPoolDestroy(_, pool: CUmemoryPool) {
        state()?.destroy_pool(pool)
    }

    plain fn cuDeviceGetDefaultMemPool(_, out: Out<CUmemoryPool>, device: c_int) {
        out.required()?;
        out.write(to_handle(state()?.default_pool(device)?))
    }

    plain fn cuDeviceGetMemPool(_, out: Out<CUmemoryPool>, device: c_int) {
        out.required()?;
        let pool = state()?.current_pool(device).map_err(unknown_device)?;
        out.write(to_handle(pool))
    }

    plain fn cuDeviceSetMemPool(_, device: c_int, pool: CUmemoryPool) {
        let mut state = state()?;
        let device = state.ordinal(device).map_err(unknown_device)?;
        state.check_pools()?;
        if state.pool(pool)?.device != Some(device) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        state.devices[device].current_pool = Some(from_handle(pool));
        Ok(())
    }
}
