//! The measured numbers of a page: where they are, and which of them a text covers.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::LazyLock;

use regex::Regex;

use super::number::{NUMBER, UNIT, is_part_of_a_name};
use crate::tidy::markdown::lines_outside_fences;

/// A page as its readers see it.
pub(super) struct Page {
    /// As long as the file, with spaces in place of code, addresses and comments.
    text: String,
    /// The first cell of each row of a table, by where its line begins.
    labels: BTreeMap<usize, String>,
    /// The other cells of the rows of tables, with the titles of their columns.
    cells: Vec<(Range<usize>, String)>,
}

/// A space, or the end of a line inside a paragraph.
const GAP: &str = r"(?:[ \t]+\n?[ \t]*|\n[ \t]*)";

impl Page {
    pub(super) fn read(file: &str) -> Self {
        let mut page = Self {
            text: visible(file),
            labels: BTreeMap::new(),
            cells: Vec::new(),
        };
        page.find_tables(file);
        page
    }

    pub(super) fn line_of(&self, at: usize) -> usize {
        self.text[..at].matches('\n').count() + 1
    }

    pub(super) fn at(&self, range: &Range<usize>) -> String {
        self.text[range.clone()]
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// Every number with a unit of measurement, and every number in a cell that has no words.
    pub(super) fn measurements(&self) -> Vec<Range<usize>> {
        static PATTERNS: LazyLock<Option<(Regex, Regex)>> = LazyLock::new(|| {
            let join = format!("(?:{GAP}?[–—,/-]{GAP}?|{GAP}(?:to|and|or|of){GAP})");
            let list = format!("{NUMBER}(?:{join}{NUMBER})*");
            let measured = format!("{list}{GAP}?{UNIT}|{NUMBER}{GAP}of{GAP}{NUMBER}");
            Some((Regex::new(&measured).ok()?, Regex::new(NUMBER).ok()?))
        });
        let Some((measured, number)) = &*PATTERNS else {
            return Vec::new();
        };
        let mut found = self.matches(measured, number, 0..self.text.len());
        for (cell, _) in &self.cells {
            if is_numeric(&self.text[cell.clone()]) {
                found.extend(self.matches(number, number, cell.clone()));
            }
        }
        found.sort_by_key(|range| (range.start, range.end));
        found
    }

    /// What `pattern` matches, but for digits that are part of a name.
    fn matches(&self, pattern: &Regex, number: &Regex, within: Range<usize>) -> Vec<Range<usize>> {
        let text = &self.text[..within.end];
        let mut found = Vec::new();
        let mut start = within.start;
        while let Some(hit) = pattern.find_at(text, start) {
            start = hit.end();
            if is_part_of_a_name(text, hit.start()) {
                // Another one may begin behind these digits.
                start = number.find_at(text, hit.start()).map_or(start, |n| n.end());
            } else {
                found.push(hit.range());
            }
        }
        found
    }

    /// Where a text stands, whatever its line breaks; in rows with this first cell, if one is given.
    pub(super) fn occurrences(&self, text: &str, row: Option<&str>) -> Vec<Range<usize>> {
        let text = visible(text);
        let words: Vec<_> = text.split_whitespace().map(regex::escape).collect();
        let Ok(pattern) = Regex::new(&words.join(GAP)) else {
            return Vec::new();
        };
        let hits = pattern.find_iter(&self.text).map(|hit| hit.range());
        hits.filter(|hit| !self.cuts_a_word(hit))
            .filter(|hit| row.is_none_or(|row| self.label_at(hit.start) == Some(row)))
            .collect()
    }

    fn cuts_a_word(&self, range: &Range<usize>) -> bool {
        let inside = &self.text[range.clone()];
        let after = &self.text[range.end..];
        let in_word = |c: char| c.is_alphanumeric() || c == '_';
        let digit = |c: char| c.is_ascii_digit();
        let goes_on = after.starts_with(['.', ',']) && after[1..].starts_with(digit);
        let thousands = self.text[..range.start].ends_with(',') && inside.starts_with(digit);
        (inside.starts_with(in_word) && is_part_of_a_name(&self.text, range.start))
            || (inside.ends_with(in_word) && after.starts_with(in_word))
            || (inside.ends_with(digit) && goes_on)
            || thousands
    }

    fn label_at(&self, at: usize) -> Option<&str> {
        let line = self.text[..at].rfind('\n').map_or(0, |end| end + 1);
        self.labels.get(&line).map(String::as_str)
    }

    /// The cells below this title, in all tables.
    pub(super) fn column(&self, title: &str) -> Vec<Range<usize>> {
        let below = self.cells.iter().filter(|(_, column)| column == title);
        below.map(|(cell, _)| cell.clone()).collect()
    }

    fn find_tables(&mut self, file: &str) {
        let mut titles = Vec::new();
        let mut in_body = false;
        for (_, start, line) in lines_outside_fences(file) {
            if !line.starts_with('|') {
                in_body = false;
                continue;
            }
            let cells = cells(&self.text, start, line.len());
            if line.chars().all(|c| "|-: ".contains(c)) {
                in_body = true;
            } else if in_body {
                let named = cells.iter().zip(&titles).skip(1);
                self.cells
                    .extend(named.map(|(cell, title): (_, &String)| (cell.clone(), title.clone())));
            } else {
                let shown = cells
                    .iter()
                    .map(|cell| file[cell.clone()].trim().to_owned());
                titles = shown.collect();
            }
            if let Some(first) = cells.first() {
                let label = file[first.clone()].trim().to_owned();
                self.labels.insert(start, label);
            }
        }
    }
}

/// The cells of the row that begins there.
fn cells(text: &str, start: usize, length: usize) -> Vec<Range<usize>> {
    let mut from = start + 1;
    let row = text[from..start + length].split('|').map(|cell| {
        let here = from..from + cell.len();
        from = here.end + 1;
        here
    });
    row.collect()
}

/// Numbers and what stands between them.
fn is_numeric(cell: &str) -> bool {
    let join = ["to", "and", "or", "of"];
    let mut words = cell
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty());
    cell.contains(|c: char| c.is_ascii_digit())
        && words.all(|word| join.contains(&word) || word.chars().all(|c| c.is_ascii_digit()))
}

