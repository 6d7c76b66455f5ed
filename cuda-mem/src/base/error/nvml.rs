//! Failures of NVML.

use cuda_driver_sys::nvml::nvmlReturn_t;

use super::{Cause, Error, ErrorKind};

impl Error {
    pub(crate) fn nvml(function: &'static str, code: nvmlReturn_t) -> Self {
        Self::from(Cause::Nvml {
            function,
            code,
            asked: None,
        })
    }

    pub(crate) fn nvml_lacks(function: &'static str) -> Self {
        Self::from(Cause::NvmlLacks(function))
    }

    #[cold]
    pub(crate) fn nvml_forked() -> Self {
        Self::from(Cause::NvmlForked)
    }

    /// NVML's own result code, if NVML was called.
    #[must_use]
    pub fn nvml_code(&self) -> Option<nvmlReturn_t> {
        match self.cause() {
            Cause::Nvml { code, .. } => Some(*code),
            _ => None,
        }
    }
}

pub(super) fn kind_of_nvml(code: nvmlReturn_t) -> ErrorKind {
    match code {
        nvmlReturn_t::NVML_ERROR_UNINITIALIZED => ErrorKind::NotInitialized,
        nvmlReturn_t::NVML_ERROR_INVALID_ARGUMENT => ErrorKind::InvalidValue,
        nvmlReturn_t::NVML_ERROR_NOT_SUPPORTED
        | nvmlReturn_t::NVML_ERROR_ARGUMENT_VERSION_MISMATCH => ErrorKind::NotSupported,
        nvmlReturn_t::NVML_ERROR_NO_PERMISSION => ErrorKind::NotPermitted,
        nvmlReturn_t::NVML_ERROR_NOT_FOUND | nvmlReturn_t::NVML_ERROR_GPU_NOT_FOUND => {
            ErrorKind::InvalidDevice
        }
        nvmlReturn_t::NVML_ERROR_DRIVER_NOT_LOADED => ErrorKind::DriverMissing,
        nvmlReturn_t::NVML_ERROR_LIBRARY_NOT_FOUND => ErrorKind::NvmlMissing,
        nvmlReturn_t::NVML_ERROR_FUNCTION_NOT_FOUND => ErrorKind::SymbolMissing,
        nvmlReturn_t::NVML_ERROR_GPU_IS_LOST | nvmlReturn_t::NVML_ERROR_RESET_REQUIRED => {
            ErrorKind::DeviceFault
        }
        _ => ErrorKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_nvml_says_function_code_and_request() {
        let error = Error::nvml(
            "nvmlDeviceGetHandleByUUID",
            nvmlReturn_t::NVML_ERROR_NOT_FOUND,
        )
        .asked(|| "GPU-1".to_owned());
        assert_eq!(error.kind(), ErrorKind::InvalidDevice);
        assert_eq!(error.function(), Some("nvmlDeviceGetHandleByUUID"));
        assert_eq!(error.nvml_code(), Some(nvmlReturn_t(6)));
        assert_eq!(error.code(), None, "no code of the driver");
        let text = error.to_string();
        assert!(text.contains("(6)") && text.contains("GPU-1"), "{text}");
    }

    #[test]
    fn an_unknown_code_of_nvml_is_kept() {
        let error = Error::nvml("nvmlInit_v2", nvmlReturn_t(54321));
        assert_eq!(error.kind(), ErrorKind::Other);
        assert_eq!(error.nvml_code(), Some(nvmlReturn_t(54321)));
        assert!(error.to_string().contains("54321"), "{error}");
    }

    #[test]
    fn what_the_library_lacks_is_named() {
        let error = Error::nvml_lacks("nvmlDeviceGetMigMode");
        assert_eq!(error.kind(), ErrorKind::SymbolMissing);
        assert!(
            error.to_string().contains("nvmlDeviceGetMigMode"),
            "{error}"
        );
    }
}
