//! What is published, in which order, and what is left to do before: without running anything.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// What `cargo metadata --no-deps` says, as far as it is needed.
#[derive(Debug, Deserialize)]
pub(super) struct Metadata {
    packages: Vec<Package>,
    pub(super) target_directory: PathBuf,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) features: BTreeMap<String, Vec<String>>,
    dependencies: Vec<Dependency>,
    /// The registries that it may go to: none, or any if this is absent.
    publish: Option<Vec<String>>,
    description: Option<String>,
    license: Option<String>,
    repository: Option<String>,
    readme: Option<String>,
    rust_version: Option<String>,
    keywords: Vec<String>,
    categories: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Dependency {
    name: String,
    req: String,
    path: Option<PathBuf>,
}

impl Package {
    /// The name of its archive without an ending, and of the folder in it.
    pub(super) fn folder(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }

    fn is_published(&self) -> bool {
        self.publish.as_ref().is_none_or(|to| !to.is_empty())
    }

    /// The packages of the workspace that the archive names. Dev-dependencies count: a registry wants them too. One with a
    /// path alone, which has no version, is left out of the archive.
    fn needs(&self) -> impl Iterator<Item = &str> {
        let ours = self.dependencies.iter().filter(|dependency| {
            dependency.path.is_some() && dependency.req != "*" && dependency.name != self.name
        });
        ours.map(|dependency| dependency.name.as_str())
    }
}

impl Metadata {
    /// The crates that a registry gets, each behind those that it needs.
    pub(super) fn in_order(&self) -> Result<Vec<&Package>> {
        let published = self.packages.iter().filter(|p| p.is_published());
        let mut waiting: BTreeMap<&str, &Package> =
            published.map(|p| (p.name.as_str(), p)).collect();
        for package in waiting.values() {
            if let Some(name) = package.needs().find(|name| !waiting.contains_key(name)) {
                bail!(
                    "{} needs {name}, which is not published; publish it, or leave out its version \
                     if only tests need it",
                    package.name
                );
            }
        }
        let mut order = Vec::new();
        while !waiting.is_empty() {
            let free: Vec<&str> = waiting
                .iter()
                .filter(|(_, package)| !package.needs().any(|name| waiting.contains_key(name)))
                .map(|(name, _)| *name)
                .collect();
            if free.is_empty() {
                let names: Vec<&str> = waiting.into_keys().collect();
                bail!("these crates need each other: {}", names.join(", "));
            }
            order.extend(free.iter().filter_map(|name| waiting.remove(name)));
        }
        Ok(order)
    }
}

/// What has to be done before an upload, in sentences.
pub(super) fn left_to_do(packages: &[&Package], changelog: &str) -> Vec<String> {
    let mut left = Vec::new();
    let versions: BTreeSet<&str> = packages.iter().map(|p| p.version.as_str()).collect();
    for version in versions {
        if !has_section(changelog, version) {
            left.push(format!("CHANGELOG.md has no section for {version}"));
        }
    }
    let absent = |key: &str, is_there: &dyn Fn(&Package) -> bool| {
        let lack = packages.iter().filter(|package| !is_there(package));
        let names: Vec<&str> = lack.map(|package| package.name.as_str()).collect();
        (!names.is_empty()).then(|| format!("no {key}: {}", names.join(", ")))
    };
    left.extend(absent("description", &|p| p.description.is_some()));
    left.extend(absent("license", &|p| p.license.is_some()));
    left.extend(absent("readme", &|p| p.readme.is_some()));
    left.extend(absent("rust-version", &|p| p.rust_version.is_some()));
    left.extend(absent("keywords", &|p| !p.keywords.is_empty()));
    left.extend(absent("categories", &|p| !p.categories.is_empty()));
    // It may be a placeholder.
    let has_address = |p: &Package| {
        let address = p.repository.as_deref();
        address.is_some_and(|url| url.contains("://"))
    };
    left.extend(absent("repository", &has_address));
    left
}

