//! The page of the driver's rules keeps its promises: every rule of the allocator is there, each
//! names tests that exist or says why there are none, and every number cited elsewhere is on it.

use std::collections::{BTreeMap, BTreeSet};

use syn::Item;

use super::Finding;
use super::source::{Rust, Text};

const PAGE: &str = "docs/src/driver-rules.md";

/// The rules of the allocator, which the page must have; later ones were measured here.
const LAST: u32 = 79;

/// How the cell of a rule without a test begins.
const NONE: &str = "no test: ";

pub(super) fn check(texts: &[Text], rust: &[Rust]) -> Vec<Finding> {
    let Some(page) = texts.iter().find(|text| text.path == PAGE) else {
        return vec![Finding::new(
            PAGE,
            1,
            "the page of the driver's rules is absent",
            "restore it",
        )];
    };
    let rows = rows(&page.text);
    let mut findings = Vec::new();
    let known = numbers(&rows, &mut findings);
    let tests = tests(rust);
    for row in &rows {
        judge(row, &tests, &mut findings);
    }
    for file in texts {
        for (line, number) in cited(file) {
            if !known.contains(&number) {
                findings.push(Finding::new(
                    &file.path,
                    line,
                    format!("R{number} is on no row of {PAGE}"),
                    "add a row for it there, or correct the number",
                ));
            }
        }
    }
    findings
}

/// A row of a table whose first cell is the number of a rule.
struct Row<'a> {
    line: usize,
    number: u32,
    /// The cells below `tests` and `H200`, if the table has such columns.
    tests: Option<&'a str>,
    hardware: Option<&'a str>,
}

fn rows(text: &str) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    let mut header: Vec<&str> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(cells) = cells(line) else {
            header.clear();
            continue;
        };
        if header.is_empty() {
            header = cells;
            continue;
        }
        let Some(number) = cells.first().and_then(|cell| rule(cell)) else {
            continue;
        };
        let below = |name| {
            let column = header.iter().position(|title| *title == name)?;
            cells.get(column).copied()
        };
        rows.push(Row {
            line: index + 1,
            number,
            tests: below("tests"),
            hardware: below("H200"),
        });
    }
    rows
}

fn cells(line: &str) -> Option<Vec<&str>> {
    let inside = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    Some(inside.split('|').map(str::trim).collect())
}

/// The number in `R24`.
fn rule(cell: &str) -> Option<u32> {
    cell.strip_prefix('R')?.parse().ok()
}

/// The numbers on the page; the ones that are absent or there twice are findings.
fn numbers(rows: &[Row<'_>], findings: &mut Vec<Finding>) -> BTreeSet<u32> {
    let mut first = BTreeMap::new();
    for row in rows {
        if let Some(line) = first.get(&row.number) {
            findings.push(Finding::new(
                PAGE,
                row.line,
                format!("R{} is on line {line} already", row.number),
                "put all there is to say about it into one row",
            ));
        } else {
            first.insert(row.number, row.line);
        }
    }
    for number in (1..=LAST).filter(|number| !first.contains_key(number)) {
        findings.push(Finding::new(
            PAGE,
            1,
            format!("R{number} is absent"),
            "add a row for it, with its place in the API, its tests and the hardware's answer",
        ));
    }
    first.into_keys().collect()
}

/// A row names tests that exist, or says why there are none, and tells what the hardware answered.
fn judge(row: &Row<'_>, tests: &BTreeSet<String>, findings: &mut Vec<Finding>) {
    let mut find = |what: String, remedy: &str| {
        findings.push(Finding::new(PAGE, row.line, what, remedy));
    };
    let number = row.number;
    let cell = row.tests.unwrap_or_default();
    let named = named(cell);
    if named.is_empty() && !cell.starts_with(NONE) {
        find(
            format!("R{number} names no test"),
            "name one in the column `tests`, or begin the cell with \"no test: \" and the reason",
        );
    }
    for name in named {
        if !tests.contains(name) {
            find(
                format!("R{number} names `{name}`, which is no function of a test"),
                "write module::function as the test program prints it, or topic.question as the probe does",
            );
        }
    }
    if row.hardware.is_none_or(str::is_empty) {
        find(
            format!("R{number} does not say what the hardware answered"),
            "fill the column `H200`; \"not measured\" and the reason is an answer",
        );
    }
}

/// The names of tests in a cell: `module::function` and `topic.question`, all in small letters.
fn named(cell: &str) -> Vec<&str> {
    let small = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_lowercase())
            && part
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
    };
    let is_name = |piece: &&str| {
        ["::", "."].iter().any(|between| {
            piece
                .split_once(between)
                .is_some_and(|(module, function)| small(module) && small(function))
        })
    };
    // Every second piece between backticks is code.
    let code = cell.split('`').skip(1).step_by(2);
    code.filter(is_name).collect()
}

/// What a row may name: the functions of the tests with their module, and the probe's questions.
fn tests(rust: &[Rust]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in rust {
        let Some(path) = file.path.strip_prefix("tests/") else {
            continue;
        };
        let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
        let module = path.rsplit('/').next().unwrap_or(path);
        let between = if path.starts_with("probe/src/") {
            "."
        } else {
            "::"
        };
        collect(&file.code.items, module, between, &mut found);
    }
    found
}

