//! Where a built library lies. The other simulated libraries compile this file too.

use std::path::PathBuf;

/// A library of this crate: the one that a variable names, or one beside the running program, or in the
/// target folder that this crate was built in.
pub(crate) fn built_library(variable: &str, file: &str) -> Option<PathBuf> {
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
        .map(|folder| folder.join(file))
        .find(|path| path.is_file())
        .map(|path| path.canonicalize().unwrap_or(path))
}