/// Whether there is a heading `## [version]`, with a date behind it or not.
fn has_section(changelog: &str, version: &str) -> bool {
    let heading = format!("## [{version}]");
    changelog.lines().any(|line| line.starts_with(&heading))
}

/// What the test programs of one run of cargo counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) passed: u64,
    pub(super) failed: u64,
    pub(super) ignored: u64,
}

impl Counts {
    /// From the lines `test result: ok. 3 passed; 0 failed; 1 ignored; …`. Nothing if no program ran: without tests it
    /// would still say that 0 passed.
    pub(super) fn of(output: &str) -> Result<Option<Self>> {
        let (mut sum, mut programs) = (Self::default(), 0);
        for line in output
            .lines()
            .filter(|line| line.starts_with("test result: "))
        {
            let number = |word: &str| {
                let before = line.split(word).next()?;
                before.split_whitespace().last()?.parse::<u64>().ok()
            };
            let counts = number(" passed").zip(number(" failed"));
            let counts = counts.zip(number(" ignored"));
            let ((passed, failed), ignored) =
                counts.with_context(|| format!("these are no counts: {line}"))?;
            sum.passed += passed;
            sum.failed += failed;
            sum.ignored += ignored;
            programs += 1;
        }
        Ok((programs > 0).then_some(sum))
    }
}

/// What cargo did with an archive.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    Compiles,
    DoesNotCompile,
    Tested(Counts),
}

