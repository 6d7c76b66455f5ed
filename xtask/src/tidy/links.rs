//! Links between the Markdown files of the repository lead somewhere.

use std::collections::BTreeSet;

use super::Finding;
use super::markdown::lines_outside_fences;
use super::source::Text;

pub(super) fn check(file: &Text, paths: &BTreeSet<String>) -> Vec<Finding> {
    if !file.path.ends_with(".md") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (line, target) in links(&file.text) {
        if leaves_repository(target) {
            continue;
        }
        let name = target.split(['#', '?']).next().unwrap_or(target);
        let resolved = resolve(&file.path, name);
        if !resolved.is_some_and(|path| exists(&path, paths)) {
            findings.push(Finding::new(
                &file.path,
                line,
                format!("the link to `{target}` leads nowhere"),
                "correct it; it is relative to this file",
            ));
        }
    }
    findings
}

/// An address with a scheme, or a heading of the same file.
fn leaves_repository(target: &str) -> bool {
    let scheme = target.split_once(':').is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.chars().all(|c| c.is_ascii_alphanumeric())
    });
    scheme || target.starts_with("//") || target.starts_with('#')
}

/// The path from the root of the repository; `None` when it leads out of it.
fn resolve(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = match target.strip_prefix('/') {
        Some(_) => Vec::new(),
        None => from.split('/').collect(),
    };
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

/// A file, a folder, or the root.
fn exists(path: &str, paths: &BTreeSet<String>) -> bool {
    let folder = format!("{path}/");
    let below = paths.range(folder.clone()..).next();
    path.is_empty() || paths.contains(path) || below.is_some_and(|p| p.starts_with(&folder))
}

/// The targets of `[text](target)`, `[label]: target`, `href="target"` and `src="target"` outside
/// code, with their lines.
fn links(text: &str) -> Vec<(usize, &str)> {
    let lines = lines_outside_fences(text).into_iter();
    lines
        .flat_map(|(number, _, line)| in_line(line).into_iter().map(move |link| (number, link)))
        .collect()
}

fn in_line(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    if let Some((label, target)) = line.trim_start().split_once("]: ")
        && label.starts_with('[')
        && !label.starts_with("[^")
    {
        found.extend(destination(target));
    }
    // Every second piece between backticks is code.
    for piece in line.split('`').step_by(2) {
        for (at, mark) in piece.match_indices("](") {
            found.extend(destination(inside_parentheses(&piece[at + mark.len()..])));
        }
        for mark in ["href=\"", "src=\""] {
            for (at, _) in piece.match_indices(mark) {
                found.extend(piece[at + mark.len()..].split('"').next());
            }
        }
    }
    found
}

/// Up to the parenthesis that closes the one before `text`.
fn inside_parentheses(text: &str) -> &str {
    let mut depth = 0_usize;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' if depth == 0 => return &text[..at],
            ')' => depth -= 1,
            _ => {}
        }
    }
    text
}

/// Without the title and the angle brackets.
fn destination(text: &str) -> Option<&str> {
    let target = text.split_whitespace().next()?;
    Some(target.trim_start_matches('<').trim_end_matches('>'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<usize> {
        let paths = [
            "README.md",
            "docs/a.md",
            "docs/b/c.md",
            "cuda-mem/src/lib.rs",
        ];
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        let file = Text {
            path: "docs/a.md".to_owned(),
            text: text.to_owned(),
        };
        let findings = check(&file, &paths);
        findings.into_iter().map(|found| found.line).collect()
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let text = "[a](gone.md)\n![b](../img/x.png \"title\")\n\n[c]: b/gone.md\n\
            [d](../../outside.md) [e](b/c.md#x) [f](<gone.md>)\n<img src=\"x.svg\">\n\
            see [`code`](nowhere.md)";
        assert_eq!(lines(text), [1, 2, 4, 5, 5, 6, 7]);
    }

    #[test]
    fn links_to_files_folders_and_elsewhere_are_fine() {
        let text = "[a](../README.md) [b](b/c.md#part) [c](../cuda-mem/src/) [d](#here) [e](..)\n\
            [f](https://example.org/gone.md) [g](mailto:a@example.org) [h](/docs/a.md)\n\
            [i]: ../README.md\n[^note]: not a link\n\
            `[x](gone.md)`\n```md\n[y](gone.md)\n```\n";
        assert_eq!(lines(text), [0; 0]);
    }
}
