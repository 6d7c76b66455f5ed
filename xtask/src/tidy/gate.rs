//! In `cuda-mem` nothing is submitted to a stream, or asked of one, past the gate (`stream/handle/gate.rs`).
//!
//! The functions of `raw/` that take a stream take it as a `Queue`, which only the gate makes. What the gate is built
//! from is used in it alone.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::{FnArg, Item};

use super::Finding;
use super::layers;
use super::source::Rust;

const GATE: &str = "cuda-mem/src/stream/handle/gate.rs";

/// What is used in these files only: a module or type, names of it, and the files.
const KEPT: [(&str, &[&str], &[&str]); 3] = [
    ("Queue", &["new"], &[GATE]),
    (
        "recording",
        &["exclude_captures", "refuse", "is_captured", "end"],
        &[GATE, "cuda-mem/src/stream/recording"],
    ),
    (
        "graph",
        &["begin_capture", "end_capture", "capture_status"],
        &[GATE, "cuda-mem/src/stream/recording"],
    ),
];

/// Functions of `raw/` that take a stream by its handle: its end, and captures, which the gate and `recording` keep to
/// themselves.
const BY_HANDLE: [&str; 4] = ["destroy", "begin_capture", "end_capture", "capture_status"];

pub(super) fn check(file: &Rust) -> Vec<Finding> {
    let Some(module) = layers::module_of(&file.path) else {
        return Vec::new();
    };
    if file.test_only {
        return Vec::new();
    }
    let mut findings = Vec::new();
    if layers::is_raw(&module) {
        check_raw(file, &mut findings);
        return findings;
    }
    let mut tokens = Vec::new();
    flatten(file.code.to_token_stream(), &mut tokens);
    for (owner, names, files) in KEPT {
        if files.iter().any(|path| file.path.starts_with(path)) {
            continue;
        }
        for (name, line) in used(&tokens, owner, names) {
            findings.push(Finding::new(
                &file.path,
                line,
                format!("`{owner}::{name}` is for the gate alone"),
                format!("submit through {GATE}"),
            ));
        }
    }
    findings
}

fn check_raw(file: &Rust, findings: &mut Vec<Finding>) {
    for item in &file.code.items {
        let Item::Fn(function) = item else {
            continue;
        };
        let name = function.sig.ident.to_string();
        let takes_handle = function.sig.inputs.iter().any(|argument| match argument {
            FnArg::Typed(argument) => argument.ty.to_token_stream().to_string() == "CUstream",
            FnArg::Receiver(_) => false,
        });
        if takes_handle && !BY_HANDLE.contains(&name.as_str()) {
            findings.push(Finding::new(
                &file.path,
                function.sig.ident.span().start().line,
                format!("`{name}` takes a stream by its handle"),
                "take a `Queue`, which the gate makes",
            ));
        }
    }
}

/// Words and signs, groups too, with their lines.
fn flatten(tokens: TokenStream, flat: &mut Vec<(String, usize)>) {
    for token in tokens {
        let line = token.span().start().line;
        match token {
            TokenTree::Group(group) => {
                flat.push(("(".to_owned(), line));
                flatten(group.stream(), flat);
                flat.push((")".to_owned(), line));
            }
            token => flat.push((token.to_string(), line)),
        }
    }
}

/// The names that are used as `owner::name` or imported by `owner::{name, …}`.
fn used(tokens: &[(String, usize)], owner: &str, names: &[&str]) -> Vec<(String, usize)> {
    let mut found = Vec::new();
    for (at, _) in tokens
        .iter()
        .enumerate()
        .filter(|(_, word)| word.0 == owner)
    {
        let mut rest = tokens[at + 1..].iter();
        if !rest.by_ref().take(2).all(|word| word.0 == ":") {
            continue;
        }
        // A name, or all of a group.
        let is_group = rest.as_slice().first().is_some_and(|word| word.0 == "(");
        let end = if is_group {
            rest.as_slice().iter().position(|word| word.0 == ")")
        } else {
            Some(1)
        };
        for (word, line) in rest.take(end.unwrap_or(usize::MAX)) {
            if names.contains(&word.as_str()) {
                found.push((word.clone(), *line));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        let findings = check(&Rust::parse(path, text));
        findings.into_iter().map(|found| found.line).collect()
    }

    #[test]
    fn a_way_past_the_gate_is_found() {
        let text = "use crate::recording::{self, exclude_captures};\n\
            fn f() { let q = Queue::new(table, stream);\n\
            recording::refuse(table, stream)?;\n\
            run(|| unsafe { crate::recording::is_captured(table, stream) });\n\
            raw::graph::end_capture(table, stream); }";
        assert_eq!(
            lines("cuda-mem/src/memory/pool/mod.rs", text),
            [2, 1, 3, 4, 5]
        );
        assert_eq!(
            lines("cuda-mem/src/stream/handle.rs", text),
            [2, 1, 3, 4, 5]
        );
    }

    #[test]
    fn the_gate_may_and_so_may_tests_and_other_crates() {
        let text = "fn f() { recording::refuse(table, Queue::new(table, stream)); }";
        for path in [
            GATE,
            "cuda-mem/benches/alloc.rs",
            "tests/src/environment.rs",
        ] {
            assert_eq!(lines(path, text), [0; 0], "{path}");
        }
        let test = format!("#[cfg(test)] mod tests {{ {text} }}");
        assert_eq!(lines("cuda-mem/src/memory/pool.rs", &test), [0; 0]);
    }

    #[test]
    fn what_is_not_kept_is_free() {
        let text = "fn f() { recording::kept_out(table, || call()); VecDeque::new(); order.end() }";
        assert_eq!(lines("cuda-mem/src/memory/pool.rs", text), [0; 0]);
    }

    #[test]
    fn a_raw_function_that_takes_a_handle_is_found() {
        let text = "unsafe fn destroy(table: &Table, stream: CUstream) {}\n\
            unsafe fn make(table: &Table) -> CUstream {}\n\
            unsafe fn fill(table: &Table, stream: CUstream) {}\n\
            unsafe fn copy(queue: Queue<'_>) {}";
        assert_eq!(lines("cuda-mem/src/driver/raw/copy.rs", text), [3]);
    }
}
