//! Finding and opening NCCL.

use super::NcclTable;
use crate::AttemptFailure;
use crate::opening::library;

/// The environment variable that names the library to open instead of the usual ones.
///
/// Ignored in a process that runs with more rights than its caller (set-user-id and the like).
pub const NCCL_LIBRARY_VARIABLE: &str = "CUDA_DRIVER_SYS_NCCL_LIBRARY";

/// Where NCCL is looked for, in this order, after [`NCCL_LIBRARY_VARIABLE`].
const CANDIDATES: &[&str] = &["libnccl.so.2", "libnccl.so"];

library! {
    /// An open NCCL and the table of its functions. Stays open for the life of the process.
    struct NcclLibrary of NcclTable;

    /// No NCCL could be opened; lists everything that was tried.
    struct NcclLoadError;

    /// Opens the NCCL of this machine, once: later calls return the same library or the same failure.
    ///
    /// # Errors
    ///
    /// [`NcclLoadError`] lists every candidate with its reason.
    fn load;

    name "NCCL", variable NCCL_LIBRARY_VARIABLE, usual CANDIDATES, judge judge,
    advice ". Install the package libnccl2, or set {NCCL_LIBRARY_VARIABLE} to a libnccl.so.2, such as that of the Python \
            packages nvidia-nccl-cu13 or torch"
}

fn judge(table: &NcclTable) -> Result<(), AttemptFailure> {
    let found = table.ncclGetVersion.map(|_| ());
    found.ok_or(AttemptFailure::NotNccl)
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
            NCCL_LIBRARY_VARIABLE,
            "NCCL",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn a_library_that_is_not_nccl_is_told_apart() {
        let error = open_any(["libc.so.6".into()]).expect_err("the C library is not NCCL");
        assert!(matches!(
            error.attempts()[0].reason,
            AttemptFailure::NotNccl
        ));
        assert!(error.to_string().contains("ncclGetVersion"), "{error}");
    }
}
