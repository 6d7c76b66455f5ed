//! Every measured number of the pages comes from a report.
//!
//! `docs/figures.toml` lists the numbers that pages show, each with the place in a committed report where
//! it was measured. Pages show no other number with a unit, but for those that the list exempts with a
//! reason.

mod number;
mod prose;
mod select;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde::Deserialize;
use toml::Spanned;

use super::Finding;
use super::source::Text;
use number::{Number, conversion, numbers};
use prose::Page;
use select::{OneOrMany, Selector, values};

const LIST: &str = "docs/figures.toml";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default)]
    unchecked: Vec<Unchecked>,
    #[serde(default)]
    figure: Vec<Figure>,
    #[serde(default)]
    exempt: Vec<Exempt>,
}

/// A page that is not checked, and why.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Unchecked {
    page: Spanned<String>,
    reason: String,
}

/// A number that pages show, or several in one text, and where it was measured.
#[derive(Debug, Deserialize)]
struct Figure {
    name: Spanned<String>,
    /// As the pages show it.
    text: String,
    /// One, or several whose values follow each other.
    report: OneOrMany<String>,
    /// The unit of the report, where the text has another one.
    unit: Option<String>,
    pages: Vec<String>,
    /// The first cell of the rows in which the text stands.
    row: Option<String>,
    #[serde(flatten)]
    selector: toml::Table,
}

/// Numbers of a page that are no measurements, and what they are.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exempt {
    page: Spanned<String>,
    #[serde(default)]
    text: OneOrMany<String>,
    /// Titles of columns of which no cell is a measurement.
    #[serde(default)]
    column: OneOrMany<String>,
    row: Option<String>,
    reason: String,
}

pub(super) fn check(files: &[Text]) -> Vec<Finding> {
    let texts: BTreeMap<&str, &str> = files
        .iter()
        .map(|file| (file.path.as_str(), file.text.as_str()))
        .collect();
    let Some(source) = texts.get(LIST) else {
        return vec![Finding::new(
            LIST,
            1,
            "the list of figures is absent",
            "restore it",
        )];
    };
    match toml::from_str(source) {
        Ok(list) => Check::new(&texts, source, &list).run(),
        Err(error) => {
            let line = error.span().map_or(1, |span| line_at(source, span.start));
            let what = format!("this is no list of figures: {}", error.message());
            vec![Finding::new(LIST, line, what, "correct it")]
        }
    }
}

fn line_at(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

struct Check<'a> {
    texts: &'a BTreeMap<&'a str, &'a str>,
    source: &'a str,
    list: &'a List,
    pages: BTreeMap<&'a str, Page>,
    findings: Vec<Finding>,
}

impl<'a> Check<'a> {
    fn new(texts: &'a BTreeMap<&'a str, &'a str>, source: &'a str, list: &'a List) -> Self {
        let pages = texts.iter().filter(|(path, _)| path.ends_with(".md"));
        Self {
            texts,
            source,
            list,
            pages: pages
                .map(|(path, text)| (*path, Page::read(text)))
                .collect(),
            findings: Vec::new(),
        }
    }

    fn run(mut self) -> Vec<Finding> {
        self.every_exception_has_a_reason();
        let mut covered: BTreeMap<&str, Vec<Range<usize>>> = BTreeMap::new();
        let mut names = BTreeSet::new();
        for figure in &self.list.figure {
            if !names.insert(figure.name.get_ref()) {
                self.report(&figure.name, "the name is taken", "choose another one");
            }
            if let Err(what) = figure.compare(self.texts) {
                let remedy =
                    "write what the report has, on the pages too, or select the right place";
                self.report(&figure.name, &what, remedy);
            }
            if figure.pages.is_empty() {
                self.report(&figure.name, "no page shows it", "remove it");
            }
            for page in &figure.pages {
                let hits = self.find(&figure.name, page, &figure.text, figure.row.as_deref());
                covered.entry(page).or_default().extend(hits);
            }
        }
        for exempt in &self.list.exempt {
            if exempt.reason.trim().is_empty() {
                self.report(
                    &exempt.page,
                    "there is no reason",
                    "say what these numbers are",
                );
            }
            let page = exempt.page.get_ref().as_str();
            for text in exempt.text.as_slice() {
                let hits = self.find(&exempt.page, page, text, exempt.row.as_deref());
                covered.entry(page).or_default().extend(hits);
            }
            for title in exempt.column.as_slice() {
                let cells = self.pages.get(page).map(|page| page.column(title));
                let cells = self.some(&exempt.page, cells, &format!("column `{title}` on {page}"));
                covered.entry(page).or_default().extend(cells);
            }
        }
        let unchecked = self.list.unchecked.iter();
        let unchecked: BTreeSet<&str> =
            unchecked.map(|page| page.page.get_ref().as_str()).collect();
        for (path, page) in &self.pages {
            if belongs(path) && !unchecked.contains(path) {
                let covered = covered.get(path).map_or(&[][..], Vec::as_slice);
                every_number_is_covered(path, page, covered, &mut self.findings);
            }
        }
        self.findings
    }

