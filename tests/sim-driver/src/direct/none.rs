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