/// The file with spaces in place of everything that is not read as text.
fn visible(file: &str) -> String {
    let mut bytes: Vec<u8> = file
        .bytes()
        .map(|b| if b == b'\n' { b } else { b' ' })
        .collect();
    let mut in_code = false;
    let mut in_comment = false;
    for (_, start, line) in lines_outside_fences(file) {
        if line.trim().is_empty() {
            in_code = false;
        }
        let mut rest = line;
        let mut shown = |from: usize, to: usize| {
            bytes[start + from..start + to].copy_from_slice(&line.as_bytes()[from..to]);
        };
        while let Some(next) = rest.chars().next() {
            let at = line.len() - rest.len();
            let mut skip = next.len_utf8();
            if in_comment {
                in_comment = !rest.starts_with("-->");
            } else if next == '`' {
                in_code = !in_code;
            } else if rest.starts_with("<!--") && !in_code {
                in_comment = true;
            } else if rest.starts_with("](") && !in_code {
                skip = rest.find(')').map_or(rest.len(), |end| end + 1);
            } else if next != '*' && !in_code {
                shown(at, at + skip);
            }
            rest = &rest[skip..];
        }
    }
    String::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(file: &str) -> Vec<String> {
        let page = Page::read(file);
        page.measurements()
            .iter()
            .map(|range| page.at(range))
            .collect()
    }

    #[test]
    fn numbers_with_units_are_found_in_prose() {
        assert_eq!(
            measured(
                "A pair takes 13.7 – 14.4 ns,\nwhich is 1.5 to\n2 × faster. All **679 of 679 tests**, in 5 s."
            ),
            ["13.7 – 14.4 ns", "1.5 to 2 ×", "679 of 679 tests", "5 s"]
        );
        assert_eq!(
            measured("R42, 13 ns; 344 of 344; [54 to 122 µs](a.txt)."),
            ["13 ns", "344 of 344", "54 to 122 µs"]
        );
    }

    #[test]
    fn code_addresses_names_and_plain_numbers_are_no_measurements() {
        let file = "CUDA 11.2, R42, 2026-11-22, `5 ms`, [a](b-7 s.md), <!-- 8 ms -->\n\
            ```text\n9 ns\n```\n`code that\n6 ns` goes on, 12 pieces, 580.159.04\n";
        assert_eq!(measured(file), [""; 0]);
    }

    #[test]
    fn cells_of_numbers_count_but_for_labels_and_headings() {
        let file = "| threads | 1 | 2 |\n|---|---|---|\n| 4 | 1.05, 1,220 | **0.998** to 1.06 |\n\
            | `a` | 4 calls | CUDA 11.2 |\n";
        assert_eq!(measured(file), ["1.05", "1,220", "0.998", "1.06"]);
        let page = Page::read(file);
        let below: Vec<_> = page.column("1").iter().map(|cell| page.at(cell)).collect();
        assert_eq!(below, ["1.05, 1,220", "4 calls"]);
    }

    #[test]
    fn a_text_is_found_across_lines_and_not_inside_others() {
        let page = Page::read("It takes 632\nns, or 1632 ns, or 632 nsx, or 0.632 ns.\n");
        let hits = page.occurrences("632 ns", None);
        let places: Vec<_> = hits.iter().map(|hit| (hit.start, hit.end)).collect();
        assert_eq!(places, [(9, 15)]);
        let page = Page::read("With `on` 26 ns, with `off` 9.\n");
        assert_eq!(page.occurrences("26 ns, with `off` 9", None).len(), 1);
        let page = Page::read("It takes 1,632 or 632,100 or 632.5.\n");
        assert!(page.occurrences("632", None).is_empty());
    }

    #[test]
    fn a_text_can_be_looked_for_in_one_row() {
        let page = Page::read("|a|b|\n|-|-|\n| `pool` | 14 |\n| arena | 14 |\n");
        assert_eq!(page.occurrences("14", None).len(), 2);
        let one = page.occurrences("14", Some("`pool`"));
        assert_eq!(
            one.iter()
                .map(|hit| page.line_of(hit.start))
                .collect::<Vec<_>>(),
            [3]
        );
    }
}