    fn report(&mut self, at: &Spanned<String>, what: &str, remedy: &str) {
        let line = line_at(self.source, at.span().start);
        let what = format!("`{}`: {what}", at.get_ref());
        self.findings.push(Finding::new(LIST, line, what, remedy));
    }

    fn every_exception_has_a_reason(&mut self) {
        for Unchecked { page, reason } in &self.list.unchecked {
            if !self.pages.contains_key(page.get_ref().as_str()) {
                self.report(page, "there is no such page", "correct the path");
            }
            if reason.trim().is_empty() {
                self.report(page, "there is no reason", "say why it is not checked");
            }
        }
    }

    /// Where a page shows a text; a finding if it does not.
    fn find(
        &mut self,
        at: &Spanned<String>,
        page: &str,
        text: &str,
        row: Option<&str>,
    ) -> Vec<Range<usize>> {
        let hits = self.pages.get(page).map(|page| page.occurrences(text, row));
        let place = row.map_or_else(String::new, |row| format!(", row `{row}`"));
        self.some(at, hits, &format!("`{text}` on {page}{place}"))
    }

    /// What was found; a finding if nothing was.
    fn some(
        &mut self,
        at: &Spanned<String>,
        found: Option<Vec<Range<usize>>>,
        what: &str,
    ) -> Vec<Range<usize>> {
        let found = found.unwrap_or_default();
        if found.is_empty() {
            let remedy = "write the page as the list has it, or correct or remove this entry";
            self.report(at, &format!("there is no {what}"), remedy);
        }
        found
    }
}

fn every_number_is_covered(
    path: &str,
    page: &Page,
    covered: &[Range<usize>],
    findings: &mut Vec<Finding>,
) {
    for number in page.measurements() {
        let inside = |whole: &Range<usize>| whole.start <= number.start && number.end <= whole.end;
        if !covered.iter().any(inside) {
            findings.push(Finding::new(
                path,
                page.line_of(number.start),
                format!("no figure has `{}`", page.at(&number)),
                "write the number of a report and list it in docs/figures.toml, or exempt it \
                 there if nobody measured it",
            ));
        }
    }
}

/// The book without the dated records, and what each package says of itself.
fn belongs(path: &str) -> bool {
    let in_book = path
        .strip_prefix("docs/src/")
        .is_some_and(|name| !name.contains('/'));
    in_book || path.ends_with("README.md")
}

impl Figure {
    /// Whether the text shows what the report has.
    fn compare(&self, texts: &BTreeMap<&str, &str>) -> Result<(), String> {
        let paths = self.report.as_slice();
        let mut reports = Vec::new();
        for path in paths {
            let report = texts.get(path.as_str());
            reports.push(*report.ok_or_else(|| format!("there is no report {path}"))?);
        }
        let paths = paths.join(", ");
        let selector: Selector = self
            .selector
            .clone()
            .try_into()
            .map_err(|error: toml::de::Error| error.message().to_owned())?;
        let shown = numbers(&self.text);
        let measured = values(&selector, &reports, shown.len())
            .map_err(|error| format!("{paths}: {error}"))?;
        if measured.len() != shown.len() {
            return Err(format!(
                "`{}` has {} numbers, and {} of the report are selected",
                self.text,
                shown.len(),
                measured.len()
            ));
        }
        for (number, value) in shown.iter().zip(measured) {
            let value = self.in_unit_of(number, value)?;
            if !number.shows(value) {
                let Number { decimals, .. } = number;
                return Err(format!(
                    "`{}` is not what {paths} has: {value:.decimals$}",
                    self.text
                ));
            }
        }
        Ok(())
    }

    fn in_unit_of(&self, number: &Number, value: f64) -> Result<f64, String> {
        let Some(from) = &self.unit else {
            return Ok(value);
        };
        let to = number
            .unit
            .as_ref()
            .ok_or("the text has no unit to convert to")?;
        Ok(value * conversion(from, to)?)
    }
}

#[cfg(test)]
mod tests;
