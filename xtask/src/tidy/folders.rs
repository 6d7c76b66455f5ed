//! The folders at the top are these and no others.

use std::collections::BTreeSet;

use super::Finding;

const FOLDERS: [&str; 5] = ["cuda-driver-sys", "cuda-mem", "docs", "tests", "xtask"];

/// Folders with a leading dot belong to tools and are left alone.
pub(super) fn check(paths: &BTreeSet<String>) -> Vec<Finding> {
    let top: BTreeSet<&str> = paths
        .iter()
        .filter_map(|path| path.split_once('/'))
        .map(|(top, _)| top)
        .filter(|top| !top.starts_with('.'))
        .collect();
    let expected = BTreeSet::from(FOLDERS);
    let unknown = top.difference(&expected).map(|folder| {
        Finding::new(
            format!("{folder}/"),
            1,
            "this folder is not one of the workspace's",
            format!("move its files below one of {}", FOLDERS.join(", ")),
        )
    });
    let absent = expected.difference(&top).map(|folder| {
        Finding::new(
            format!("{folder}/"),
            1,
            "this folder is absent",
            "restore it, or change the list in xtask/src/tidy/folders.rs",
        )
    });
    unknown.chain(absent).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(extra: &[&str]) -> Vec<String> {
        let paths = FOLDERS
            .iter()
            .map(|folder| format!("{folder}/x"))
            .chain(extra.iter().map(|path| (*path).to_owned()))
            .collect();
        check(&paths).into_iter().map(|found| found.path).collect()
    }

    #[test]
    fn an_unknown_folder_is_found() {
        assert_eq!(found(&["scripts/run.py"]), ["scripts/"]);
    }

    #[test]
    fn an_absent_folder_is_found() {
        assert_eq!(check(&BTreeSet::new()).len(), FOLDERS.len());
    }

    #[test]
    fn files_and_dot_folders_are_free() {
        assert_eq!(found(&["Cargo.toml", ".ci/run"]), [""; 0]);
    }
}
