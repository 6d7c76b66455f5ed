//! Finding and opening the driver library.

use std::ffi::{CStr, OsString, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::Library;
use once_cell::sync::OnceCell;

use crate::{CUresult, DriverTable};

/// The environment variable that names the library to open instead of the usual ones.
///
/// Ignored in a process that runs with more rights than its caller (set-user-id and the like).
pub const LIBRARY_VARIABLE: &str = "CUDA_DRIVER_SYS_LIBRARY";

/// Where the driver is looked for, in this order, after [`LIBRARY_VARIABLE`].
#[cfg(not(windows))]
const CANDIDATES: &[&str] = &[
    "libcuda.so.1",
    "libcuda.so",
    // WSL puts the host's driver here and does not always tell the loader.
    "/usr/lib/wsl/lib/libcuda.so.1",
];
#[cfg(windows)]
const CANDIDATES: &[&str] = &["nvcuda.dll"];

/// An open driver library and the table of its functions. Stays open for the life of the process:
/// the driver does not survive being unloaded, and nothing that uses it would.
pub struct DriverLibrary {
    path: PathBuf,
    table: DriverTable,
}

impl DriverLibrary {
    /// The functions of this driver.
    #[must_use]
    pub fn table(&self) -> &DriverTable {
        &self.table
    }

    /// The name or path by which it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Debug for DriverLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverLibrary")
            .field("path", &self.path)
            .field("table", &self.table)
            .finish()
    }
}

/// One attempt to open a library that failed.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The name or path that was tried.
    pub path: PathBuf,
    /// Why it did not do.
    pub reason: AttemptFailure,
}

/// Why a candidate was not the library that was looked for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum AttemptFailure {
    /// The loader could not open it.
    Open(Arc<libloading::Error>),
    /// It is the toolkit's link-time stub, which answers every call with error 34.
    Stub,
    /// It opened, but exports no `cuInit`: not a CUDA driver.
    NotADriver,
    /// It opened, but exports no `nvmlInit_v2`: not NVML.
    NotNvml,
}

impl fmt::Display for AttemptFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The loader's own words, which name the file that is missing, are in the source.
            Self::Open(error) => match std::error::Error::source(&**error) {
                Some(source) => fmt::Display::fmt(source, f),
                None => fmt::Display::fmt(error, f),
            },
            Self::Stub => f.write_str(
                "the toolkit's stub, good for linking only (it answers CUDA_ERROR_STUB_LIBRARY)",
            ),
            Self::NotADriver => f.write_str("it exports no cuInit, so it is not a CUDA driver"),
            Self::NotNvml => f.write_str("it exports no nvmlInit_v2, so it is not NVML"),
        }
    }
}

/// No driver could be opened; lists everything that was tried.
#[derive(Clone, Debug)]
pub struct LoadError {
    attempts: Vec<Attempt>,
}

impl LoadError {
    /// What was tried, in order, and why each failed.
    #[must_use]
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no CUDA driver could be opened; tried ")?;
        write_attempts(f, &self.attempts)?;
        write!(
            f,
            ". Install an NVIDIA driver, or set {LIBRARY_VARIABLE} to the library's path"
        )
    }
}

/// `path: reason; path: reason`.
pub(crate) fn write_attempts(f: &mut fmt::Formatter<'_>, attempts: &[Attempt]) -> fmt::Result {
    for (index, attempt) in attempts.iter().enumerate() {
        if index > 0 {
            f.write_str("; ")?;
        }
        let path = attempt.path.display().to_string();
        let reason = attempt.reason.to_string();
        // The loader's own words begin with the name that it was given.
        if reason.starts_with(&path) {
            f.write_str(&reason)?;
        } else {
            write!(f, "{path}: {reason}")?;
        }
    }
    Ok(())
}

// No source: the text has the loader's words for every attempt, and there is no one cause.
impl std::error::Error for LoadError {}

/// Opens the driver of this machine, once: later calls return the same library or the same failure.
///
/// Does not call `cuInit`.
///
/// # Errors
///
/// [`LoadError`] lists every candidate with its reason.
///
/// ```
/// match cuda_driver_sys::load() {
///     Ok(library) => println!("{} functions", library.table().count()),
///     Err(error) => println!("{error}"),
/// }
/// ```
pub fn load() -> Result<&'static DriverLibrary, LoadError> {
    static LIBRARY: OnceCell<Result<DriverLibrary, LoadError>> = OnceCell::new();
    LIBRARY
        .get_or_init(|| open_any(candidates(requested(LIBRARY_VARIABLE), CANDIDATES)))
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
/// The file's initialisers run, and its functions must have the signatures of the CUDA driver.
///
/// # Errors
///
/// [`LoadError`] with this one attempt.
pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<&'static DriverLibrary, LoadError> {
    open_any([path.as_ref().to_path_buf()]).map(|library| &*Box::leak(Box::new(library)))
}

/// What to try: the usual names, unless somebody asks for a library.
pub(crate) fn candidates(requested: Option<OsString>, usual: &[&str]) -> Vec<PathBuf> {
    match requested {
        // Somebody who names a library wants that one and no other.
        Some(path) => vec![PathBuf::from(path)],
        None => usual.iter().map(PathBuf::from).collect(),
    }
}