fn collect(items: &[Item], module: &str, between: &str, found: &mut BTreeSet<String>) {
    for item in items {
        match item {
            Item::Fn(function) => {
                found.insert(format!("{module}{between}{}", function.sig.ident));
            }
            Item::Mod(inner) => {
                if let Some((_, items)) = &inner.content {
                    collect(items, &inner.ident.to_string(), between, found);
                }
            }
            _ => {}
        }
    }
}

/// The numbers of rules that a file cites, with their lines: comments of the crate and the tests, and
/// pages of the book.
fn cited(file: &Text) -> Vec<(usize, u32)> {
    let code = file.path.ends_with(".rs")
        && (file.path.starts_with("cuda-mem/") || file.path.starts_with("tests/"));
    let page = file.path.starts_with("docs/src/") && file.path.ends_with(".md");
    if !code && !page {
        return Vec::new();
    }
    let lines = file.text.lines().enumerate();
    let prose = lines.filter_map(|(index, line)| {
        let from = if code { line.find("//")? } else { 0 };
        Some((index + 1, &line[from..]))
    });
    prose
        .flat_map(|(line, text)| words(text).filter_map(move |word| Some((line, rule(word)?))))
        .collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "| rule | tests | H200 |\n|---|---|---|\n";
    const ROW: &str = "`pool::it_works`, `pools.growth` | yes |\n";

    /// A page with all rules, and `more` after them.
    fn page(more: &str) -> Text {
        let rows: String = (1..=LAST).map(|n| format!("| R{n} | {ROW}")).collect();
        text(PAGE, &format!("{HEAD}{rows}{more}"))
    }

    fn text(path: &str, text: &str) -> Text {
        Text {
            path: path.to_owned(),
            text: text.to_owned(),
        }
    }

    fn found(texts: &[Text]) -> Vec<String> {
        let rust = [
            Rust::parse("tests/src/contract/pool.rs", "fn it_works() {}"),
            Rust::parse("tests/probe/src/pools.rs", "fn growth() {}"),
            Rust::parse(
                "tests/tests/ends.rs",
                "mod process { fn it_ends() {} } fn main() {}",
            ),
            Rust::parse("cuda-mem/src/pool/mod.rs", "fn not_a_test() {}"),
        ];
        let findings = check(texts, &rust);
        findings.into_iter().map(|found| found.what).collect()
    }

    #[test]
    fn a_rule_that_is_absent_or_there_twice_is_found() {
        let complete = page("");
        assert_eq!(found(&[complete]), [""; 0]);
        let without = page("").text.replace("| R24 |", "| R25 |");
        assert_eq!(
            found(&[text(PAGE, &without)]),
            ["R25 is on line 26 already", "R24 is absent"]
        );
        assert_eq!(found(&[]).len(), 1);
    }

    #[test]
    fn a_test_that_does_not_exist_is_found() {
        for name in [
            "pool::it_is_gone",
            "order::it_works",
            "pools.gone",
            "pool.it_works",
            "pool::not_a_test",
        ] {
            let more = format!("| R80 | `{name}` | yes |\n");
            assert_eq!(found(&[page(&more)]).len(), 1, "{name}");
        }
        let more =
            "| R80 | `process::it_ends`, see `DeviceBuffer::free` and `compile_fail` | yes |\n";
        assert_eq!(found(&[page(more)]), [""; 0]);
    }

    #[test]
    fn a_rule_says_why_it_has_no_test() {
        let row = |cell: &str| found(&[page(&format!("| R80 | {cell} | yes |\n"))]).len();
        assert_eq!(row(""), 1);
        assert_eq!(row("`compile_fail`"), 1);
        assert_eq!(row("no test: the types make it impossible"), 0);
    }

    #[test]
    fn a_rule_says_what_the_hardware_answered() {
        assert_eq!(found(&[page("| R80 | `pools.growth` | |\n")]).len(), 1);
        let other = "\n| rule | where |\n|---|---|\n| R80 | here |\n";
        assert_eq!(found(&[page(other)]).len(), 2, "no such columns");
        let row = "| R80 | `pools.growth` | not measured: needs two machines |\n";
        assert_eq!(found(&[page(row)]), [""; 0]);
    }

    #[test]
    fn a_number_that_is_not_on_the_page_is_found() {
        for (path, line) in [
            ("cuda-mem/src/pool/mod.rs", "// SAFETY: as R99 says."),
            ("tests/src/peers.rs", "fn f() {} /// (R99)"),
            ("docs/src/safety.md", "See R12 and R99."),
        ] {
            let texts = [page(""), text(path, line)];
            assert_eq!(
                found(&texts),
                [format!("R99 is on no row of {PAGE}")],
                "{path}"
            );
        }
    }

    #[test]
    fn what_is_no_citation_is_left_alone() {
        for (path, line) in [
            (
                "cuda-mem/src/pool/mod.rs",
                "struct R99; // SAFETY: R12, R13.",
            ),
            ("tests/src/peers.rs", "// R2D2, HR99, R_99, R"),
            ("xtask/src/main.rs", "// R99"),
            ("CHANGELOG.md", "R99"),
        ] {
            assert_eq!(found(&[page(""), text(path, line)]), [""; 0], "{path}");
        }
    }
}
