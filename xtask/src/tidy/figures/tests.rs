use super::*;

const LIST_TEXT: &str = r#"
[[figure]]
name = "pair"
text = "609 – 636 ns"
report = "docs/hardware/a.json"
where = { subject = "pool" }
field = "ns"
pick = "range"
pages = ["README.md"]

[[figure]]
name = "fill"
text = "68 µs"
report = "docs/hardware/a.txt"
line = "table filled"
unit = "ns"
pages = ["README.md"]

[[exempt]]
page = "README.md"
text = ["4 KiB"]
reason = "what is asked for"
"#;

const README: &str = "A pair of 4 KiB takes 609 – 636 ns.\nFilling takes\n68 µs.\n";

/// What `check` says of a small repository.
fn findings(list: &str, readme: &str) -> Vec<String> {
    let json = r#"[{"subject": "pool", "ns": 609.4}, {"subject": "pool", "ns": 636.4}]"#;
    let files = [
        (LIST, list),
        ("README.md", readme),
        ("docs/hardware/a.json", json),
        ("docs/hardware/a.txt", "table filled   68478 ns\n"),
        ("docs/src/decisions/0001.md", "It took 3 ms.\n"),
    ];
    let files = files.map(|(path, text)| Text {
        path: path.to_owned(),
        text: text.to_owned(),
    });
    check(&files).iter().map(ToString::to_string).collect()
}

/// One finding for the list and page, which has all of these words.
fn one(list: &str, readme: &str, words: &[&str]) {
    let found = findings(list, readme);
    assert_eq!(found.len(), 1, "{found:#?}");
    for word in words {
        assert!(found[0].contains(word), "{word} is not in {}", found[0]);
    }
}

#[test]
fn what_agrees_is_fine() {
    assert_eq!(findings(LIST_TEXT, README), [""; 0]);
}

#[test]
fn a_changed_digit_of_a_page_is_found_on_its_line() {
    let found = findings(LIST_TEXT, &README.replace("68", "69"));
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(
        found[0].contains("`fill`: there is no `68 µs` on README.md"),
        "{}",
        found[0]
    );
    assert!(
        found[1].starts_with("README.md:3: no figure has `69 µs`"),
        "{}",
        found[1]
    );
    assert!(found[1].contains("docs/figures.toml"), "{}", found[1]);
}

#[test]
fn a_digit_changed_on_the_page_and_in_the_list_is_found() {
    let change = |text: &str| text.replace("636 ns", "646 ns");
    one(
        &change(LIST_TEXT),
        &change(README),
        &[
            "docs/figures.toml:3",
            "`609 – 646 ns` is not",
            "a.json has: 636",
        ],
    );
}

#[test]
fn a_missing_report_is_found() {
    let list = LIST_TEXT.replace("a.txt", "gone.txt");
    one(
        &list,
        README,
        &["docs/figures.toml:12", "no report docs/hardware/gone.txt"],
    );
}

#[test]
fn a_number_without_a_figure_is_found() {
    let page = format!("{README}Freeing takes 5 ns.\n");
    one(LIST_TEXT, &page, &["README.md:4", "`5 ns`"]);
    let page = format!("{README}\n| a | b |\n|---|---|\n| pool | 1.05 |\n");
    one(LIST_TEXT, &page, &["README.md:7", "`1.05`"]);
}

#[test]
fn columns_of_other_numbers_can_be_exempt() {
    let page = format!("{README}\n| a | needs |\n|---|---|\n| pool | 11.2 |\n");
    let list = LIST_TEXT.replace("reason", "column = \"needs\"\nreason");
    one(LIST_TEXT, &page, &["README.md:7", "`11.2`"]);
    assert_eq!(findings(&list, &page), [""; 0]);
}

#[test]
fn an_unused_figure_and_an_unused_exemption_are_found() {
    let page = README.replace("Filling takes\n68 µs.", "");
    one(
        LIST_TEXT,
        &page,
        &["`fill`: there is no `68 µs` on README.md"],
    );
    let list = LIST_TEXT.replace("\"4 KiB\"", "\"4 KiB\", \"8 KiB\"");
    one(&list, README, &["no `8 KiB` on README.md"]);
    let list = LIST_TEXT.replace("reason", "column = \"gone\"\nreason");
    one(&list, README, &["no column `gone`"]);
    let list = LIST_TEXT.replace(
        "unit = \"ns\"\npages = [\"README.md\"]",
        "unit = \"ns\"\npages = []",
    );
    let found = findings(&list, README);
    assert!(found[0].contains("no page shows it"), "{found:#?}");
}

#[test]
fn a_selection_that_does_not_fit_is_found() {
    let list = LIST_TEXT.replace("pick = \"range\"\n", "");
    one(&list, README, &["matches 2 times"]);
    let list = LIST_TEXT.replace("pick = \"range\"", "pick = \"max\"");
    one(&list, README, &["has 2 numbers, and 1 of the report"]);
    let list = LIST_TEXT.replace("line = \"table", "row = \"fill\"\nline = \"table");
    assert!(findings(&list, README)[0].contains("row `fill`"));
}

#[test]
fn a_list_that_cannot_be_read_is_found() {
    one(
        "figure = 7\n",
        README,
        &["docs/figures.toml:1", "no list of figures"],
    );
    let list = LIST_TEXT.replace("pick =", "pikc =");
    one(&list, README, &["pikc"]);
    assert!(check(&[])[0].to_string().contains("absent"));
}

#[test]
fn every_page_is_checked_or_has_a_reason_not_to_be() {
    let page = README.replace('.', ", 7 ns.");
    assert_ne!(findings(LIST_TEXT, &page), [""; 0]);
    let reason = "[[unchecked]]\npage = \"README.md\"\nreason = \"another command\"\n\n[[figure]]";
    let list = LIST_TEXT.replacen("[[figure]]", reason, 1);
    assert_eq!(findings(&list, &page), [""; 0]);
    one(&list.replace("another command", ""), README, &["no reason"]);
    let gone = list.replacen("README.md", "GONE.md", 1);
    one(&gone, README, &["no such page"]);
}
