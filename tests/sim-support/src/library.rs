//! Libraries of this process: opening one, and those that are open.

use std::ffi::{CStr, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;

/// An open library. Never closed, because a driver does not survive that.
#[derive(Debug)]
pub struct Library(ManuallyDrop<system::Library>);

impl Library {
    /// Opens the library at this path.
    ///
    /// # Safety
    ///
    /// Its initialisers run.
    ///
    /// # Errors
    ///
    /// In the loader's words.
    pub unsafe fn open(path: &Path) -> Result<Self, String> {
        // SAFETY: the caller's.
        let library = unsafe { system::open(path) };
        library
            .map(|library| Self(ManuallyDrop::new(library)))
            .map_err(|error| error.to_string())
    }

    /// The library at this path, if it is open.
    #[must_use]
    pub fn if_open(path: &Path) -> Option<Self> {
        system::if_open(path).map(|library| Self(ManuallyDrop::new(library)))
    }

    /// Whether a library of the system has this name.
    ///
    /// # Safety
    ///
    /// It is opened, so its initialisers run.
    #[must_use]
    pub unsafe fn is_installed(name: &str) -> bool {
        // SAFETY: the caller's.
        let found = unsafe { system::open_of_system(name) };
        // It stays open.
        found.map(ManuallyDrop::new).is_ok()
    }

    /// The address of a function; null if the library has none of that name.
    #[must_use]
    pub fn address(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the symbol is only read as an address here.
        let symbol = unsafe { self.0.get::<*mut c_void>(name.to_bytes_with_nul()) };
        symbol.map_or(std::ptr::null_mut(), |symbol| *symbol)
    }
}

#[cfg(unix)]
mod system {
    use std::path::Path;

    use libloading::Error;
    pub(super) use libloading::os::unix::Library;

    const NOW: i32 = libc::RTLD_NOW | libc::RTLD_LOCAL;

    /// # Safety
    ///
    /// The library's initialisers run.
    pub(super) unsafe fn open(path: &Path) -> Result<Library, Error> {
        // SAFETY: the caller's.
        unsafe { Library::open(Some(path), NOW) }
    }

    pub(super) fn if_open(path: &Path) -> Option<Library> {
        // SAFETY: with NOLOAD nothing is loaded and no initialiser runs.
        let library = unsafe { Library::open(Some(path), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        library.ok()
    }

    /// # Safety
    ///
    /// The library's initialisers run.
    pub(super) unsafe fn open_of_system(name: &str) -> Result<Library, Error> {
        // SAFETY: the caller's.
        unsafe { Library::open(Some(name), libc::RTLD_LAZY) }
    }
}

#[cfg(windows)]
mod system {
    use std::path::Path;

    use libloading::Error;
    pub(super) use libloading::os::windows::Library;
    use libloading::os::windows::{
        LOAD_LIBRARY_SEARCH_DEFAULT_DIRS, LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR,
        LOAD_LIBRARY_SEARCH_SYSTEM32,
    };

    /// # Safety
    ///
    /// The library's initialisers run.
    pub(super) unsafe fn open(path: &Path) -> Result<Library, Error> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let flags = LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_DEFAULT_DIRS;
        // SAFETY: the caller's.
        unsafe { Library::load_with_flags(path, flags) }
    }

    pub(super) fn if_open(path: &Path) -> Option<Library> {
        Library::open_already_loaded(path).ok()
    }

    /// # Safety
    ///
    /// The library's initialisers run.
    pub(super) unsafe fn open_of_system(name: &str) -> Result<Library, Error> {
        // SAFETY: the caller's.
        unsafe { Library::load_with_flags(name, LOAD_LIBRARY_SEARCH_SYSTEM32) }
    }
}
