//! What cargo builds for the bundle, and what it is called there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::workspace;

/// A file of the bundle.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Artifact {
    /// In the bundle, such as `test-pool`.
    pub(super) name: String,
    /// Where cargo put it.
    pub(super) file: PathBuf,
}

impl Artifact {
    /// Whether it is a test that always runs on the simulated driver.
    pub(super) fn is_of_the_simulator(&self) -> bool {
        self.name.starts_with("test-sim-")
    }
}

/// The packages whose tests, examples and benchmarks are taken.
const TESTED: [&str; 3] = ["cuda-mem-driver-sys", "cuda-mem", "cuda-mem-tests"];

/// The packages whose library or programs these need beside them.
const HELPERS: [&str; 8] = [
    "cuda-sim",
    "cuda-sim-gdr",
    "cuda-sim-nccl",
    "cuda-sim-nvml",
    "cuda-sim-nvtx",
    "cuda-mem-report",
    "cuda-mem-tests",
    "cuda-mem-probe",
];

/// A message of `cargo build --message-format=json`; others have none of these fields.
#[derive(Deserialize)]
struct Message {
    reason: String,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds everything; sorted by name.
pub(super) fn build() -> Result<Vec<Artifact>> {
    let mut messages = cargo(&[], &HELPERS)?;
    messages += &cargo(&["--tests", "--examples", "--benches"], &TESTED)?;
    Ok(collect(&messages)?
        .into_iter()
        .map(|(name, file)| Artifact { name, file })
        .collect())
}

/// Runs `cargo build`; its messages, one a line.
fn cargo(targets: &[&str], packages: &[&str]) -> Result<String> {
    let mut cargo = workspace::cargo();
    cargo
        .args(["build", "--release"])
        .arg("--message-format=json-render-diagnostics")
        .args(targets);
    for package in packages {
        cargo.args(["--package", package]);
    }
    // Progress and errors go where the user sees them; only the messages are read.
    let output = cargo
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("could not start {cargo:?}"))?;
    if !output.status.success() {
        bail!("{cargo:?} ended with {}", output.status);
    }
    String::from_utf8(output.stdout).context("cargo's messages are not UTF-8")
}

/// Name in the bundle → file, from the messages of cargo, one a line.
pub(crate) fn collect(messages: &str) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    for line in messages.lines() {
        let message: Message = serde_json::from_str(line)
            .with_context(|| format!("cargo wrote a message of an unknown form: {line}"))?;
        if message.reason != "compiler-artifact" {
            continue;
        }
        let (Some(target), Some(profile)) = (&message.target, &message.profile) else {
            bail!("cargo wrote an artifact without target or profile: {line}");
        };
        if let Some(file) = &message.executable {
            let Some(name) = name_of(target, profile) else {
                continue;
            };
            if let Some(other) = found.insert(name.clone(), file.clone())
                && other != *file
            {
                bail!(
                    "{} and {} would both be {name}; rename one of the targets",
                    other.display(),
                    file.display()
                );
            }
        } else if target.kind.iter().any(|kind| kind == "cdylib") {
            let library = message.filenames.iter().find_map(|file| library_name(file));
            // Built for itself and as a dependency: two paths, one library.
            if let Some((name, file)) = library {
                found.entry(name).or_insert(file);
            }
        }
    }
    Ok(found)
}

/// `None` for what has no use in the bundle.
fn name_of(target: &Target, profile: &Profile) -> Option<String> {
    let kind = target.kind.first()?.as_str();
    let name = &target.name;
    match kind {
        "example" => Some(format!("example-{name}")),
        // Not a benchmark of the report, which would run it: a part of the comparison with other allocators.
        "bench" if name == "rivals" => Some("rivals-cuda-mem".to_owned()),
        "bench" => Some(format!("bench-{name}")),
        // Programs keep their names: tests start them by these.
        "bin" if profile.test => None,
        "bin" => Some(name.clone()),
        // Unit tests carry the name of their crate.
        _ if profile.test => Some(format!("test-{name}")),
        _ => None,
    }
}

fn library_name(file: &Path) -> Option<(String, PathBuf)> {
    let extension = file.extension()?.to_str()?;
    let name = file.file_name()?.to_str()?;
    matches!(extension, "so" | "dylib" | "dll").then(|| (name.to_owned(), file.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: &str, name: &str, test: bool, file: &str) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","package_id":"path+file:///r#x@0.1.0","target":{{"kind":["{kind}"],"crate_types":["bin"],"name":"{name}"}},"profile":{{"opt_level":"3","test":{test}}},"features":[],"filenames":["{file}"],"executable":"{file}","fresh":true}}"#
        )
    }

    #[test]
    fn tests_of_the_simulator_are_told_from_others() {
        let is = |name: &str| {
            Artifact {
                name: name.to_owned(),
                file: PathBuf::new(),
            }
            .is_of_the_simulator()
        };
        assert!(is("test-sim-faults"));
        assert!(!is("test-simple") && !is("libcuda_sim.so"));
    }

    #[test]
    fn artifacts_get_plain_names() -> Result<()> {
        let library = r#"{"reason":"compiler-artifact","target":{"kind":["cdylib","rlib"],"name":"cuda_sim"},"profile":{"test":false},"filenames":["/t/libcuda_sim.so","/t/libcuda_sim.rlib"],"executable":null}"#;
        let messages = [
            library.to_owned(),
            library.replace("/t/", "/t/deps/"),
            message("lib", "cuda_mem", true, "/t/deps/cuda_mem-1"),
            message("test", "pool", true, "/t/deps/pool-2"),
            message("example", "quickstart", false, "/t/examples/quickstart"),
            message("bench", "alloc", false, "/t/deps/alloc-3"),
            message("bench", "rivals", false, "/t/deps/rivals-5"),
            message("bin", "report", false, "/t/report"),
            message("bin", "report", true, "/t/deps/report-4"),
            message("test", "pool", true, "/t/deps/pool-2"),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ]
        .join("\n");
        let names: Vec<_> = collect(&messages)?.into_keys().collect();
        assert_eq!(
            names,
            [
                "bench-alloc",
                "example-quickstart",
                "libcuda_sim.so",
                "report",
                "rivals-cuda-mem",
                "test-cuda_mem",
                "test-pool"
            ]
        );
        Ok(())
    }

    #[test]
    fn one_name_for_two_files_is_refused() {
        let messages = [
            message("test", "pool", true, "/t/deps/pool-2"),
            message("test", "pool", true, "/t/deps/pool-3"),
        ];
        assert!(collect(&messages.join("\n")).is_err());
        assert!(collect("warning: not JSON").is_err());
    }
}
