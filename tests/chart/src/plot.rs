//! What stands between two axes.

use svg::node::element::path::Data;
use svg::node::element::{Group, Line, Path, Rectangle};

use crate::axis::{Ruler, Tick};
use crate::series::{Series, Shape, peaks};
use crate::style::{AREA, FRAME, GRID, LEVEL, Style};
use crate::text::{ASCENT, Anchor, DESCENT, TICK, tenths};

/// Between an axis and its labels.
pub(crate) const GAP: f64 = 7.0;
/// Between two labels.
const APART: f64 = 8.0;
/// A line with more points than this has a few markers along it instead of one at each point.
const MARKED: usize = 24;
/// Markers along a line.
const ALONG: usize = 5;

/// The rectangle of a plot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

impl Frame {
    pub(crate) fn right(&self) -> f64 {
        self.left + self.width
    }

    pub(crate) fn bottom(&self) -> f64 {
        self.top + self.height
    }
}

/// Whether the labels of a vertical axis are apart.
pub(crate) fn fits_beside(ruler: &Ruler, height: f64) -> bool {
    let positions: Vec<f64> = ruler
        .ticks
        .iter()
        .map(|tick| ruler.position(tick.value) * height)
        .collect();
    positions
        .windows(2)
        .all(|pair| pair[1] - pair[0] >= TICK.line())
}

/// Whether the labels of a horizontal axis are apart, and none reaches further than `overhang` out of it.
pub(crate) fn fits_below(ruler: &Ruler, width: f64, overhang: f64) -> bool {
    let spans: Vec<(f64, f64)> = ruler
        .ticks
        .iter()
        .map(|tick| {
            let (at, half) = (
                ruler.position(tick.value) * width,
                TICK.width(&tick.label) / 2.0,
            );
            (at - half, at + half)
        })
        .collect();
    let inside = |(start, end): &(f64, f64)| *start >= -overhang && *end <= width + overhang;
    spans.iter().all(inside) && spans.windows(2).all(|pair| pair[1].0 - pair[0].1 >= APART)
}

pub(crate) fn widest(ticks: &[Tick]) -> f64 {
    let widths = ticks.iter().map(|tick| TICK.width(&tick.label));
    widths.fold(0.0, f64::max)
}

/// Below an axis down to here reach its labels.
pub(crate) fn below() -> f64 {
    GAP + TICK.size * (ASCENT + DESCENT)
}

/// A rectangle with two axes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plot<'a> {
    pub(crate) frame: Frame,
    pub(crate) x: &'a Ruler,
    pub(crate) y: &'a Ruler,
}

