//! Failures to attach to a tool of NVTX.

use cuda_driver_sys::AttemptFailure;
use cuda_driver_sys::nvtx::NvtxLoadError;

use super::ErrorKind;

pub(super) fn kind_of(error: &NvtxLoadError) -> ErrorKind {
    match error.attempt().reason {
        AttemptFailure::Open(_) => ErrorKind::NotFound,
        _ => ErrorKind::NotSupported,
    }
}
