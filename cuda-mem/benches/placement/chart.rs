//! The rows as a picture: bandwidth, the time of a step, and the time to make memory, by size.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;
use serde_json::Value;

const WIDTH: u32 = 1200;
const PANEL: u32 = 430;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A figure of the rows, what it is, and its unit.
const PANELS: [(&str, &str, &str); 12] = [
    ("device_write_gb_s", "the device writes, again", "GB/s"),
    ("device_read_gb_s", "the device reads, again", "GB/s"),
    (
        "device_first_write_gb_s",
        "the device writes, first pass",
        "GB/s",
    ),
    (
        "device_first_read_gb_s",
        "the device reads, first pass",
        "GB/s",
    ),
    ("host_write_gb_s", "the host writes, again", "GB/s"),
    ("host_read_gb_s", "the host reads, again", "GB/s"),
    (
        "host_first_write_gb_s",
        "the host writes, first pass",
        "GB/s",
    ),
    ("host_first_read_gb_s", "the host reads, first pass", "GB/s"),
    ("device_step_ns", "a step of the device", "ns"),
    ("host_step_ns", "a step of the host", "ns"),
    ("device_launch_us", "a launch that writes one word", "µs"),
    ("allocate_us", "allocate and free", "µs"),
];

pub(crate) fn draw(report: &Value, file: &Path) -> Result<()> {
    let rows: Vec<&Value> = report["rows"].as_array().into_iter().flatten().collect();
    let has = |key: &str| rows.iter().any(|row| row[key].is_number());
    let panels: Vec<_> = PANELS.into_iter().filter(|panel| has(panel.0)).collect();
    let lines = panels.len().div_ceil(2);
    let size = (WIDTH, 60 + PANEL * lines as u32);
    let root = SVGBackend::new(file, size).into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    let title = format!(
        "Memory by kind and size, {}, CUDA {}",
        report["device"].as_str().unwrap_or("?"),
        report["driver"].as_str().unwrap_or("?")
    );
    let root = root.titled(&title, ("sans-serif", 20)).map_err(failed)?;
    let mut kinds: Vec<&str> = Vec::new();
    for kind in rows.iter().filter_map(|row| row["kind"].as_str()) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    for (area, panel) in root.split_evenly((lines, 2)).iter().zip(panels) {
        draw_panel(area, &rows, &kinds, panel)?;
    }
    root.present().map_err(failed)
}

fn draw_panel(
    area: &Area<'_>,
    rows: &[&Value],
    kinds: &[&str],
    (key, caption, unit): (&str, &str, &str),
) -> Result<()> {
    let figures = rows.iter().filter_map(|row| row[key].as_f64());
    let (least, most) = figures.fold((f64::MAX, 0.0_f64), |(least, most), figure| {
        (least.min(figure), most.max(figure))
    });
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 16))
        .margin(8)
        .x_label_area_size(28)
        .y_label_area_size(58)
        .build_cartesian_2d(
            (4096.0..268_435_456_f64).log_scale().base(4.0),
            (least / 1.5..most * 1.5).log_scale(),
        )
        .map_err(failed)?;
    chart
        .configure_mesh()
        .x_label_formatter(&|bytes| size(*bytes))
        .y_label_formatter(&|figure| format!("{}", (figure * 1e4).round() / 1e4))
        .y_desc(unit)
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(failed)?;
    for (index, kind) in kinds.iter().enumerate() {
        let colour = Palette99::pick(index).to_rgba();
        let points: Vec<(f64, f64)> = rows
            .iter()
            .filter(|row| row["kind"].as_str() == Some(*kind))
            .filter_map(|row| Some((row["bytes"].as_f64()?, row[key].as_f64()?)))
            .collect();
        if points.is_empty() {
            continue;
        }
        // Kinds that are equally fast lie on each other: each is narrower than those below it, and has marks of another
        // shape and size.
        let width = (kinds.len() - index) as u32;
        let line = LineSeries::new(points.iter().copied(), colour.stroke_width(width));
        chart.draw_series(line).map_err(failed)?;
        let (wide, style) = (14 - index as i32, colour.stroke_width(2));
        let points = points.into_iter();
        match index % 3 {
            0 => chart.draw_series(points.map(|at| Circle::new(at, wide, style))),
            1 => chart.draw_series(points.map(|at| Cross::new(at, wide, style))),
            _ => chart.draw_series(points.map(|at| TriangleMarker::new(at, wide, style))),
        }
        .map_err(failed)?
        .label(*kind)
        .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(match key.ends_with("gb_s") {
            true => SeriesLabelPosition::LowerRight,
            false => SeriesLabelPosition::UpperLeft,
        })
        .background_style(WHITE.mix(0.8))
        .label_font(("sans-serif", 10))
        .draw()
        .map_err(failed)
}

/// `64 KiB`: the axis has powers of four.
fn size(bytes: f64) -> String {
    match bytes / 1024.0 {
        kib if kib < 1024.0 => format!("{kib} KiB"),
        kib => format!("{} MiB", kib / 1024.0),
    }
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("drawing: {error}")
}
