//! Creating and destroying pools, and a device's default and current pool.

use std::ffi::c_int;

use cuda_driver_sys::{
    CUmemAllocationType, CUmemLocation, CUmemLocationType, CUmemPoolProps, CUmemoryPool, CUresult,
    location_parts,
};

use super::{PoolId, supported};
use crate::export::{Answer, INVALID_VALUE, In, Out, exports};
use crate::state::{State, from_handle, state, to_handle};
use crate::system::SHARED_HANDLE;

/// The requested properties of a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    pub(crate) kind: CUmemAllocationType,
    pub(crate) handle_types: u32,
    pub(crate) location: (CUmemLocationType, c_int),
    pub(crate) max_size: u64,
    pub(crate) usage: u16,
}

pub(super) const DEVICE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
pub(super) const HOST: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST;
pub(super) const HOST_NUMA: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA;
const HOST_NUMA_CURRENT: CUmemLocationType =
    CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
pub(super) const NONE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_NONE;
pub(super) const PINNED: CUmemAllocationType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
pub(super) const MANAGED: CUmemAllocationType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_MANAGED;

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

    /// Whether the memory is managed, and at no place to begin with.
    pub(crate) fn is_managed_anywhere(&self) -> bool {
        self.is_managed() && self.location.0 == NONE
    }

    /// Whether the memory is on the host.
    pub(super) fn is_host(&self) -> bool {
        [HOST, HOST_NUMA].contains(&self.location.0) && !self.is_managed()
    }

    /// The device that provides the memory.
    pub(super) fn device(&self) -> Option<usize> {
        let (kind, id) = self.location;
        let id = usize::try_from(id).ok();
        id.filter(|_| kind == DEVICE && !self.is_managed())
    }

    /// As measured, or as documented where not measured.
    fn check(props: &CUmemPoolProps, state: &State) -> Answer<Self> {
        let version = state.configuration.version;
        let (kind, id) = location_parts(props.location);
        let types = props.handleTypes.0;
        // Managed pools accept no optional properties; this is checked before the location.
        let is_managed = props.allocType == MANAGED && version >= 13000;
        if is_managed && (types != 0 || props.maxSize != 0 || props.usage != 0) {
            return Err(INVALID_VALUE);
        }
        let known = [NONE, DEVICE, HOST, HOST_NUMA, HOST_NUMA_CURRENT].contains(&kind);
        if is_managed && !known {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        // Bytes unknown to the simulated version must be zero.
        let too_new = props.reserved.iter().any(|byte| *byte != 0)
            || props.maxSize != 0 && version < 12020
            || props.usage != 0 && version < 12060
            || props.gpuDirectRDMACapable != 0 && version < 13040;
        let is_there = match kind {
            DEVICE => state.ordinal(id).is_ok(),
            HOST_NUMA => id == 0,
            _ => true,
        };
        let allowed = match props.allocType {
            PINNED => match kind {
                DEVICE => true,
                HOST_NUMA => version >= 12020,
                HOST => version >= 13000 && types == 0,
                _ => false,
            },
            MANAGED => is_managed,
            _ => false,
        };
        // Handles of another system are refused here, whatever the mask.
        let unshareable =
            types & !(state.configuration.shared_handle_types() & (SHARED_HANDLE | 8)) != 0
                || types & 8 != 0 && version < 12030;
        // Documented: Windows has to be told who may open its handles.
        let is_open =
            cfg!(windows) && types & SHARED_HANDLE != 0 && props.win32SecurityAttributes.is_null();
        if too_new || !allowed || !is_there || unshareable || is_open {
            return Err(INVALID_VALUE);
        }
        state.check_kind(props.allocType, kind)?;
        if types & state.configuration.broken_handle_types != 0 {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
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
    /// NOT_SUPPORTED for kinds of pools that the simulated machine lacks.
    pub(super) fn check_kind(
        &self,
        kind: CUmemAllocationType,
        location: CUmemLocationType,
    ) -> Answer {
        let is_there = match location {
            _ if kind == MANAGED => self.configuration.has_concurrent_managed_access(),
            HOST => self.configuration.host_pools,
            HOST_NUMA => self.configuration.has_numa_pools(),
            _ => true,
        };
        supported(is_there)
    }

    /// NOT_SUPPORTED where no pools can be created. A nonexistent device is refused as such later, unless no device has
    /// pools.
    fn check_pools_at(&self, location: CUmemLocation) -> Answer {
        match location_parts(location) {
            (DEVICE, id) => match self.ordinal(id) {
                Ok(device) => self.check_pools(device),
                Err(_) => self.check_any_pools(),
            },
            _ => self.check_any_pools(),
        }
    }
}

impl State {
    fn destroy_pool(&mut self, handle: CUmemoryPool) -> Answer {
        if let Some(answer) = self.end_import(handle) {
            return answer;
        }
        let pool = self.pool(handle)?;
        if pool.is_default {
            return Err(INVALID_VALUE);
        }
        self.refuse_while_recording()?;
        let pool = self.pool(handle)?;
        pool.is_destroyed = true;
        let is_broken = pool
            .mapping
            .backing()
            .is_some_and(|backing| backing.is_broken);
        let outstanding = pool.space.outstanding();
        let users = pool.users.clone();
        let id: PoolId = from_handle(handle);
        if outstanding > 0 {
            // Documented as valid. An H200 returns SUCCESS, and crashes some pools later.
            self.reports.add(format!(
                "early end: pool {id:#x} is destroyed with {outstanding} blocks alive or to be freed"
            ));
        }
        if is_broken {
            // Not documented. An H200 ends the process.
            self.reports.add(format!(
                "end after a failed export: pool {id:#x} is destroyed, whose first export found no free descriptor"
            ));
        }
        if self.waited_for.iter().any(|stream| users.contains(stream)) {
            // Not documented. An H100 returns SUCCESS, and the waiting thread crashes or hangs.
            self.reports.add(format!(
                "end beside a wait: pool {id:#x} is destroyed while a thread waits for a stream that used it"
            ));
        }
        for device in &mut self.devices {
            if device.current_pool == Some(id) {
                device.current_pool = None;
            }
        }
        self.current_at.retain(|_, current| *current != id);
        self.end_if_empty(id);
        Ok(())
    }
}

/// Measured: some functions return INVALID_VALUE for a nonexistent device.
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
        state.check_pools_at(props.location)?;
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
        state.check_pools(device)?;
        // Measured: a managed pool that prefers the device is also accepted, and becomes the current one for managed
        // memory there.
        let (kind, id) = state.pool(pool)?.properties.location;
        if kind != DEVICE || usize::try_from(id) != Ok(device) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        state.refuse_while_recording()?;
        state.set_current(pool)
    }
}
