//! Finding and opening the driver library.

use crate::opening::library;
use crate::{AttemptFailure, CUresult, DriverTable};

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

library! {
    /// An open driver library and the table of its functions. Stays open for the life of the process:
    /// the driver does not survive being unloaded, and nothing that uses it would.
    struct DriverLibrary of DriverTable;

    /// No driver could be opened; lists everything that was tried.
    struct LoadError;

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
    fn load;

    name "CUDA driver", variable LIBRARY_VARIABLE, usual CANDIDATES, judge judge,
    advice ". Install an NVIDIA driver, or set {LIBRARY_VARIABLE} to the library's path"
}

fn judge(table: &DriverTable) -> Result<(), AttemptFailure> {
    if table.cuInit.is_none() {
        Err(AttemptFailure::NotADriver)
    } else if is_stub(table) {
        Err(AttemptFailure::Stub)
    } else {
        Ok(())
    }
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
    #[cfg(not(miri))] // Miri does not open libraries.
    fn the_failure_lists_everything_that_was_tried() {
        let error =
            open_any(["/nowhere/a.so".into(), "/nowhere/b.so".into()]).expect_err("neither exists");
        assert_eq!(error.attempts().len(), 2);
        let text = error.to_string();
        assert_eq!(format!("{error:?}"), text);
        let structure = format!("{error:#?}");
        assert!(structure.starts_with("LoadError {"), "{structure}");
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