/// The library that the environment names by this variable, if it may choose.
pub(crate) fn requested(variable: &str) -> Option<OsString> {
    let requested = std::env::var_os(variable).filter(|value| !value.is_empty())?;
    (!runs_with_foreign_rights()).then_some(requested)
}

/// Whether the process has rights that its caller has not, so that the caller's environment must
/// not choose the code it runs.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn runs_with_foreign_rights() -> bool {
    unsafe extern "C" {
        fn getauxval(kind: std::ffi::c_ulong) -> std::ffi::c_ulong;
    }
    const AT_SECURE: std::ffi::c_ulong = 23;
    // SAFETY: getauxval has no preconditions and answers 0 for what it does not know.
    unsafe { getauxval(AT_SECURE) != 0 }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn runs_with_foreign_rights() -> bool {
    false
}

/// The first candidate that opens, or why each did not.
pub(crate) fn open_first<L>(
    candidates: impl IntoIterator<Item = PathBuf>,
    open: impl Fn(PathBuf) -> Result<L, AttemptFailure>,
) -> Result<L, Vec<Attempt>> {
    let mut attempts = Vec::new();
    for path in candidates {
        match open(path.clone()) {
            Ok(library) => return Ok(library),
            Err(reason) => attempts.push(Attempt { path, reason }),
        }
    }
    Err(attempts)
}

fn open_any(candidates: impl IntoIterator<Item = PathBuf>) -> Result<DriverLibrary, LoadError> {
    open_first(candidates, open).map_err(|attempts| LoadError { attempts })
}

fn open(path: PathBuf) -> Result<DriverLibrary, AttemptFailure> {
    // SAFETY: the names are the CUDA driver's, or the caller of `load_from` or whoever set the
    // variable vouches for the file.
    let library = unsafe { open_library(&path) }?;
    // SAFETY: what a CUDA driver exports under these names has the signatures of cuda.h, which
    // names the ABI by the symbol; the library is never closed (below).
    let table = unsafe { DriverTable::fill(|name| address(&library, name)) };
    if table.cuInit.is_none() {
        return Err(AttemptFailure::NotADriver);
    }
    if is_stub(&table) {
        return Err(AttemptFailure::Stub);
    }
    std::mem::forget(library);
    Ok(DriverLibrary { path, table })
}

/// # Safety
///
/// The file's initialisers run.
pub(crate) unsafe fn open_library(path: &Path) -> Result<Library, AttemptFailure> {
    // SAFETY: the caller vouches for the file.
    unsafe { Library::new(path) }.map_err(|error| AttemptFailure::Open(Arc::new(error)))
}

pub(crate) fn address(library: &Library, name: &CStr) -> *const c_void {
    // SAFETY: the symbol is only read as an address here.
    unsafe { library.get::<*const c_void>(name) }.map_or(std::ptr::null(), |symbol| *symbol)
}

/// The stub answers every call with error 34. `cuDriverGetVersion` needs no initialisation, has no
/// side effect, and is in every driver.
fn is_stub(table: &DriverTable) -> bool {
    let Some(version) = table.cuDriverGetVersion else {
        return false;
    };
    let mut out = 0;
    // SAFETY: `out` is valid for a write of one int, all that cuDriverGetVersion asks for.
    unsafe { version(&raw mut out) == CUresult::CUDA_ERROR_STUB_LIBRARY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requested_library_is_the_only_candidate() {
        let found = candidates(Some("/somewhere/libcuda.so".into()), CANDIDATES);
        assert_eq!(found, [PathBuf::from("/somewhere/libcuda.so")]);
        assert_eq!(
            candidates(None, CANDIDATES)[0],
            PathBuf::from(CANDIDATES[0])
        );
    }

    #[test]
    #[cfg(not(miri))] // Miri does not open libraries.
    fn the_failure_lists_everything_that_was_tried() {
        let error =
            open_any(["/nowhere/a.so".into(), "/nowhere/b.so".into()]).expect_err("neither exists");
        assert_eq!(error.attempts().len(), 2);
        let text = error.to_string();
        assert!(
            text.contains("/nowhere/a.so") && text.contains("/nowhere/b.so"),
            "{text}"
        );
        assert!(text.contains(LIBRARY_VARIABLE), "{text}");
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn a_library_that_is_no_driver_is_told_apart() {
        let error = open_any(["libc.so.6".into()]).expect_err("libc is no driver");
        assert!(matches!(
            error.attempts()[0].reason,
            AttemptFailure::NotADriver
        ));
    }

    #[test]
    fn a_stub_is_recognised_by_its_answer() {
        unsafe extern "C" fn stub(_: *mut std::ffi::c_int) -> CUresult {
            CUresult::CUDA_ERROR_STUB_LIBRARY
        }
        let table = DriverTable {
            cuDriverGetVersion: Some(stub),
            ..DriverTable::default()
        };
        assert!(is_stub(&table));
        assert!(!is_stub(&DriverTable::default()));
    }
}
