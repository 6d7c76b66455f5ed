//! Settings: those of one machine if this library is a copy that was made for it, else those of the environment.

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The settings of a machine, beside the libraries that were copied for it: lines of a name, `=`, and a value.
const FILE: &str = "libcuda_sim.settings";

type Settings = Vec<(String, String)>;

/// The value of a setting, by the name of its variable. A machine has nothing from the environment, so that tests in one process stay apart.
pub fn setting(name: &str) -> Option<String> {
    match of_machine() {
        Some((_, settings)) => settings
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.clone()),
        None => std::env::var(name).ok(),
    }
}

/// The folder of the machine that this library was copied for.
pub fn machine_folder() -> Option<&'static Path> {
    of_machine().map(|(folder, _)| folder.as_path())
}

fn of_machine() -> Option<&'static (PathBuf, Settings)> {
    static FOUND: OnceLock<Option<(PathBuf, Settings)>> = OnceLock::new();
    FOUND
        .get_or_init(|| {
            let folder = own_file()?.parent()?.to_owned();
            let text = std::fs::read_to_string(folder.join(FILE)).ok()?;
            let lines = text.lines().filter_map(|line| line.split_once('='));
            let settings = lines.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let settings = settings.collect();
            Some((folder, settings))
        })
        .as_ref()
}

/// The file that this code was loaded from, under the name by which it was opened.
#[cfg(target_os = "linux")]
fn own_file() -> Option<PathBuf> {
    use std::ffi::CStr;
    use std::os::unix::ffi::OsStrExt as _;

    let address = own_file as *const c_void;
    // SAFETY: plain data, for which zero is valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address is accepted, and the place is valid for a write.
    let found = unsafe { libc::dladdr(address, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the name of a loaded file, which stays loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name.to_bytes())))
}

/// The file that this code was loaded from.
#[cfg(windows)]
fn own_file() -> Option<PathBuf> {
    use std::os::windows::ffi::OsStringExt as _;

    use windows_sys::Win32::System::LibraryLoader::GetModuleFileNameW;

    /// The longest path that the system knows.
    const LONGEST: usize = 1 << 15;

    let module = crate::pe::module_of(own_file as *const c_void);
    let mut name = vec![0_u16; LONGEST];
    // SAFETY: the place has the length that is passed.
    let len = unsafe { GetModuleFileNameW(module, name.as_mut_ptr(), LONGEST as u32) } as usize;
    let is_whole = (1..LONGEST).contains(&len);
    is_whole.then(|| std::ffi::OsString::from_wide(&name[..len]).into())
}

/// Writes the settings of a new machine into its folder. Line breaks in values become spaces.
///
/// # Errors
///
/// If the file cannot be written.
pub fn write(folder: &Path, settings: &[(String, String)]) -> std::io::Result<()> {
    let lines = settings.iter().map(|(name, value)| {
        // A line is one setting.
        let value = value.replace(['\n', '\r'], " ");
        format!("{name}={value}\n")
    });
    std::fs::write(folder.join(FILE), lines.collect::<String>())
}
