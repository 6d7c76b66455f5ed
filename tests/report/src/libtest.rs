//! Reading what a Rust test program prints: libtest's form, which libtest-mimic shares.

use std::collections::BTreeSet;

use serde::Serialize;

/// What one test program says about its tests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
    pub(crate) ignored_tests: Vec<Ignored>,
    pub(crate) failed_tests: Vec<String>,
}

/// A test that did not run.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Ignored {
    pub(crate) name: String,
    pub(crate) reason: Option<String>,
}

/// `None` without a closing line: the program did not get to its end.
pub(crate) fn parse(output: &str) -> Option<Summary> {
    let mut summary = Summary::default();
    let mut failed = BTreeSet::new();
    let mut closed = false;
    let mut in_list = false;
    for line in output.lines() {
        if let Some(counts) = line.strip_prefix("test result: ") {
            closed = true;
            in_list = false;
            summary.passed += count(counts, "passed")?;
            summary.failed += count(counts, "failed")?;
            summary.ignored += count(counts, "ignored")?;
        } else if let Some((name, result)) = result(line) {
            if result == "FAILED" {
                failed.insert(name.to_owned());
            } else if let Some(rest) = result.strip_prefix("ignored") {
                summary.ignored_tests.push(Ignored {
                    name: name.to_owned(),
                    reason: reason(rest),
                });
            }
        } else if line == "failures:" {
            in_list = true;
        } else if in_list {
            // The list repeats the names. It has those too whose own line was torn apart by
            // what the test itself wrote.
            match line.strip_prefix("    ") {
                Some(name) => {
                    failed.insert(name.to_owned());
                }
                None => in_list = false,
            }
        }
    }
    summary.failed_tests = failed.into_iter().collect();
    closed.then_some(summary)
}

/// `ok. 18 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.31s`
fn count(line: &str, what: &str) -> Option<u64> {
    let (_, counts) = line.split_once(". ")?;
    let piece = counts
        .split("; ")
        .find_map(|piece| piece.strip_suffix(what))?;
    piece.trim().parse().ok()
}

/// `test pool::grows ... ok`; libtest-mimic pads the name and may put a kind before it.
fn result(line: &str) -> Option<(&str, &str)> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let name = match name.strip_prefix('[') {
        Some(rest) => rest.split_once("] ").map_or(name, |(_, name)| name),
        None => name,
    };
    let name = name.trim();
    Some((name.strip_suffix(" - should panic").unwrap_or(name), result))
}

/// libtest writes `ignored, reason`, libtest-mimic `ignored (reason)`.
fn reason(rest: &str) -> Option<String> {
    let reason = rest.strip_prefix(", ").or_else(|| {
        rest.strip_prefix(" (")
            .and_then(|rest| rest.strip_suffix(')'))
    })?;
    Some(reason.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ignored(name: &str, reason: Option<&str>) -> Ignored {
        Ignored {
            name: name.to_owned(),
            reason: reason.map(str::to_owned),
        }
    }

    #[test]
    fn a_good_run() {
        let output = "\nrunning 4 tests\n\
            test pool::grows ... ok\n\
            test pool::peers ... ignored, needs two GPUs\n\
            test pool::waits ... ignored\n\
            test pool::panics - should panic ... ok\n\n\
            test result: ok. 2 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.31s\n\n";
        assert_eq!(
            parse(output),
            Some(Summary {
                passed: 2,
                failed: 0,
                ignored: 2,
                ignored_tests: vec![
                    ignored("pool::peers", Some("needs two GPUs")),
                    ignored("pool::waits", None)
                ],
                failed_tests: vec![],
            })
        );
    }

    #[test]
    fn a_bad_run_names_what_failed() {
        let output = "running 3 tests\n\
            test a ... FAILED\n\
            test b ... written by the test itself\nFAILED\n\
            test c - should panic ... FAILED\n\n\
            failures:\n\n\
            ---- a stdout ----\n\
            thread 'a' panicked at tests/pool.rs:7:5:\n    assertion failed\n\n\n\
            failures:\n    a\n    b\n    c\n\n\
            test result: FAILED. 0 passed; 3 failed; 0 ignored; 0 measured; 1 filtered out; finished in 1.00s\n";
        let summary = parse(output).expect("a closing line");
        assert_eq!((summary.passed, summary.failed), (0, 3));
        assert_eq!(summary.failed_tests, ["a", "b", "c"]);
    }

    #[test]
    fn the_form_of_libtest_mimic() {
        let output = "running 3 tests\n\
            test [gpu] pool_grows       ... ok\n\
            test [gpu] pool_with_peers  ... ignored (needs two GPUs)\n\
            test       short            ... FAILED\n\n\
            failures:\n\n---- short ----\nno\n\n\nfailures:\n    short\n\n\n\
            test result: FAILED. 1 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";
        let summary = parse(output).expect("a closing line");
        assert_eq!(summary.failed_tests, ["short"]);
        assert_eq!(
            summary.ignored_tests,
            [ignored("pool_with_peers", Some("needs two GPUs"))]
        );
    }

    #[test]
    fn without_a_closing_line_there_is_no_summary() {
        assert_eq!(parse("running 3 tests\ntest a ... ok\n"), None);
        assert_eq!(parse("test result: ok. many passed; 0 failed\n"), None);
        assert_eq!(parse(""), None);
    }
}
