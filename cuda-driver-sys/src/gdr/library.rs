//! Finding and opening gdrcopy's library.

use super::GdrTable;
use crate::AttemptFailure;
use crate::opening::library;

/// The environment variable that names the library to open instead of the usual ones.
///
/// Ignored in a process that runs with more rights than its caller (set-user-id and the like).
pub const GDR_LIBRARY_VARIABLE: &str = "CUDA_DRIVER_SYS_GDR_LIBRARY";

/// Where it is looked for, in this order, after [`GDR_LIBRARY_VARIABLE`]. There is none for Windows, where
/// the names are not found.
const CANDIDATES: &[&str] = &["libgdrapi.so.2", "libgdrapi.so"];

library! {
    /// An open library of gdrcopy and the table of its functions. Stays open for the life of the process.
    struct GdrLibrary of GdrTable;

    /// No library of gdrcopy could be opened; lists everything that was tried.
    struct GdrLoadError;

    /// Opens gdrcopy's library of this machine, once: later calls return the same library or the same
    /// failure.
    ///
    /// Does not call `gdr_open`, and so does not tell whether the kernel module is there.
    ///
    /// # Errors
    ///
    /// [`GdrLoadError`] lists every candidate with its reason.
    fn load;

    name "gdrcopy library", variable GDR_LIBRARY_VARIABLE, usual CANDIDATES, judge judge,
    advice ". It comes with gdrcopy and not with the NVIDIA driver; install that, or set \
            {GDR_LIBRARY_VARIABLE} to the library's path"
}

fn judge(table: &GdrTable) -> Result<(), AttemptFailure> {
    let found = table.gdr_open.map(|_| ());
    found.ok_or(AttemptFailure::NotGdr)
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
        assert!(structure.starts_with("GdrLoadError {"), "{structure}");
        for part in [
            "/nowhere/a.so",
            "/nowhere/b.so",
            GDR_LIBRARY_VARIABLE,
            "no gdrcopy library",
        ] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn a_library_that_is_not_gdrcopys_is_told_apart() {
        let error = open_any(["libc.so.6".into()]).expect_err("the C library is not gdrcopy's");
        assert!(matches!(error.attempts()[0].reason, AttemptFailure::NotGdr));
        assert!(error.to_string().contains("gdr_open"), "{error}");
    }
}
