//! Limits of contexts, and flags of primary contexts.

use std::ffi::{c_int, c_uint};

use cuda_driver_sys::{CUfunc_cache, CUlimit, CUresult, CUsharedconfig};

use crate::export::{Answer, INVALID_VALUE, Out, exports};
use crate::state::{State, state};

/// Bits of the flags that choose how the host waits: one of them, or none.
const SCHEDULING: c_uint = 7;

/// Measured: contexts map host memory, and cannot be asked not to.
pub(crate) const MAP_HOST: c_uint = 8;

/// All bits that a primary context may be given. The newest two are of CUDA 12.1.
const KNOWN: c_uint = 0xff & !MAP_HOST;

/// A share of the cache that is set aside: its step, and the most there is.
const CACHE_STEP: usize = 3_276_800;
const CACHE_MOST: usize = 32_768_000;

/// Values that a context starts with, by number of the limit, measured on an H100.
const AT_FIRST: [usize; 9] = [1024, 8_650_752, 8 << 20, 0, 2048, 64, 9_830_400, 232_448, 0];

/// The limits and preferences of one context.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    values: [usize; 9],
    cache: CUfunc_cache,
    banks: CUsharedconfig,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            values: AT_FIRST,
            cache: CUfunc_cache::CU_FUNC_CACHE_PREFER_NONE,
            banks: CUsharedconfig::CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE,
        }
    }
}

impl Limits {
    fn place(&mut self, limit: CUlimit) -> Answer<&mut usize> {
        match limit {
            // Measured: devices of compute capability 9.0 lack it.
            CUlimit::CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH => None,
            limit => self.values.get_mut(limit.0 as usize),
        }
        .ok_or(CUresult::CUDA_ERROR_UNSUPPORTED_LIMIT)
    }

    /// Measured: most values are rounded, or replaced by the least or most there is.
    fn set(&mut self, limit: CUlimit, wanted: usize) -> Answer {
        let place = self.place(limit)?;
        *place = match limit {
            // 256 KiB are accepted, and 512 KiB are not.
            CUlimit::CU_LIMIT_STACK_SIZE if wanted <= 256 << 10 => wanted.next_multiple_of(16),
            CUlimit::CU_LIMIT_PRINTF_FIFO_SIZE => wanted.clamp(512 << 10, 2 << 30),
            // The most depends on the device's memory. A guess: a fifth of that of an H100.
            CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE => wanted.clamp(4 << 20, 16 << 30),
            CUlimit::CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT => wanted.clamp(32, 599_186),
            // Documented: a hint of up to 128 bytes.
            CUlimit::CU_LIMIT_MAX_L2_FETCH_GRANULARITY if wanted <= 128 => wanted,
            CUlimit::CU_LIMIT_PERSISTING_L2_CACHE_SIZE if wanted <= CACHE_MOST => {
                wanted.next_multiple_of(CACHE_STEP)
            }
            CUlimit::CU_LIMIT_SHMEM_SIZE | CUlimit::CU_LIMIT_CIG_ENABLED => {
                return Err(CUresult::CUDA_ERROR_NOT_PERMITTED);
            }
            _ => return Err(INVALID_VALUE),
        };
        Ok(())
    }
}

impl State {
    fn limits_of_current(&mut self) -> Answer<&mut Limits> {
        let id = self.current()?;
        let context = self.contexts.get_mut(&id);
        let context = context.ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
        Ok(&mut context.limits)
    }

    /// Flags of a primary context, which may exist already. They last until it ends.
    fn set_primary_flags(&mut self, device: c_int, flags: c_uint) -> Answer {
        let ordinal = self.ordinal(device)?;
        if flags & !KNOWN != 0 || (flags & SCHEDULING).count_ones() > 1 {
            return Err(INVALID_VALUE);
        }
        self.devices[ordinal].primary_flags = flags;
        if let Some(id) = self.devices[ordinal].primary
            && let Some(context) = self.contexts.get_mut(&id)
        {
            context.flags = flags | MAP_HOST;
        }
        Ok(())
    }
}

/// A preference that there is.
pub(crate) fn check_cache(wanted: CUfunc_cache) -> Answer {
    if wanted.0 > CUfunc_cache::CU_FUNC_CACHE_PREFER_EQUAL.0 {
        return Err(INVALID_VALUE);
    }
    Ok(())
}

/// A size of banks that there is.
pub(crate) fn check_banks(wanted: CUsharedconfig) -> Answer {
    if wanted.0 > CUsharedconfig::CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE.0 {
        return Err(INVALID_VALUE);
    }
    Ok(())
}

exports! {
    plain fn cuCtxGetCacheConfig(_, out: Out<CUfunc_cache>) {
        out.required()?;
        let cache = state()?.limits_of_current()?.cache;
        out.write(cache)
    }

    plain fn cuCtxSetCacheConfig(_, wanted: CUfunc_cache) {
        let mut state = state()?;
        let limits = state.limits_of_current()?;
        check_cache(wanted)?;
        limits.cache = wanted;
        Ok(())
    }

    plain fn cuCtxGetSharedMemConfig(_, out: Out<CUsharedconfig>) {
        out.required()?;
        let banks = state()?.limits_of_current()?.banks;
        out.write(banks)
    }

    plain fn cuCtxSetSharedMemConfig(_, wanted: CUsharedconfig) {
        state()?.limits_of_current()?;
        // The banks of these devices are fixed.
        check_banks(wanted)
    }

    plain fn cuCtxResetPersistingL2Cache(_) {
        state()?.limits_of_current().map(|_| ())
    }

    plain fn cuCtxGetLimit(_, out: Out<usize>, limit: CUlimit) {
        out.required()?;
        let value = *state()?.limits_of_current()?.place(limit)?;
        out.write(value)
    }

    plain fn cuCtxSetLimit(_, limit: CUlimit, value: usize) {
        state()?.limits_of_current()?.set(limit, value)
    }

    plain fn cuDevicePrimaryCtxSetFlags_v2(_, device: c_int, flags: c_uint) {
        state()?.set_primary_flags(device, flags)
    }

    plain fn cuDevicePrimaryCtxSetFlags(_, device: c_int, flags: c_uint) {
        let mut state = state()?;
        let primary = state.device(device)?.primary;
        // Measured: the older function refuses a context that exists.
        if primary.is_some_and(|id| state.contexts.contains_key(&id)) {
            return Err(CUresult::CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE);
        }
        state.set_primary_flags(device, flags)
    }
}
