//! Finding and opening NVML.

use std::fmt;
use std::path::{Path, PathBuf};

use once_cell::sync::OnceCell;

use super::NvmlTable;
use crate::library::{
    Attempt, AttemptFailure, address, candidates, open_first, open_library, requested,
    write_attempts,
};

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

/// An open NVML library and the table of its functions. Stays open for the life of the process.
pub struct NvmlLibrary {
    path: PathBuf,
    table: NvmlTable,
}

impl NvmlLibrary {
    /// The functions of this library.
    #[must_use]
    pub fn table(&self) -> &NvmlTable {
        &self.table
    }

    /// The name or path by which it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Debug for NvmlLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NvmlLibrary")
            .field("path", &self.path)
            .field("table", &self.table)
            .finish()
    }
}

/// No NVML library could be opened; lists everything that was tried.
#[derive(Clone, Debug)]
pub struct NvmlLoadError {
    attempts: Vec<Attempt>,
}

impl NvmlLoadError {
    /// What was tried, in order, and why each failed.
    #[must_use]
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }
}

impl fmt::Display for NvmlLoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no NVML library could be opened; tried ")?;
        write_attempts(f, &self.attempts)?;
        write!(
            f,
            ". It comes with the NVIDIA driver; in a container, let the runtime pass it in (driver \
             capability \"utility\"), or set {NVML_LIBRARY_VARIABLE} to the library's path"
        )
    }
}

// No source: the text has the loader's words for every attempt, and there is no one cause.
impl std::error::Error for NvmlLoadError {}

/// Opens the NVML library of this machine, once: later calls return the same library or the same
/// failure.
///
/// Does not call `nvmlInit`.
///
/// # Errors
///
/// [`NvmlLoadError`] lists every candidate with its reason.
pub fn load() -> Result<&'static NvmlLibrary, NvmlLoadError> {
    static LIBRARY: OnceCell<Result<NvmlLibrary, NvmlLoadError>> = OnceCell::new();
    LIBRARY
        .get_or_init(|| open_any(candidates(requested(NVML_LIBRARY_VARIABLE), CANDIDATES)))
        .as_ref()
        .map_err(Clone::clone)
}

/// Opens the library at `path`, and only that.
///
/// Every call opens it anew and keeps it open for the life of the process; a caller that needs it
/// in many places should keep the reference.
///
/// # Safety
///
/// The file's initialisers run, and its functions must have the signatures of NVML.
///
/// # Errors
///
/// [`NvmlLoadError`] with this one attempt.
pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<&'static NvmlLibrary, NvmlLoadError> {
    open_any([path.as_ref().to_path_buf()]).map(|library| &*Box::leak(Box::new(library)))
}

fn open_any(candidates: impl IntoIterator<Item = PathBuf>) -> Result<NvmlLibrary, NvmlLoadError> {
    open_first(candidates, open).map_err(|attempts| NvmlLoadError { attempts })
}

fn open(path: PathBuf) -> Result<NvmlLibrary, AttemptFailure> {
    // SAFETY: the names are NVML's, or the caller of `load_from` or whoever set the variable vouches
    // for the file.
    let library = unsafe { open_library(&path) }?;
    // SAFETY: what NVML exports under these names has the signatures of its reference, which names
    // the ABI by the symbol; the library is never closed (below).
    let table = unsafe { NvmlTable::fill(|name| address(&library, name)) };
    if table.nvmlInit_v2.is_none() {
        return Err(AttemptFailure::NotNvml);
    }
    std::mem::forget(library);
    Ok(NvmlLibrary { path, table })
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
