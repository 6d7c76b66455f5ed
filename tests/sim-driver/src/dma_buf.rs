//! Device memory exported as dma-bufs: descriptors for other hardware, and for the host if it can map them.

use std::ffi::{c_int, c_ulonglong};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};

use cuda_driver_sys::{
    CUdeviceptr, CUflushGPUDirectRDMAWritesScope_enum, CUflushGPUDirectRDMAWritesTarget_enum,
    CUmemRangeHandleType_enum, CUresult,
};
use cuda_sim_support::page::host_page;

use crate::export::{Answer, INVALID_VALUE, Value, exports};
use crate::ipc::anonymous_file;
use crate::pieces::reopen;
use crate::state::{State, state};

/// Requests access over PCIe even where there is a better path.
const OVER_PCIE: c_ulonglong = 1;

/// The first version that supports the flag.
const OVER_PCIE_SINCE: u32 = 12080;

impl State {
    fn export_range(&mut self, start: u64, len: u64, flags: c_ulonglong) -> Answer<OwnedFd> {
        let not_supported = CUresult::CUDA_ERROR_NOT_SUPPORTED;
        if !self.knobs.dma_buf {
            return Err(not_supported);
        }
        let is_known = flags == 0 || flags == OVER_PCIE && self.knobs.version >= OVER_PCIE_SINCE;
        if !is_known {
            return Err(INVALID_VALUE);
        }
        let range = self.device_range(start, len).ok_or(INVALID_VALUE)?;
        if flags == OVER_PCIE && !self.knobs.dma_buf_pcie {
            return Err(not_supported);
        }
        if self.knobs.has_dma_buf_mmap() {
            return self.whole(start, len, range);
        }
        // An empty file as long as the range, and not readable, so that it cannot be mapped.
        let file = anonymous_file(c"cuda-sim dma-buf", len)?;
        reopen(file.as_raw_fd(), false)
    }
}

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
        let file = state.export_range(start, len as u64, flags)?;
        drop(state);
        out.write::<c_int>(file.into_raw_fd())
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
