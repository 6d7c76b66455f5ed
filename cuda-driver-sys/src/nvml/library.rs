//! Finding and opening NVML.

use super::NvmlTable;
use crate::AttemptFailure;
use crate::opening::library;

/// The environment variable that names the library to open instead of the usual ones.
///
/// Ignored in a process that runs with more rights than its caller (set-user-id and the like).
pub const NVML_LIBRARY_VARIABLE: &str = "CUDA_DRIVER_SYS_NVML_LIBRARY";

/// Where NVML is looked for, in this order, after [`NVML_LIBRARY_VARIABLE`].
#[cfg(not(windows))]
const CANDIDATES: &[&str] = &[
    // Images of containers often lack the name without a version.
    "libnvidia-ml.so.1",
    "libnvidia-ml.so",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
];
#[cfg(windows)]
const CANDIDATES: &[&str] = &[
    "nvml.dll",
    // Where older drivers put it, which is on no search path.
    "C:\\Program Files\\NVIDIA Corporation\\NVSMI\\nvml.dll",
];

library! {
    /// An open NVML library and the table of its functions. Stays open for the life of the process.
    struct NvmlLibrary of NvmlTable;

    /// No NVML library could be opened; lists everything that was tried.
    struct NvmlLoadError;

    /// Opens the NVML library of this machine, once: later calls return the same library or the same
    /// failure.
    ///
    /// Does not call `nvmlInit`.
    ///
    /// # Errors
    ///
    /// [`NvmlLoadError`] lists every candidate with its reason.
    fn load;

    name "NVML library", variable NVML_LIBRARY_VARIABLE, usual CANDIDATES, judge judge,
    advice ". It comes with the NVIDIA driver; in a container, let the runtime pass it in (driver \
            capability \"utility\"), or set {NVML_LIBRARY_VARIABLE} to the library's path"
}

fn judge(table: &NvmlTable) -> Result<(), AttemptFailure> {
    let found = table.nvmlInit_v2.map(|_| ());
    found.ok_or(AttemptFailure::NotNvml)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(not(miri))] // Miri does not open libraries.
    fn the_failure_lists_everything_that_was_tried() {
        let error =
            open_any(["/nowhere/a.so".into(), "/nowhere/b.so".into()]).expect_err("neither exists");
        assert_eq!(error.attempts().len(), 2);
        let text = error.to_string();
        assert_eq!(format!("{error:?}"), text);
        let structure = format!("{error:#?}");
        assert!(structure.starts_with("NvmlLoadError {"), "{structure}");
        for part in [
            "/nowhere/a.so",
            "/nowhere/b.so",
            NVML_LIBRARY_VARIABLE,
            "NVML",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn a_library_that_is_not_nvml_is_told_apart() {
        let error = open_any(["libc.so.6".into()]).expect_err("the C library is not NVML");
        assert!(matches!(
            error.attempts()[0].reason,
            AttemptFailure::NotNvml
        ));
        assert!(error.to_string().contains("nvmlInit_v2"), "{error}");
    }
}
