//! What is read of NVIDIA's files as text: versions, and macros that bindgen does not see.
//!
//! Nothing of the rest of this program is used, so that the fuzzing below `tests/fuzz` can take this
//! file as it is.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

/// A CUDA version as the headers write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) u32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 10)
    }
}

/// What a `cuda.h` says that it is.
pub(crate) fn version(header: &str) -> Option<Version> {
    let mut lines = header.lines();
    let value = lines.find_map(|line| line.strip_prefix("#define CUDA_VERSION "))?;
    value.trim().parse().ok().map(Version)
}

/// (function, per-thread suffix) → the driver version of each of its ABIs, oldest first.
pub(crate) type Versions = BTreeMap<(String, String), BTreeSet<u32>>;

/// Reads names such as `PFN_cuMemPrefetchAsync_v12020_ptsz`.
pub(crate) fn versions(typedefs: &str) -> Versions {
    let mut found = Versions::new();
    for token in typedefs.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
        let Some(name) = token.strip_prefix("PFN_") else {
            continue;
        };
        let (name, twin) = split_twin(name);
        let Some((base, version)) = name.rsplit_once("_v") else {
            continue;
        };
        if let Ok(version) = version.parse() {
            found
                .entry((base.to_owned(), twin.to_owned()))
                .or_default()
                .insert(version);
        }
    }
    found
}

/// The first version of each symbol: of one function's symbols, oldest first, the n-th belongs
/// to the n-th oldest ABI of its typedefs. An old header may lack symbols that its typedefs
/// still list, so the two are paired from the newest down.
pub(crate) fn first_versions<'a>(
    symbols: impl IntoIterator<Item = &'a str>,
    versions: &Versions,
) -> Result<BTreeMap<String, Version>> {
    let mut families: BTreeMap<(String, String), Vec<(u32, &str)>> = BTreeMap::new();
    for symbol in symbols {
        let (name, twin) = split_twin(symbol);
        let (base, revision) = split_revision(name);
        families
            .entry((base.to_owned(), twin.to_owned()))
            .or_default()
            .push((revision, symbol));
    }
    let mut first = BTreeMap::new();
    for (family, mut members) in families {
        members.sort_unstable();
        let known = versions.get(&family);
        let mut newest_down = known.into_iter().flatten().rev();
        for (_, symbol) in members.iter().rev() {
            let version = newest_down
                .next()
                .with_context(|| format!("cudaTypedefs.h has no version for {symbol}"))?;
            first.insert((*symbol).to_owned(), Version(*version));
        }
    }
    Ok(first)
}

/// `cuMemAlloc_v2` is revision 2 of `cuMemAlloc`; a bare name is revision 1.
fn split_revision(name: &str) -> (&str, u32) {
    name.rsplit_once("_v")
        .and_then(|(base, digits)| Some((base, digits.parse().ok()?)))
        .unwrap_or((name, 1))
}

fn split_twin(name: &str) -> (&str, &str) {
    for twin in ["_ptsz", "_ptds"] {
        if let Some(base) = name.strip_suffix(twin) {
            return (base, twin);
        }
    }
    (name, "")
}

/// Reads `#define cuMemAlloc cuMemAlloc_v2` and the forms wrapped in the per-thread macros.
pub(crate) fn spellings(text: &str, public: &BTreeSet<String>) -> BTreeMap<String, String> {
    let mut spelled: BTreeMap<String, String> =
        public.iter().map(|s| (s.clone(), s.clone())).collect();
    for line in text.lines() {
        let mut words = line
            .trim()
            .strip_prefix("#define ")
            .unwrap_or("")
            .split_whitespace();
        let (Some(name), Some(target)) = (words.next(), words.next()) else {
            continue;
        };
        let target = target
            .strip_prefix("__CUDA_API_PTSZ(")
            .or_else(|| target.strip_prefix("__CUDA_API_PTDS("))
            .and_then(|rest| rest.strip_suffix(')'))
            .unwrap_or(target);
        if name.starts_with("cu") && name != target && public.contains(target) {
            spelled.remove(target);
            spelled.insert(name.to_owned(), target.to_owned());
        }
    }
    spelled
}

/// Object-like macros with a value that bindgen could not turn into a constant.
pub(crate) fn left_out(text: &str, constants: &BTreeSet<String>) -> Vec<(String, String)> {
    let mut found: Vec<(String, String)> = text
        .lines()
        .filter_map(|line| line.trim().strip_prefix("#define "))
        .filter_map(|rest| rest.split_once(char::is_whitespace))
        .filter(|(name, value)| name.starts_with("CU") && !value.trim().is_empty())
        .filter(|(name, _)| !name.contains('(') && *name != "CUDAAPI" && !constants.contains(*name))
        .map(|(name, value)| (name.to_owned(), why_left_out(value.trim())))
        .collect();
    found.sort();
    found.dedup();
    found
}

fn why_left_out(value: &str) -> String {
    if value.starts_with("((") {
        "a cast, written by hand in compat.rs".to_owned()
    } else {
        format!("not an integer but another name for {value}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_follow_the_order_of_revisions() {
        let typedefs = "(CUDAAPI *PFN_cuMemPrefetchAsync_v8000)( (CUDAAPI *PFN_cuMemPrefetchAsync_v12020)( \
                        PFN_cuMemPrefetchAsync_v8000_ptsz PFN_cuMemPrefetchAsync_v12020_ptsz";
        let known = versions(typedefs);
        let names = [
            "cuMemPrefetchAsync",
            "cuMemPrefetchAsync_v2",
            "cuMemPrefetchAsync_v2_ptsz",
        ];
        let first = first_versions(names, &known).expect("all three are known");
        assert_eq!(first["cuMemPrefetchAsync"], Version(8000));
        assert_eq!(first["cuMemPrefetchAsync_v2"], Version(12020));
        assert_eq!(first["cuMemPrefetchAsync_v2_ptsz"], Version(12020));
        assert!(first_versions(["cuNothing"], &known).is_err());
    }

    #[test]
    fn spellings_follow_the_macros_of_the_header() {
        let public = ["cuMemAlloc_v2", "cuMemcpyHtoD_v2", "cuInit"]
            .map(str::to_owned)
            .into();
        let text = "#define cuMemAlloc   cuMemAlloc_v2\n#define cuMemcpyHtoD __CUDA_API_PTDS(cuMemcpyHtoD_v2)\n";
        let found = spellings(text, &public);
        assert_eq!(found["cuMemAlloc"], "cuMemAlloc_v2");
        assert_eq!(found["cuMemcpyHtoD"], "cuMemcpyHtoD_v2");
        assert_eq!(found["cuInit"], "cuInit");
        assert_eq!(found.len(), 3);
    }
}