impl Plot<'_> {
    fn x_of(&self, value: f64) -> f64 {
        self.frame.left + self.x.position(value) * self.frame.width
    }

    pub(crate) fn y_of(&self, value: f64) -> f64 {
        self.frame.bottom() - self.y.position(value) * self.frame.height
    }

    /// The frame with a line for each tick, below everything else.
    pub(crate) fn ground(&self) -> Group {
        let Frame {
            left,
            top,
            width,
            height,
        } = self.frame;
        let frame = Rectangle::new()
            .set("class", "plot")
            .set("x", tenths(left))
            .set("y", tenths(top))
            .set("width", tenths(width))
            .set("height", tenths(height))
            .set("fill", "none")
            .set("stroke", FRAME);
        let mut grid = Data::new();
        for tick in &self.x.ticks {
            grid = grid
                .move_to((tenths(self.x_of(tick.value)), tenths(top)))
                .vertical_line_by(tenths(height));
        }
        for tick in &self.y.ticks {
            grid = grid
                .move_to((tenths(left), tenths(self.y_of(tick.value))))
                .horizontal_line_by(tenths(width));
        }
        let grid = Path::new().set("d", grid).set("stroke", GRID);
        Group::new().add(grid).add(frame)
    }

    pub(crate) fn labels_below(&self) -> Group {
        let y = self.frame.bottom() + GAP + TICK.size * ASCENT;
        self.x
            .ticks
            .iter()
            .fold(Group::new().set("class", "x-ticks"), |group, tick| {
                group.add(TICK.text(&tick.label, (self.x_of(tick.value), y), Anchor::Middle))
            })
    }

    pub(crate) fn labels_beside(&self) -> Group {
        let x = self.frame.left - GAP;
        self.y
            .ticks
            .iter()
            .fold(Group::new().set("class", "y-ticks"), |group, tick| {
                let y = self.y_of(tick.value) + TICK.size * (ASCENT - DESCENT) / 2.0;
                group.add(TICK.text(&tick.label, (x, y), Anchor::End))
            })
    }

    pub(crate) fn area(&self, series: &Series) -> Path {
        let points = self.points(series);
        let mut data = self.outline(series.shape, &points);
        if let (Some(first), Some(last)) = (points.first(), points.last()) {
            let end = match series.shape {
                Shape::Steps => self.frame.right(),
                Shape::Straight => last.0,
            };
            data = data
                .line_to((tenths(end), tenths(self.frame.bottom())))
                .horizontal_line_to(tenths(first.0))
                .close();
        }
        Path::new()
            .set("class", "area")
            .set("d", data)
            .set("fill", AREA)
    }

    pub(crate) fn line(&self, series: &Series, style: Style) -> Path {
        style.line(self.outline(series.shape, &self.points(series)))
    }

    /// Of the series `style` of `count`: their markers along the lines keep apart.
    pub(crate) fn marks(&self, series: &Series, style: Style, count: usize) -> Path {
        let points = self.points(series);
        let points = if points.len() <= MARKED && series.shape == Shape::Straight {
            points
        } else {
            let first = (style.0 as f64 + 0.5) / count.max(1) as f64;
            let places = (0..ALONG).map(|index| (index as f64 + first) / ALONG as f64);
            let marks = places.filter_map(|place| {
                let x = self.frame.left + place * self.frame.width;
                let at = points
                    .partition_point(|point| point.0 <= x)
                    .checked_sub(1)?;
                Some(match series.shape {
                    Shape::Steps => (x, points[at].1),
                    Shape::Straight => points[at],
                })
            });
            marks.collect()
        };
        style.marks(corners(&points))
    }

    pub(crate) fn level(&self, value: f64) -> Line {
        let y = tenths(self.y_of(value));
        Line::new()
            .set("class", "level")
            .set("x1", tenths(self.frame.left))
            .set("x2", tenths(self.frame.right()))
            .set("y1", y)
            .set("y2", y)
            .set("stroke", LEVEL)
            .set("stroke-dasharray", "2 3")
            .set("stroke-width", 1.5)
    }

    /// On the picture, and not more than can be seen.
    fn points(&self, series: &Series) -> Vec<(f64, f64)> {
        // Upwards, so that the highest value of a column is kept.
        let points = series
            .points
            .iter()
            .map(|(x, y)| (self.x_of(*x), -self.y_of(*y)));
        let kept = peaks(points, f64::floor);
        kept.into_iter().map(|(x, y)| (x, -y)).collect()
    }

    fn outline(&self, shape: Shape, points: &[(f64, f64)]) -> Data {
        if shape == Shape::Straight {
            return corners(points);
        }
        let Some(first) = points.first() else {
            return Data::new();
        };
        let mut data = Data::new().move_to((tenths(first.0), tenths(first.1)));
        let mut height = tenths(first.1);
        for (x, y) in points {
            if tenths(*y) != height {
                height = tenths(*y);
                data = data.horizontal_line_to(tenths(*x)).vertical_line_to(height);
            }
        }
        data.horizontal_line_to(tenths(self.frame.right()))
    }
}

fn corners(points: &[(f64, f64)]) -> Data {
    let points = points.iter().map(|(x, y)| (tenths(*x), tenths(*y)));
    points
        .enumerate()
        .fold(Data::new(), |data, (index, at)| match index {
            0 => data.move_to(at),
            _ => data.line_to(at),
        })
}
