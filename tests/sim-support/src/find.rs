//! Finds a built library.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A library of this crate: the one named by a variable, or one beside the running program, or in the target folder
/// where this crate was built.
pub fn built_library(variable: &str, file: &str) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
        return Some(PathBuf::from(path)).filter(|path| path.is_file());
    }
    let mut folders = Vec::new();
    if let Ok(program) = std::env::current_exe() {
        let folder = program.parent().map(PathBuf::from).unwrap_or_default();
        folders.extend([folder.clone(), folder.join("../deps"), folder.join("..")]);
    }
    // target/<profile>/build/<package>-<hash>/out
    let profile = PathBuf::from(env!("OUT_DIR")).join("../../..");
    folders.extend([profile.join("deps"), profile]);
    folders
        .into_iter()
        .find_map(|folder| library_in(&folder, file))
        .map(|path| plain_path(&path).unwrap_or(path))
}

/// A path without links and detours.
///
/// # Errors
///
/// If nothing is there.
pub fn plain_path(path: &Path) -> std::io::Result<PathBuf> {
    if cfg!(windows) {
        // The system's own form of a path is one that its loader does not take everywhere.
        std::path::absolute(path)
    } else {
        path.canonicalize()
    }
}

/// Copies a library into the folder of a machine, under its plain name, unless it is there already: it may be in use. Only
/// what the loader needs is copied: with debug information it is ten times as large.
///
/// # Errors
///
/// If it cannot be read or written.
pub fn copy_library(library: &Path, folder: &Path, file: &str) -> std::io::Result<PathBuf> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let copy = folder.join(file);
    if copy.exists() {
        return Ok(copy);
    }
    let mut from = File::open(library)?;
    let mut header = [0; HEADER];
    from.read_exact(&mut header)?;
    let len = match loaded_bytes(&mut from, &header) {
        Some(len) => {
            // The table of sections is behind them.
            header[40..48].fill(0);
            header[58..64].fill(0);
            len
        }
        None => from.metadata()?.len(),
    };
    // Another thread may make the same copy.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let partial = folder.join(format!("{file}.{number}"));
    let mut to = File::create(&partial)?;
    to.write_all(&header)?;
    from.seek(SeekFrom::Start(HEADER as u64))?;
    let rest = len - HEADER as u64;
    if std::io::copy(&mut from.take(rest), &mut to)? != rest {
        let error = "the library was replaced while it was copied";
        return Err(std::io::Error::other(error));
    }
    // Whichever copy is there stays: it may be mapped.
    match std::fs::hard_link(&partial, &copy) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    std::fs::remove_file(&partial)?;
    Ok(copy)
}

/// A copy of a library, found as by [`built_library`], beside the driver of a machine.
///
/// # Errors
///
/// If the library was not built, or the machine's folder is gone.
pub fn library_beside(driver: &Path, variable: &str, file: &str) -> std::io::Result<PathBuf> {
    let (Some(library), Some(folder)) = (built_library(variable, file), driver.parent()) else {
        return Err(std::io::ErrorKind::NotFound.into());
    };
    copy_library(&library, folder, file)
}

/// Bytes of the header of a 64-bit ELF file.
const HEADER: usize = 64;

/// How far the segments that are loaded reach in the file; `None` if it is no such file.
fn loaded_bytes(file: &mut File, header: &[u8; HEADER]) -> Option<u64> {
    const LOAD: u64 = 1;
    let number = |bytes: &[u8], at: usize, len: usize| {
        let mut number = [0; 8];
        number[..len].copy_from_slice(bytes.get(at..at + len)?);
        Some(u64::from_le_bytes(number))
    };
    if header[..6] != *b"\x7fELF\x02\x01" {
        return None;
    }
    let (table, size) = (number(header, 32, 8)?, number(header, 54, 2)? as usize);
    let count = number(header, 56, 2)? as usize;
    let mut entries = vec![0; size * count];
    file.seek(SeekFrom::Start(table)).ok()?;
    file.read_exact(&mut entries).ok()?;
    let mut end = HEADER as u64;
    for entry in entries.chunks_exact(size.max(1)) {
        if number(entry, 0, 4)? == LOAD {
            end = end.max(number(entry, 8, 8)?.checked_add(number(entry, 32, 8)?)?);
        }
    }
    Some(end)
}

/// The library in one folder. Cargo adds a hash to its name if the crate is a dependency from git or from a registry;
/// older builds remain beside the newest one.
fn library_in(folder: &Path, file: &str) -> Option<PathBuf> {
    let plain = folder.join(file);
    if plain.is_file() {
        return Some(plain);
    }
    let (stem, ending) = file.rsplit_once('.')?;
    let entries = std::fs::read_dir(folder).ok()?;
    let hashed = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let name = entry.file_name().into_string().ok()?;
        let (name, found) = name.rsplit_once('.')?;
        let hash = name.strip_prefix(stem)?.strip_prefix('-')?;
        let is_hash = !hash.is_empty() && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        (found == ending && is_hash).then_some(entry)
    });
    let newest = hashed.max_by_key(|entry| entry.metadata().and_then(|data| data.modified()).ok());
    newest.map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn a_copy_that_is_there_is_left_alone() {
        let folder = std::env::temp_dir().join(format!("copy-library-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a scratch folder");
        let library = std::env::current_exe().expect("this program is a file with segments");
        let copy = copy_library(&library, &folder, "library.so").expect("copied");
        let first = fs::read(&copy).expect("there");
        let magic: &[u8] = if cfg!(windows) { b"MZ" } else { b"\x7fELF" };
        assert!(first.len() > HEADER && first.starts_with(magic));
        fs::write(&copy, "in use").expect("written");
        let again = copy_library(&library, &folder, "library.so").expect("there already");
        assert_eq!(
            (again, fs::read(&copy).expect("there")),
            (copy, b"in use".to_vec())
        );
        assert_eq!(fs::read_dir(&folder).expect("listed").count(), 1);
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn a_library_with_a_hash_in_its_name_is_found_and_the_newest_wins() {
        let folder = std::env::temp_dir().join(format!("find-library-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a scratch folder");
        let write = |name: &str, age: u64| {
            let file = File::create(folder.join(name)).expect("created");
            let time = SystemTime::now() - Duration::from_secs(age);
            file.set_modified(time).expect("dated");
        };
        let found = || {
            let path = library_in(&folder, "libcuda_sim.so")?;
            path.file_name()
                .map(|name| name.to_string_lossy().into_owned())
        };
        assert_eq!(found(), None);
        write("libcuda_sim-12e5ce3b1902dd47.rlib", 0);
        write("libcuda_sim-notahash.so", 0);
        write("libcuda_sim_gdr-12e5ce3b1902dd47.so", 0);
        assert_eq!(found(), None);
        write("libcuda_sim-00000000000000aa.so", 20);
        write("libcuda_sim-00000000000000bb.so", 10);
        assert_eq!(found().as_deref(), Some("libcuda_sim-00000000000000bb.so"));
        write("libcuda_sim.so", 30);
        assert_eq!(found().as_deref(), Some("libcuda_sim.so"));
        fs::remove_dir_all(&folder).expect("removed");
    }
}
