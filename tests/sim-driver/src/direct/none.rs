//! Where third parties cannot map the simulated memory.

use std::ffi::c_int;

use cuda_driver_sys::CUresult;

use crate::export::Answer;
use crate::state::State;

impl State {
    /// Nothing there has descriptors.
    pub(crate) fn export_range(
        &mut self,
        _start: u64,
        _len: u64,
        _over_pcie: bool,
    ) -> Answer<c_int> {
        Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
    }
}

/// No range may be pinned.
#[unsafe(no_mangle)]
extern "C" fn simcuda_check_direct(_start: u64, _len: u64) -> CUresult {
    CUresult::CUDA_ERROR_NOT_SUPPORTED
}

/// No memory is in a file with a descriptor. Writes nothing.
#[unsafe(no_mangle)]
extern "C" fn simcuda_part(
    _start: u64,
    _len: u64,
    _descriptor: *mut c_int,
    _offset: *mut u64,
    _part_len: *mut u64,
) -> CUresult {
    CUresult::CUDA_ERROR_NOT_SUPPORTED
}
