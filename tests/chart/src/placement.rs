//! The report of the benchmark `placement` as a grid of panels.

use serde_json::Value;

use crate::{Axis, Column, Error, Grid, Result, Series, Unit};

/// A figure of the rows: its key, how many of the axis's unit one of it is, the unit, and what it is.
const FIGURES: [(&str, f64, Unit, &str); 12] = [
    (
        "device_write_gb_s",
        1.0,
        Unit::GigabytesPerSecond,
        "The device writes, many passes",
    ),
    (
        "device_first_write_gb_s",
        1.0,
        Unit::GigabytesPerSecond,
        "The device writes, first pass",
    ),
    (
        "device_read_gb_s",
        1.0,
        Unit::GigabytesPerSecond,
        "The device reads, many passes",
    ),
    (
        "device_first_read_gb_s",
        1.0,
        Unit::GigabytesPerSecond,
        "The device reads, first pass",
    ),
    (
        "device_step_ns",
        1.0,
        Unit::Nanoseconds,
        "A step of a pointer chase on the device",
    ),
    (
        "device_launch_us",
        1e3,
        Unit::Nanoseconds,
        "A launch that writes one word, with a wait",
    ),
    (
        "host_write_gb_s",
        1.0,
        Unit::GigabytesPerSecond,
        "The host writes, many passes",
    ),
    (
        "host_first_write_gb_s",
        1.0,
        Unit::GigabytesPerSecond,
        "The host writes, first pass",
    ),
    (
        "host_read_gb_s",
        1.0,
        Unit::GigabytesPerSecond,
        "The host reads, many passes",
    ),
    (
        "host_first_read_gb_s",
        1.0,
        Unit::GigabytesPerSecond,
        "The host reads, first pass",
    ),
    (
        "host_step_ns",
        1.0,
        Unit::Nanoseconds,
        "A step of a pointer chase on the host",
    ),
    ("allocate_us", 1e3, Unit::Nanoseconds, "Allocate and free"),
];

/// What the column says already.
const MANAGED: &str = "managed, ";

/// Kinds of memory by where it is.
const GROUPS: [&str; 4] = ["device", "host", "managed", "peers"];

fn group(kind: &str) -> &'static str {
    if kind.starts_with("managed") {
        "managed"
    } else if kind.contains("two devices") || kind.contains("peer") {
        "peers"
    } else if kind.starts_with("pinned") || kind.contains("host") {
        "host"
    } else {
        "device"
    }
}

/// A row for each figure, a column for each group of kinds, and a line for each kind.
///
/// # Errors
///
/// [`Error::Input`] if the report has no rows.
pub fn grid(report: &Value) -> Result<Grid> {
    let rows = report["rows"].as_array().map_or(&[][..], Vec::as_slice);
    let mut kinds: Vec<&str> = Vec::new();
    for kind in rows.iter().filter_map(|row| row["kind"].as_str()) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    if kinds.is_empty() {
        return Err(Error::Input(
            "the report has no rows with a kind of memory".to_owned(),
        ));
    }
    let has = |key: &str| rows.iter().any(|row| row[key].is_number());
    let figures: Vec<_> = FIGURES.iter().filter(|figure| has(figure.0)).collect();
    let line = |kind: &str, key: &str, factor: f64| {
        let same = rows.iter().filter(|row| row["kind"] == kind);
        let points =
            same.filter_map(|row| Some((row["bytes"].as_f64()?, row[key].as_f64()? * factor)));
        Some(Series::straight(
            kind.trim_start_matches(MANAGED),
            points.collect(),
        ))
        .filter(|series| !series.points.is_empty())
    };
    let column = |title: &&'static str| {
        let kinds: Vec<&str> = kinds
            .iter()
            .copied()
            .filter(|kind| group(kind) == *title)
            .collect();
        let panel = |(key, factor, ..): &(&str, f64, Unit, &str)| {
            kinds
                .iter()
                .filter_map(|kind| line(kind, key, *factor))
                .collect()
        };
        let panels = figures.iter().map(|figure| panel(figure)).collect();
        (!kinds.is_empty()).then(|| Column {
            title: (*title).to_owned(),
            panels,
        })
    };
    let text = |key: &str| report[key].as_str().unwrap_or("unknown");
    Ok(Grid {
        title: "Memory by kind and size".to_owned(),
        subtitle: format!(
            "{}, CUDA {}, {}",
            text("device"),
            text("driver"),
            text("cpu")
        ),
        x: Axis::logarithmic("size of the memory", Unit::Bytes),
        rows: figures
            .iter()
            .map(|(.., unit, title)| Axis::logarithmic(*title, *unit))
            .collect(),
        columns: GROUPS.iter().filter_map(column).collect(),
    })
}

/// The report among the lines of what a run has printed.
///
/// # Errors
///
/// [`Error::Input`] if there is none.
pub fn read(printed: &str) -> Result<Value> {
    let line = printed.lines().find(|line| line.starts_with('{'));
    let line = line.ok_or_else(|| Error::Input("there is no line of JSON".to_owned()))?;
    serde_json::from_str(line).map_err(|error| Error::Input(error.to_string()))
}
