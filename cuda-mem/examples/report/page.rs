//! The page: its parts and the packed numbers in one file.

use std::io::Write as _;

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use crate::columns::Columns;
use crate::run::Run;

const FRAME: &str = include_str!("page/page.html");
const ONE: &str = include_str!("page/report.html");
const TWO: &str = include_str!("page/diff.html");
const STYLE: &str = include_str!("page/page.css");
/// In this order, in one scope.
const SCRIPTS: [&str; 9] = [
    include_str!("page/text.js"),
    include_str!("page/data.js"),
    include_str!("page/steps.js"),
    include_str!("page/range.js"),
    include_str!("page/chart.js"),
    include_str!("page/map.js"),
    include_str!("page/tables.js"),
    include_str!("page/report.js"),
    include_str!("page/diff.js"),
];

/// The page for one run, or for two.
pub(crate) fn page(runs: &[Run], columns: &Columns) -> Result<String> {
    let names: Vec<&str> = runs.iter().map(|run| &*run.name).collect();
    let body = if runs.len() == 1 { ONE } else { TWO };
    let parts = [
        ("title", escaped(&names.join(" and "))),
        ("style", STYLE.to_owned()),
        ("body", body.to_owned()),
        ("data", STANDARD.encode(packed(runs, columns)?)),
        ("script", SCRIPTS.join("\n")),
    ];
    Ok(filled(FRAME, &parts))
}

/// The length of a JSON text in eight digits, the text, and the columns. All text of a log is in there and
/// nowhere else, so that nothing of it is taken for HTML.
fn packed(runs: &[Run], columns: &Columns) -> Result<Vec<u8>> {
    let runs: Vec<_> = runs.iter().map(Run::json).collect();
    let head = json!({ "runs": runs }).to_string();
    let mut packer = GzEncoder::new(Vec::new(), Compression::new(4));
    write!(packer, "{:08}", head.len())?;
    packer.write_all(head.as_bytes())?;
    packer.write_all(columns.bytes())?;
    Ok(packer.finish()?)
}

/// Replaces `{{name}}` by the part of that name. Parts are not searched.
fn filled(frame: &str, parts: &[(&str, String)]) -> String {
    let mut pieces = frame.split("{{");
    let mut page = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (name, rest) = piece.split_once("}}").unwrap_or(("", piece));
        let part = parts.iter().find(|(other, _)| *other == name);
        page.push_str(part.map_or("", |(_, text)| text));
        page.push_str(rest);
    }
    page
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('"', "&quot;")
}
