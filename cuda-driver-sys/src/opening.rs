//! What finding and opening is alike for all libraries.

use std::ffi::{CStr, OsString, c_void};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::Library;

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
    /// It opened, but exports no `ncclGetVersion`: not NCCL.
    NotNccl,
    /// It opened, but exports no `gdr_open`: not the library of gdrcopy.
    NotGdr,
    /// It opened, but exports no `InitializeInjectionNvtxExtension`: not a tool for extensions of NVTX.
    NotNvtx,
    /// The tool refused to be notified of memory, or is of another version of NVTX's extension.
    NvtxRefused,
    /// The tool takes extensions of NVTX, but not all functions for memory.
    NvtxWithoutMemory,
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
            Self::NotNccl => f.write_str("it exports no ncclGetVersion, so it is not NCCL"),
            Self::NotGdr => f.write_str("it exports no gdr_open, so it is not gdrcopy's library"),
            Self::NotNvtx => f.write_str(
                "it exports no InitializeInjectionNvtxExtension, so it is no tool for extensions of NVTX",
            ),
            Self::NvtxRefused => f.write_str(
                "it refused NVTX's memory extension (compatibility number 0x102)",
            ),
            Self::NvtxWithoutMemory => {
                f.write_str("it has no functions for NVTX's memory extension")
            }
        }
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

/// # Safety
///
/// The file's initialisers run.
pub(crate) unsafe fn open_library(path: &Path) -> Result<Library, AttemptFailure> {
    // SAFETY: the caller vouches for the file.
    unsafe { system::open(path) }.map_err(|error| AttemptFailure::Open(Arc::new(error)))
}

#[cfg(not(windows))]
mod system {
    use std::path::Path;

    use libloading::{Error, Library};

    /// # Safety
    ///
    /// As [`open_library`](super::open_library).
    pub(super) unsafe fn open(path: &Path) -> Result<Library, Error> {
        // SAFETY: the caller vouches for the file.
        unsafe { Library::new(path) }
    }
}

/// By default, Windows looks for a name without a path in the current folder too, where anybody may have put a file
/// of that name.
#[cfg(windows)]
mod system {
    use std::path::Path;

    use libloading::os::windows::{
        LOAD_LIBRARY_SEARCH_DEFAULT_DIRS, LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR,
        LOAD_LIBRARY_SEARCH_SYSTEM32, Library,
    };

    /// A name without a path is looked for in the system's folder only; a path is that file, and what it needs is
    /// looked for beside it, beside the program, and in the system's folder.
    ///
    /// # Safety
    ///
    /// As [`open_library`](super::open_library).
    pub(super) unsafe fn open(path: &Path) -> Result<libloading::Library, libloading::Error> {
        let is_name = path.parent() == Some(Path::new(""));
        let (path, flags) = if is_name {
            (path.to_owned(), LOAD_LIBRARY_SEARCH_SYSTEM32)
        } else {
            // The flag for the library's own folder wants an absolute path.
            let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            let flags = LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_DEFAULT_DIRS;
            (path, flags)
        };
        // SAFETY: the caller vouches for the file.
        unsafe { Library::load_with_flags(path, flags) }.map(Into::into)
    }
}

pub(crate) fn address(library: &Library, name: &CStr) -> *const c_void {
    // SAFETY: the symbol is only read as an address here.
    unsafe { library.get::<*const c_void>(name) }.map_or(std::ptr::null(), |symbol| *symbol)
}