/// The line about a crate, with the outcome for each set of features.
pub(super) fn line(package: &Package, bytes: u64, outcomes: &[(&str, Outcome)]) -> String {
    let kib = bytes.div_ceil(1024);
    let mut text = format!("{} {}: {kib} KiB", package.name, package.version);
    for (features, outcome) in outcomes {
        let Counts {
            passed,
            failed,
            ignored,
        } = match outcome {
            Outcome::Tested(counts) => counts,
            Outcome::Compiles => {
                text += &format!("; compiles{features}");
                continue;
            }
            Outcome::DoesNotCompile => {
                text += &format!("; DOES NOT COMPILE{features}");
                continue;
            }
        };
        text += &match passed + failed {
            0 => format!("; no tests{features}"),
            _ => format!("; {passed} tests passed{features}"),
        };
        if *failed > 0 {
            text += &format!(", {failed} FAILED");
        }
        if *ignored > 0 {
            text += &format!(", {ignored} ignored");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn package(name: &str, needs: &[(&str, &str)]) -> Value {
        let dependency = |(name, req): &(&str, &str)| json!({ "name": name, "req": req, "path": "/x", "kind": "dev" });
        json!({
            "name": name,
            "version": "0.1.0",
            "features": {},
            "dependencies": needs.iter().map(dependency).collect::<Vec<_>>(),
            "publish": null,
            "description": "one",
            "license": "MIT",
            "repository": "https://example.org/x",
            "readme": "README.md",
            "rust_version": "1.88",
            "keywords": ["a"],
            "categories": ["b"],
        })
    }

    fn metadata(packages: &[Value]) -> Metadata {
        let value = json!({ "packages": packages, "target_directory": "/t" });
        serde_json::from_value(value).expect("the form of cargo")
    }

    fn names(metadata: &Metadata) -> Result<Vec<&str>, String> {
        let order = metadata.in_order().map_err(|error| error.to_string())?;
        Ok(order.into_iter().map(|p| p.name.as_str()).collect())
    }

    const ANY: &str = "^0.1.0";

    #[test]
    fn a_crate_comes_behind_those_that_it_needs() {
        let mut private = package("b-private", &[("z", ANY)]);
        private["publish"] = json!([]);
        let metadata = metadata(&[
            package("a", &[("m", ANY), ("b-private", "*")]),
            private,
            package("m", &[("z", ANY)]),
            package("z", &[]),
        ]);
        assert_eq!(names(&metadata), Ok(vec!["z", "m", "a"]));
    }

    #[test]
    fn circles_and_private_dependencies_are_refused() {
        let circle = metadata(&[
            package("a", &[("b", ANY)]),
            package("b", &[("a", ANY)]),
            package("c", &[]),
        ]);
        let error = names(&circle).expect_err("a circle");
        assert_eq!(error, "these crates need each other: a, b");
        let mut private = package("p", &[]);
        private["publish"] = json!([]);
        let needs = metadata(&[package("a", &[("p", ANY)]), private]);
        let error = names(&needs).expect_err("no registry has it");
        assert!(
            error.starts_with("a needs p, which is not published"),
            "{error}"
        );
    }

    #[test]
    fn what_is_absent_is_said() {
        let whole = metadata(&[package("a", &[])]);
        let order = whole.in_order().expect("one");
        let changelog = "# Changelog\n\n## [0.1.0] - 2027-01-01\n";
        assert_eq!(left_to_do(&order, changelog), [""; 0]);
        assert_eq!(
            left_to_do(&order, "# Changelog\n\n## [Unreleased]\n"),
            ["CHANGELOG.md has no section for 0.1.0"]
        );
        let mut bare = package("a", &[]);
        bare["keywords"] = json!([]);
        bare["repository"] = json!("ADDRESS");
        let bare = metadata(&[bare]);
        let order = bare.in_order().expect("one");
        assert_eq!(
            left_to_do(&order, changelog),
            ["no keywords: a", "no repository: a"]
        );
    }

    #[test]
    fn counts_of_all_programs_are_added() {
        let output = "running 3 tests\ntest result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n\
                      test result: FAILED. 40 passed; 3 failed; 0 ignored; 0 measured\n";
        let counts = Counts::of(output).expect("numbers").expect("two programs");
        let (passed, failed, ignored) = (42, 3, 1);
        assert_eq!(
            counts,
            Counts {
                passed,
                failed,
                ignored
            }
        );
        assert!(Counts::of("test result: ok. many passed").is_err());
    }

    #[test]
    fn what_does_not_compile_is_not_taken_for_a_crate_without_tests() {
        let metadata = metadata(&[package("a", &[])]);
        let archive = &metadata.packages[0];
        assert_eq!(Counts::of("").expect("no numbers"), None);
        let text = line(archive, 1, &[("", Outcome::DoesNotCompile)]);
        assert_eq!(text, "a 0.1.0: 1 KiB; DOES NOT COMPILE");
        let outcomes = [
            ("", Outcome::Compiles),
            (" with all features", Outcome::DoesNotCompile),
        ];
        assert_eq!(
            line(archive, 1, &outcomes),
            "a 0.1.0: 1 KiB; compiles; DOES NOT COMPILE with all features"
        );
    }

    #[test]
    fn a_crate_without_tests_is_named_as_such() {
        let metadata = metadata(&[package("a", &[])]);
        let none = Counts::default();
        let some = Counts { passed: 7, ..none };
        let text = line(&metadata.packages[0], 2049, &[("", Outcome::Tested(none))]);
        assert_eq!(text, "a 0.1.0: 3 KiB; no tests");
        let more = Counts { ignored: 1, ..some };
        let outcomes = [
            ("", Outcome::Tested(some)),
            (" with all features", Outcome::Tested(more)),
        ];
        let text = line(&metadata.packages[0], 1, &outcomes);
        assert_eq!(
            text,
            "a 0.1.0: 1 KiB; 7 tests passed; 7 tests passed with all features, 1 ignored"
        );
    }

    #[test]
    fn the_crates_of_this_workspace_can_be_ordered() {
        let text = include_str!("../../../CHANGELOG.md");
        assert!(!has_section(text, "0.0.0"));
        let metadata = super::super::metadata().expect("cargo tells");
        let order = metadata.in_order().expect("no circle");
        assert_eq!(order.last().map(|p| p.name.as_str()), Some("cuda-mem"));
    }
}
