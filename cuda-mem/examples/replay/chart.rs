//! Bytes over the operations, as a picture.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::measure::Curve;

/// Pixels: the whole width, and the height for each resource.
const SIZE: (u32, u32) = (1200, 420);
/// The most points of a line: more than one a pixel shows nothing more.
const POINTS: usize = 1200;

/// One resource.
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) curve: Curve,
}

/// Draws one panel below the other.
pub(crate) fn draw(asked: &[u64], panels: &[Panel]) -> Result<String> {
    let mut picture = String::new();
    {
        let count = panels.len().max(1);
        let height = SIZE.1 * u32::try_from(count)?;
        let root = SVGBackend::with_string(&mut picture, (SIZE.0, height)).into_drawing_area();
        root.fill(&WHITE).map_err(told)?;
        for (panel, area) in panels.iter().zip(root.split_evenly((count, 1))) {
            draw_panel(&area, asked, panel)?;
        }
        root.present().map_err(told)?;
    }
    Ok(picture)
}

fn draw_panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    asked: &[u64],
    panel: &Panel,
) -> Result<()> {
    let lines = [
        (
            "reserved",
            RED,
            thinned(panel.curve.iter().map(|levels| levels.1)),
        ),
        (
            "used",
            BLUE,
            thinned(panel.curve.iter().map(|levels| levels.0)),
        ),
        ("asked", BLACK, thinned(asked.iter().copied())),
    ];
    let points = lines.iter().flat_map(|(_, _, points)| points);
    let top = points
        .map(|point| point.1)
        .fold(f64::MIN_POSITIVE, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(90)
        .build_cartesian_2d(0.0..asked.len().max(1) as f64, 0.0..top * 1.05)
        .map_err(told)?;
    chart
        .configure_mesh()
        .x_desc("operation")
        .y_desc("MiB")
        .x_label_formatter(&|x| format!("{x:.0}"))
        .light_line_style(TRANSPARENT)
        .draw()
        .map_err(told)?;
    for (name, colour, points) in lines {
        chart
            .draw_series(LineSeries::new(points, colour))
            .map_err(told)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()
        .map_err(told)
}

/// The highest value of each stretch, in MiB: a peak must not get lost.
fn thinned(values: impl ExactSizeIterator<Item = u64>) -> Vec<(f64, f64)> {
    let stretch = values.len().div_ceil(POINTS).max(1);
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (index, value) in values.enumerate() {
        let mib = value as f64 / f64::from(1 << 20);
        match points.last_mut() {
            Some(last) if index % stretch != 0 => last.1 = last.1.max(mib),
            _ => points.push(((index + 1) as f64, mib)),
        }
    }
    points
}

/// Its errors are not `Sync`, which `anyhow` wants.
fn told(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("the picture could not be drawn: {error}")
}
