//! The files that the checks look at, read and parsed once.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use syn::{Attribute, ImplItem, Item, Meta};

use super::{Finding, generated};
use crate::workspace;

/// What is in the repository: tracked files, and new ones that git does not ignore.
pub(crate) struct Tree {
    /// All paths, relative to the root and with forward slashes.
    pub(crate) paths: BTreeSet<String>,
    /// Those that hold UTF-8 text.
    pub(crate) texts: Vec<Text>,
}

/// A text file.
pub(crate) struct Text {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// A hand-written Rust file, without what only tests compile.
pub(crate) struct Rust {
    pub(crate) path: String,
    pub(crate) code: syn::File,
    /// The whole file is compiled for tests alone: another file declares it so.
    pub(crate) test_only: bool,
}

impl Tree {
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let mut git = Command::new("git");
        git.current_dir(root).args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ]);
        let listed = workspace::output(&mut git)
            .context("tidy asks git which files there are; run it in a clone of the repository")?;
        let mut tree = Self {
            paths: BTreeSet::new(),
            texts: Vec::new(),
        };
        for path in listed.split_terminator('\0') {
            let file = root.join(path);
            // Deleted and not yet committed, or a link: nothing to read.
            let Ok(metadata) = file.symlink_metadata() else {
                continue;
            };
            tree.paths.insert(path.to_owned());
            if !metadata.is_file() {
                continue;
            }
            let bytes = std::fs::read(&file).with_context(|| format!("could not read {path}"))?;
            if let Ok(text) = String::from_utf8(bytes) {
                tree.texts.push(Text {
                    path: path.to_owned(),
                    text,
                });
            }
        }
        Ok(tree)
    }
}

/// Parses the hand-written Rust files; what does not parse is a finding.
pub(crate) fn parse_all(texts: &[Text]) -> (Vec<Rust>, Vec<Finding>) {
    let mut files = Vec::new();
    let mut findings = Vec::new();
    let mut tests = BTreeSet::new();
    for Text { path, text } in texts {
        if !path.ends_with(".rs") || generated::is_generated(path) {
            continue;
        }
        match syn::parse_file(text) {
            Ok(mut code) => {
                tests.extend(test_files(path, &code.items));
                remove_tests(&mut code.items);
                files.push(Rust {
                    path: path.clone(),
                    code,
                    test_only: false,
                });
            }
            Err(error) => findings.push(Finding::new(
                path,
                error.span().start().line,
                format!("this is not Rust: {error}"),
                "correct it",
            )),
        }
    }
    for file in &mut files {
        file.test_only = tests.contains(&file.path);
    }
    (files, findings)
}

/// The files of `#[cfg(test)] mod name;`.
fn test_files(path: &str, items: &[Item]) -> Vec<String> {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    let folder = match name {
        "mod.rs" | "lib.rs" | "main.rs" => folder.to_owned(),
        _ => path.trim_end_matches(".rs").to_owned(),
    };
    let modules = items.iter().filter_map(|item| match item {
        Item::Mod(module) if module.content.is_none() && only_for_tests(&module.attrs) => {
            Some(module.ident.to_string())
        }
        _ => None,
    });
    modules
        .flat_map(|name| {
            [
                format!("{folder}/{name}.rs"),
                format!("{folder}/{name}/mod.rs"),
            ]
        })
        .collect()
}

fn remove_tests(items: &mut Vec<Item>) {
    items.retain(|item| !only_for_tests(item_attributes(item)));
    for item in items {
        match item {
            Item::Mod(module) => {
                if let Some((_, items)) = &mut module.content {
                    remove_tests(items);
                }
            }
            Item::Impl(block) => block.items.retain(|item| match item {
                ImplItem::Fn(function) => !only_for_tests(&function.attrs),
                _ => true,
            }),
            _ => {}
        }
    }
}

fn item_attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// `#[cfg(test)]` or `#[cfg(all(test, …))]`; `any(test, …)` is compiled for others too.
fn only_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let Meta::List(list) = &attribute.meta else {
            return false;
        };
        let condition = list.tokens.to_string().replace(' ', "");
        list.path.is_ident("cfg") && (condition == "test" || condition.starts_with("all(test,"))
    })
}

#[cfg(test)]
impl Rust {
    /// One parsed file, for the tests of the checks.
    pub(crate) fn parse(path: &str, text: &str) -> Self {
        let text = Text {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let (mut files, findings) = parse_all(&[text]);
        assert_eq!(findings, []);
        files.pop().expect("one file")
    }
}

#[cfg(test)]
mod tests {
    use super::{Rust, Text, parse_all};

    #[test]
    fn what_is_compiled_for_tests_alone_is_removed() {
        let file = Rust::parse(
            "a/src/b.rs",
            "fn kept() {} #[cfg(test)] mod tests {} #[cfg(all(test, unix))] fn helper() {} \
             #[cfg(any(test, unix))] fn kept_too() {} impl A { #[cfg(test)] fn f() {} }",
        );
        assert_eq!(file.code.items.len(), 3);
    }

    #[test]
    fn a_file_can_be_declared_to_be_for_tests() {
        let text = |path: &str, text: &str| Text {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let (files, findings) = parse_all(&[
            text("a/src/pool.rs", "#[cfg(test)] mod tests; mod other;"),
            text("a/src/pool/tests.rs", ""),
            text("a/src/pool/other.rs", ""),
        ]);
        assert_eq!(findings, []);
        let only: Vec<_> = files.iter().map(|file| file.test_only).collect();
        assert_eq!(only, [false, true, false]);
    }

    #[test]
    fn a_file_that_is_not_rust_is_found() {
        let (files, findings) = parse_all(&[Text {
            path: "a.rs".to_owned(),
            text: "fn f() {}\nfn {".to_owned(),
        }]);
        assert!(files.is_empty());
        assert_eq!(findings[0].line, 2);
    }
}
