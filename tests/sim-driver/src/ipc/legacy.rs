//! Legacy sharing without pools: only enough of it to report that pool memory cannot be shared that way.

use std::ffi::{c_char, c_uint};

use cuda_driver_sys::{CUdeviceptr, CUipcMemHandle, CUresult};

use crate::alloc::Kind;
use crate::export::{Answer, INVALID_VALUE, Out, exports};
use crate::state::{State, state};

const MAGIC: [u8; 4] = *b"simm";

impl State {
    /// Sharing needs a current context and a machine that supports it.
    pub(super) fn check_legacy_sharing(&self) -> Answer {
        self.current()?;
        if self.configuration.has_legacy_sharing() {
            Ok(())
        } else {
            Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
        }
    }
}

exports! {
    plain fn cuIpcGetMemHandle(_, out: Out<CUipcMemHandle>, address: CUdeviceptr) {
        out.required()?;
        let state = state()?;
        state.check_legacy_sharing()?;
        let allocation = state.allocation(address);
        // A guess for variables, of which the driver says that they cannot be shared.
        let is_shareable = allocation.is_some_and(|(_, found)| {
            found.kind == Kind::Device && found.freed.is_none() && !found.is_variable
        });
        if !is_shareable {
            return Err(INVALID_VALUE);
        }
        let mut handle = CUipcMemHandle::default();
        let bytes = MAGIC.into_iter().chain(std::process::id().to_le_bytes());
        for (place, byte) in handle.reserved.iter_mut().zip(bytes) {
            *place = byte as c_char;
        }
        out.write(handle)
    }

    plain fn cuIpcOpenMemHandle_v2(
        _, out: Out<CUdeviceptr>, handle: CUipcMemHandle, _flags: c_uint
    ) {
        out.required()?;
        state()?.current()?;
        let is_ours = handle.reserved.iter().zip(MAGIC).all(|(a, b)| *a == b as c_char);
        let own = std::process::id().to_le_bytes().map(|byte| byte as c_char);
        Err(if !is_ours {
            INVALID_VALUE
        } else if handle.reserved[4..8] == own {
            CUresult::CUDA_ERROR_INVALID_CONTEXT
        } else {
            CUresult::CUDA_ERROR_NOT_SUPPORTED
        })
    }
}