/// Writes down how one library is found, opened once, and kept for the life of the process: the type
/// `$library`, the failure `$error`, and the functions `load` and `load_from`.
///
/// `$judge` says whether a filled table is that of the library that was meant. `$advice` may name
/// the variable.
macro_rules! library {
    (
        $(#[$library_docs:meta])*
        struct $library:ident of $table:ident;
        $(#[$error_docs:meta])*
        struct $error:ident;
        $(#[$load_docs:meta])*
        fn load;
        name $name:literal, variable $variable:ident, usual $usual:ident, judge $judge:path,
        advice $advice:literal
    ) => {
        $(#[$library_docs])*
        pub struct $library {
            path: ::std::path::PathBuf,
            table: $table,
        }

        impl $library {
            /// The functions of this library.
            #[must_use]
            pub fn table(&self) -> &$table {
                &self.table
            }

            /// The name or path by which it was opened.
            #[must_use]
            pub fn path(&self) -> &::std::path::Path {
                &self.path
            }
        }

        impl ::std::fmt::Debug for $library {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(stringify!($library))
                    .field("path", &self.path)
                    .field("table", &self.table)
                    .finish()
            }
        }

        $(#[$error_docs])*
        #[derive(Clone)]
        pub struct $error {
            attempts: Vec<$crate::Attempt>,
        }

        impl $error {
            /// What was tried, in order, and why each failed.
            #[must_use]
            pub fn attempts(&self) -> &[$crate::Attempt] {
                &self.attempts
            }
        }

        impl ::std::fmt::Display for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(concat!("no ", $name, " could be opened; tried "))?;
                $crate::opening::write_attempts(f, &self.attempts)?;
                write!(f, $advice)
            }
        }

        /// The message, which is what a `main` that returns an error shows; `{:#?}` prints the structure.
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                if !f.alternate() {
                    return ::std::fmt::Display::fmt(self, f);
                }
                f.debug_struct(stringify!($error))
                    .field("attempts", &self.attempts)
                    .finish()
            }
        }

        // No source: the text has the loader's words for every attempt, and there is no one cause.
        impl ::std::error::Error for $error {}

        $(#[$load_docs])*
        pub fn load() -> Result<&'static $library, $error> {
            static LIBRARY: ::once_cell::sync::OnceCell<Result<$library, $error>> =
                ::once_cell::sync::OnceCell::new();
            LIBRARY
                .get_or_init(|| {
                    let requested = $crate::opening::requested($variable);
                    open_any($crate::opening::candidates(requested, $usual))
                })
                .as_ref()
                .map_err(Clone::clone)
        }

        /// Opens the library at `path`, and only that.
        ///
        /// Every call opens it anew and keeps it open for the life of the process; a caller that needs
        /// it in many places should keep the reference.
        ///
        /// # Safety
        ///
        #[doc = concat!(
            "The file's initialisers run, and its functions must have the signatures of the ", $name, "."
        )]
        ///
        /// # Errors
        ///
        #[doc = concat!("[`", stringify!($error), "`] with this one attempt.")]
        pub unsafe fn load_from(
            path: impl AsRef<::std::path::Path>,
        ) -> Result<&'static $library, $error> {
            open_any([path.as_ref().to_path_buf()]).map(|library| &*Box::leak(Box::new(library)))
        }

        fn open_any(
            candidates: impl IntoIterator<Item = ::std::path::PathBuf>,
        ) -> Result<$library, $error> {
            $crate::opening::open_first(candidates, open).map_err(|attempts| $error { attempts })
        }

        fn open(path: ::std::path::PathBuf) -> Result<$library, $crate::AttemptFailure> {
            // SAFETY: the names are the library's own, or the caller of `load_from` or whoever set
            // the variable vouches for the file.
            let library = unsafe { $crate::opening::open_library(&path) }?;
            // SAFETY: what the library exports under these names has the signatures of its header,
            // which names the ABI by the symbol; it is never closed (below).
            let table = unsafe { $table::fill(|name| $crate::opening::address(&library, name)) };
            $judge(&table)?;
            ::std::mem::forget(library);
            Ok($library { path, table })
        }
    };
}

pub(crate) use library;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_requested_library_is_the_only_candidate() {
        let usual = &["libcuda.so.1", "libcuda.so"];
        let found = candidates(Some("/somewhere/libcuda.so".into()), usual);
        assert_eq!(found, [PathBuf::from("/somewhere/libcuda.so")]);
        assert_eq!(candidates(None, usual), usual.map(PathBuf::from));
    }

    /// This program's file may be opened as a library: the system maps it and runs nothing of it.
    #[test]
    #[cfg(windows)]
    fn a_name_is_not_looked_for_in_the_current_folder() {
        const NAME: &str = "cuda-driver-sys-test.dll";
        let folder = std::env::temp_dir().join(format!("cuda-driver-sys-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a scratch folder");
        let program = std::env::current_exe().expect("this program");
        std::fs::copy(program, folder.join(NAME)).expect("copied");
        std::env::set_current_dir(&folder).expect("entered");
        // SAFETY: nothing of the file runs.
        let by_name = unsafe { open_library(Path::new(NAME)) };
        assert!(matches!(by_name, Err(AttemptFailure::Open(_))));
        let relative = Path::new(".").join(NAME);
        for path in [folder.join(NAME), relative] {
            // SAFETY: as above.
            let by_path = unsafe { open_library(&path) };
            assert!(by_path.is_ok(), "{}", path.display());
        }
        // SAFETY: as above.
        let by_default = unsafe { Library::new(NAME) };
        assert!(
            by_default.is_ok(),
            "the file is where the system looks by default"
        );
    }
}
