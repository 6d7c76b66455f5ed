//! In `cuda-mem` few files ask whether the process is a fork: locks and driver calls ask by themselves.
//!
//! A question by hand can be forgotten, or stand in the wrong order. [`ASKING`] has the files in which neither a lock
//! nor a driver call refuses in time.

use std::collections::BTreeMap;

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;

use super::Finding;
use super::layers;
use super::source::Rust;

const QUESTION: &str = "is_forked";

const LIST: &str = "xtask/src/tidy/forks.rs";

/// The files that ask, and why.
const ASKING: &[(&str, &str)] = &[
    (
        "base/report.rs",
        "has the answer, and destructors ask it there",
    ),
    ("base/mod.rs", "shows the answer to programs"),
    ("base/lock.rs", "for all locks of the process"),
    ("driver/raw/mod.rs", "for all calls of the driver"),
    ("driver/raw/gdr.rs", "for all calls of gdrcopy"),
    ("driver/raw/nccl.rs", "for all calls of NCCL"),
    (
        "collective/library.rs",
        "a thread of the parent may be opening the library",
    ),
    ("driver/raw/nvtx.rs", "for all calls of a tool"),
    // Neither a lock nor the driver is asked.
    (
        "ledger/level.rs",
        "sums by kind are kept without a lock, and are the parent's",
    ),
    (
        "ledger/scope.rs",
        "a destructor that calls a closure of the program",
    ),
    (
        "cpu_mapping/window/dma_buf.rs",
        "munmap is a call of the system",
    ),
    ("stream/handle.rs", "a destructor must not drop its owner"),
    ("arena/teardown.rs", "a destructor of many steps"),
    (
        "base/biased/mod.rs",
        "hands the answer to `count.rs`, which loom compiles too",
    ),
    (
        "base/biased/count.rs",
        "nobody finishes what another thread was counting",
    ),
    (
        "memory/buffer/from_resource.rs",
        "a resource of the program would be called to allocate",
    ),
    (
        "memory/buffer/raw_parts.rs",
        "a resource of the program would be called to free",
    ),
    // What comes first would hide the error, or act.
    (
        "memory/buffer/mod.rs",
        "a resource of the program would be called to free",
    ),
    (
        "memory/adaptor/checked.rs",
        "its table is empty in a fork, where every free would be refused",
    ),
    (
        "memory/adaptor/may_wait.rs",
        "a stream of which the driver tells nothing counts as captured",
    ),
    (
        "mapped/host/pinned.rs",
        "a capture mode that cannot be changed is an error about captures",
    ),
    ("stream/handle/gate.rs", "first of what the gate asks"),
    (
        "stream/context.rs",
        "before a context is retained or looked at",
    ),
    // Locks that are no `lock::Lock`.
    ("stream/deferred.rs", "the lock of its queue"),
    ("stream/recording.rs", "the lock of its list"),
    ("stream/recording/exclusion.rs", "the lock of its list"),
    ("arena/resource.rs", "locks of its own"),
    ("base/exit.rs", "a handler at exit, which waits for threads"),
    ("arena/free.rs", "locks of its own"),
    ("arena/observed.rs", "locks of its own"),
    (
        "ledger/recorder/mod.rs",
        "a destructor must not drop the program's writer",
    ),
    (
        "memory/adaptor/logging.rs",
        "a destructor must not drop the program's writer",
    ),
    ("arena/parked.rs", "locks of its own"),
    ("arena/pin.rs", "locks of its own"),
    ("arena/refill.rs", "locks of its own"),
    ("arena/snapshot.rs", "locks of its own"),
    ("arena/stats.rs", "locks of its own"),
    ("arena/trim.rs", "locks of its own"),
];

/// All files: what is in the list and does not ask is found too.
pub(super) fn check(files: &[Rust]) -> Vec<Finding> {
    judge(files, ASKING)
}

fn judge(files: &[Rust], asking: &[(&str, &str)]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut lists: BTreeMap<&str, bool> = asking.iter().map(|(path, _)| (*path, false)).collect();
    for file in files {
        if layers::module_of(&file.path).is_none() || file.test_only {
            continue;
        }
        let lines = lines_of(file.code.to_token_stream());
        let path = file.path.trim_start_matches("cuda-mem/src/");
        if let Some(asks) = lists.get_mut(path) {
            *asks = !lines.is_empty();
            continue;
        }
        for line in lines {
            findings.push(Finding::new(
                &file.path,
                line,
                format!("this asks `{QUESTION}` by hand"),
                format!(
                    "take a lock of `crate::base::lock`, or leave it to the driver call; a file where neither refuses in \
                     time has its place in {LIST}"
                ),
            ));
        }
    }
    let stale = lists.into_iter().filter(|(_, asks)| !asks);
    findings.extend(stale.map(|(path, _)| {
        let what = format!("cuda-mem/src/{path} is listed and does not ask `{QUESTION}`");
        Finding::new(LIST, 1, what, "take it off the list")
    }));
    findings
}

/// Where the question is asked, also in macros.
fn lines_of(tokens: TokenStream) -> Vec<usize> {
    let mut lines = Vec::new();
    for token in tokens {
        match token {
            TokenTree::Group(group) => lines.extend(lines_of(group.stream())),
            TokenTree::Ident(name) if name == QUESTION => lines.push(name.span().start().line),
            _ => {}
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const LISTED: [(&str, &str); 1] = [("base/lock.rs", "for all locks")];

    fn found(files: &[(&str, &str)]) -> Vec<(String, usize)> {
        let files: Vec<_> = files
            .iter()
            .map(|(path, text)| Rust::parse(path, text))
            .collect();
        let findings = judge(&files, &LISTED);
        findings
            .into_iter()
            .map(|found| (found.path, found.line))
            .collect()
    }

    const LOCK: (&str, &str) = (
        "cuda-mem/src/base/lock.rs",
        "fn f() -> bool { report::is_forked() }",
    );

    #[test]
    fn questions_of_other_files_are_found() {
        let text = "use crate::report::is_forked;\n\
            fn f() {\nif report::is_forked() {}\nassert!(crate::report::is_forked()) }";
        let path = "cuda-mem/src/memory/pool/mod.rs";
        let expected = [1, 3, 4].map(|line| (path.to_owned(), line));
        assert_eq!(found(&[LOCK, (path, text)]), expected);
    }

    #[test]
    fn the_list_has_no_file_that_does_not_ask() {
        let stale = [(LIST.to_owned(), 1)];
        assert_eq!(found(&[("cuda-mem/src/base/lock.rs", "fn f() {}")]), stale);
        assert_eq!(found(&[]), stale);
    }

    #[test]
    fn listed_files_tests_other_crates_and_text_may() {
        let asks = "fn f() { is_forked() }";
        let text = "/// Not `is_forked`.\nfn f() { \"is_forked\"; is_nvml_forked() }\n\
            #[cfg(test)] mod tests { fn f() { is_forked() } }";
        let files = [
            LOCK,
            ("cuda-mem/src/memory/pool.rs", text),
            ("tests/src/ends.rs", asks),
            ("cuda-mem/tests/ends.rs", asks),
        ];
        assert_eq!(found(&files), []);
    }

    #[test]
    fn each_file_is_listed_once_with_its_reason() {
        let mut paths: Vec<_> = ASKING.iter().map(|(path, _)| path).collect();
        paths.sort();
        paths.dedup();
        assert_eq!(paths.len(), ASKING.len());
        assert!(ASKING.iter().all(|(_, reason)| !reason.is_empty()));
    }
}
