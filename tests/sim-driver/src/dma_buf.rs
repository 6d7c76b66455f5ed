//! Device memory exported as dma-bufs: descriptors for other hardware, and for the host if it can map them.

use std::ffi::{c_int, c_ulonglong};

use cuda_driver_sys::{
    CUdeviceptr, CUflushGPUDirectRDMAWritesScope_enum, CUflushGPUDirectRDMAWritesTarget_enum,
    CUmemRangeHandleType_enum, CUresult,
};
use cuda_sim_support::page::host_page;

use crate::export::{INVALID_VALUE, Value, exports};
use crate::state::state;

/// Requests access over PCIe even where there is a better path.
const OVER_PCIE: c_ulonglong = 1;

/// The first version that supports the flag.
const OVER_PCIE_SINCE: u32 = 12080;

exports! {
    plain fn cuMemGetHandleForAddressRange(
        _, out: Value, start: CUdeviceptr, len: usize, kind: CUmemRangeHandleType_enum,
        flags: c_ulonglong
    ) {
        out.required()?;
        if kind != CUmemRangeHandleType_enum::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD {
            return Err(INVALID_VALUE);
        }
        if !start.is_multiple_of(host_page()) || !(len as u64).is_multiple_of(host_page()) {
            return Err(INVALID_VALUE);
        }
        let mut state = state()?;
        // Measured.
        state.current()?;
        if !state.configuration.has_dma_buf() {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let over_pcie = flags == OVER_PCIE && state.configuration.version >= OVER_PCIE_SINCE;
        if flags != 0 && !over_pcie {
            return Err(INVALID_VALUE);
        }
        let descriptor = state.export_range(start, len as u64, over_pcie)?;
        drop(state);
        out.write::<c_int>(descriptor)
    }

    plain fn cuFlushGPUDirectRDMAWrites(
        _, target: CUflushGPUDirectRDMAWritesTarget_enum, scope: CUflushGPUDirectRDMAWritesScope_enum
    ) {
        // Measured: this check comes first. Host stores to simulated memory are visible at once.
        state()?.current()?;
        if target.0 != 0 || !matches!(scope.0, 100 | 200) {
            return Err(INVALID_VALUE);
        }
        Ok(())
    }
}
