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
            .build_cartesian_2d((4e3..3e8_f64).log_scale(), (1e-3..1e4_f64).log_scale())
            .map_err(failed)?;
        chart
            .configure_mesh()
            .x_desc("bytes")
            .y_desc("GB/s")
            .draw()
            .map_err(failed)?;
        for (index, kind) in kinds.iter().enumerate() {
            let colour = Palette99::pick(index).to_rgba();
            let points = rows
                .iter()
                .filter(|row| row["kind"].as_str() == Some(*kind));
            let points =
                points.filter_map(|row| Some((row["bytes"].as_f64()?, row[key].as_f64()?)));
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(2)))
                .map_err(failed)?
                .label(*kind)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour));
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

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("drawing: {error}")
}
