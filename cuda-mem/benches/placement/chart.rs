//! The rows as a picture: bandwidth by size, from the device and from the host.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use serde_json::Value;

const WIDTH: u32 = 1100;
const HEIGHT: u32 = 900;

const PANELS: [(&str, &str); 4] = [
    ("device_write_gb_s", "the device writes"),
    ("device_read_gb_s", "the device reads"),
    ("host_write_gb_s", "the host writes"),
    ("host_read_gb_s", "the host reads"),
];

pub(crate) fn draw(report: &Value, file: &Path) -> Result<()> {
    let root = SVGBackend::new(file, (WIDTH, HEIGHT)).into_drawing_area();
    root.fill(&WHITE).map_err(failed)?;
    let title = format!(
        "GB/s by size, {}, CUDA {}",
        report["device"].as_str().unwrap_or("?"),
        report["driver"].as_str().unwrap_or("?")
    );
    let root = root.titled(&title, ("sans-serif", 20)).map_err(failed)?;
    let rows: Vec<&Value> = report["rows"].as_array().into_iter().flatten().collect();
    let mut kinds: Vec<&str> = Vec::new();
    for kind in rows.iter().filter_map(|row| row["kind"].as_str()) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    for (area, (key, caption)) in root.split_evenly((2, 2)).iter().zip(PANELS) {
        let mut chart = ChartBuilder::on(area)
            .caption(caption, ("sans-serif", 16))
            .margin(8)
            .x_label_area_size(28)
            .y_label_area_size(52)
            .build_cartesian_2d(
                (4096.0..268_435_456_f64).log_scale().base(4.0),
                (1e-2..1e4_f64).log_scale(),
            )
            .map_err(failed)?;
        chart
            .configure_mesh()
            .x_label_formatter(&|bytes| size(*bytes))
            .y_label_formatter(&f64::to_string)
            .y_desc("GB/s")
            .light_line_style(TRANSPARENT)
            .draw()
            .map_err(failed)?;
        for (index, kind) in kinds.iter().enumerate() {
            let colour = Palette99::pick(index).to_rgba();
            // Kinds that are equally fast lie on each other: the first is the widest.
            let width = 1 + 2 * (kinds.len() - 1 - index) as u32;
            let points = rows
                .iter()
                .filter(|row| row["kind"].as_str() == Some(*kind));
            let points =
                points.filter_map(|row| Some((row["bytes"].as_f64()?, row[key].as_f64()?)));
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(width)))
                .map_err(failed)?
                .label(*kind)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2))
                });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.8))
            .label_font(("sans-serif", 11))
            .draw()
            .map_err(failed)?;
    }
    root.present().map_err(failed)
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
