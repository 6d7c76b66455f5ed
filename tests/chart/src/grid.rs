//! Small panels in rows and columns.

use crate::axis::{End, Ruler};
use crate::picture::{Key, MARGIN, Picture, WIDTH};
use crate::plot::{self, Frame, GAP, Plot};
use crate::style::Style;
use crate::text::{ASCENT, Anchor, HEADING, KEY, PLAIN, QUIET, SUBHEADING};
use crate::{Axis, Result, Series};

const HEIGHT: f64 = 84.0;
const NARROWEST: f64 = 120.0;
/// Between two columns.
const BETWEEN: f64 = 30.0;

/// Panels that are compared with each other: a row has one vertical axis, and all have the same horizontal
/// one.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    /// The first line.
    pub title: String,
    /// Where and how it was measured; may be empty.
    pub subtitle: String,
    /// The horizontal axis of every panel.
    pub x: Axis,
    /// The vertical axes from the top to the bottom. Their titles stand above the rows.
    pub rows: Vec<Axis>,
    /// From the left to the right.
    pub columns: Vec<Column>,
}

/// Panels below each other, with a legend above them.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// What its series have in common.
    pub title: String,
    /// The lines of each row. Lines with the same name have one key and look the same.
    pub panels: Vec<Vec<Series>>,
}

impl Column {
    /// Of a row, which may have none.
    fn lines(&self, row: usize) -> &[Series] {
        self.panels.get(row).map_or(&[], Vec::as_slice)
    }

    fn names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for series in self.panels.iter().flatten() {
            if !names.contains(&series.name.as_str()) {
                names.push(series.name.as_str());
            }
        }
        names
    }
}

impl Grid {
    /// The text of an SVG file.
    ///
    /// # Errors
    ///
    /// As [`Chart::svg`](crate::Chart::svg); a row without a point is empty.
    pub fn svg(&self) -> Result<String> {
        let series = || {
            self.columns
                .iter()
                .flat_map(|column| column.panels.iter().flatten())
        };
        let rows: Vec<Ruler> = self
            .rows
            .iter()
            .enumerate()
            .map(|(row, axis)| {
                let series = self.columns.iter().flat_map(|column| column.lines(row));
                let values = series
                    .flat_map(|series| &series.points)
                    .map(|point| point.1);
                Ruler::new(axis, values, End::AtTick, |ruler| {
                    plot::fits_beside(ruler, HEIGHT)
                })
            })
            .collect::<Result<_>>()?;
        let labels = rows.iter().map(|ruler| plot::widest(&ruler.ticks));
        let left = MARGIN + labels.fold(0.0, f64::max) + GAP;

        let names: Vec<Vec<&str>> = self.columns.iter().map(Column::names).collect();
        let keys: Vec<Vec<Key<'_>>> = names
            .iter()
            .map(|names| {
                names
                    .iter()
                    .enumerate()
                    .map(|(index, name)| Key::Line(name, Style(index)))
                    .collect()
            })
            .collect();
        let count = self.columns.len().max(1) as f64;
        let headings = self
            .columns
            .iter()
            .map(|column| SUBHEADING.width(&column.title));
        let least = keys
            .iter()
            .flatten()
            .map(Key::width)
            .chain(headings)
            .fold(NARROWEST, f64::max);
        let even = (WIDTH - left - MARGIN + BETWEEN) / count - BETWEEN;
        let wide = even.max(least);
        let mut picture = Picture::new(left + count * (wide + BETWEEN) - BETWEEN + MARGIN);

        picture.paragraph(&self.title, HEADING);
        picture.paragraph(&self.subtitle, QUIET);
        picture.y += 8.0;
        let x_of = |column: usize| left + column as f64 * (wide + BETWEEN);
        for (index, (column, keys)) in self.columns.iter().zip(&keys).enumerate() {
            let at = (x_of(index), picture.y + SUBHEADING.size * ASCENT);
            picture.add(SUBHEADING.text(&column.title, at, Anchor::Start));
            picture.column_of_keys(keys, (x_of(index), picture.y + SUBHEADING.line()));
        }
        let most = keys.iter().map(Vec::len).max().unwrap_or(0);
        picture.y += SUBHEADING.line() + most as f64 * KEY.line() + 6.0;

        let points = series().flat_map(|series| &series.points);
        let x = Ruler::new(
            &self.x,
            points.map(|point| point.0),
            End::AtHighestValue,
            |ruler| plot::fits_below(ruler, wide, BETWEEN / 2.0 - 3.0),
        )?;
        for (row, (axis, y)) in self.rows.iter().zip(&rows).enumerate() {
            picture.y += 14.0;
            picture.paragraph(&axis.title, PLAIN);
            picture.y += 2.0;
            for (index, column) in self.columns.iter().enumerate() {
                let frame = Frame {
                    left: x_of(index),
                    top: picture.y,
                    width: wide,
                    height: HEIGHT,
                };
                let plot = Plot { frame, x: &x, y };
                if column.lines(row).is_empty() {
                    let at = (wide / 2.0 + frame.left, HEIGHT / 2.0 + frame.top);
                    picture.add(QUIET.text("not measured", at, Anchor::Middle));
                } else {
                    picture.add(plot.ground());
                }
                if index == 0 {
                    picture.add(plot.labels_beside());
                }
                if row + 1 == self.rows.len() {
                    picture.add(plot.labels_below());
                }
                let styled = column.lines(row).iter().filter_map(|line| {
                    let number = names[index].iter().position(|name| *name == line.name)?;
                    Some((line, Style(number)))
                });
                for (line, style) in styled.clone() {
                    picture.add(plot.line(line, style));
                }
                for (line, style) in styled {
                    picture.add(plot.marks(line, style, names[index].len()));
                }
            }
            picture.y += HEIGHT;
        }
        picture.y += plot::below() + 8.0;
        let middle = (left + picture.width - MARGIN) / 2.0;
        picture.add(PLAIN.text(
            &self.x.title,
            (middle, picture.y + PLAIN.size * ASCENT),
            Anchor::Middle,
        ));
        picture.y += PLAIN.line();
        Ok(picture.finish(&self.title))
    }
}
