//! One panel.

use svg::node::element::Path;
use svg::node::element::path::Data;

use crate::axis::{End, Ruler};
use crate::number::measured;
use crate::picture::{Key, MARGIN, Picture, WIDTH};
use crate::plot::{self, Frame, GAP, Plot};
use crate::style::{LEVEL, Style};
use crate::text::{ASCENT, Anchor, DESCENT, HEADING, KEY, PLAIN, QUIET};
use crate::{Axis, Level, Result, Series};

const HEIGHT: f64 = 330.0;
const NARROWEST: f64 = 420.0;
/// The line from a level to its label.
const LEADER: f64 = 12.0;

/// One panel: an area, lines over it, and levels to compare with. The legend stands below.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    /// The first line.
    pub title: String,
    /// Where and how it was measured; may be empty.
    pub subtitle: String,
    /// The horizontal axis.
    pub x: Axis,
    /// The vertical axis.
    pub y: Axis,
    /// Filled down to the axis, below the lines.
    pub area: Option<Series>,
    /// Each has a key in the legend.
    pub lines: Vec<Series>,
    /// Labelled beside the panel.
    pub levels: Vec<Level>,
    /// Below the legend, a paragraph each.
    pub notes: Vec<String>,
}

impl Chart {
    /// Without content.
    pub fn new(title: impl Into<String>, x: Axis, y: Axis) -> Self {
        Self {
            title: title.into(),
            subtitle: String::new(),
            x,
            y,
            area: None,
            lines: Vec::new(),
            levels: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// The text of an SVG file.
    ///
    /// # Errors
    ///
    /// [`Error::Empty`](crate::Error::Empty) without any point, and
    /// [`Error::OffAxis`](crate::Error::OffAxis) for a value that an axis cannot show.
    pub fn svg(&self) -> Result<String> {
        let series = || self.area.iter().chain(&self.lines);
        let points = || series().flat_map(|series| &series.points);
        let labels: Vec<String> = self.levels.iter().map(|level| self.label(level)).collect();
        let height = HEIGHT.max(labels.len() as f64 * KEY.line());

        let levels = self.levels.iter().map(|level| level.value);
        let y = Ruler::new(
            &self.y,
            points().map(|point| point.1).chain(levels),
            End::AtTick,
            |ruler| plot::fits_beside(ruler, height),
        )?;
        let left = MARGIN + plot::widest(&y.ticks) + GAP;
        let widest = |widths: &mut dyn Iterator<Item = f64>| widths.fold(0.0, f64::max);
        let beside = match labels.is_empty() {
            true => 2.0 * MARGIN,
            false => {
                LEADER + 4.0 + widest(&mut labels.iter().map(|label| KEY.width(label))) + MARGIN
            }
        };
        let keys: Vec<Key<'_>> = self
            .area
            .iter()
            .map(|area| Key::Area(&area.name))
            .chain(
                self.lines
                    .iter()
                    .enumerate()
                    .map(|(index, line)| Key::Line(&line.name, Style(index))),
            )
            .collect();
        let words = |text: &str, font: crate::text::Font| {
            widest(&mut text.split_whitespace().map(|word| font.width(word)))
        };
        let text = [
            widest(&mut keys.iter().map(Key::width)),
            words(&self.title, HEADING),
            words(&self.subtitle, QUIET),
            widest(&mut self.notes.iter().map(|note| words(note, QUIET))),
            PLAIN.width(&self.x.title),
            PLAIN.width(&self.y.title),
        ];
        let text = widest(&mut text.into_iter()) + 2.0 * MARGIN;
        let mut picture = Picture::new(WIDTH.max(left + NARROWEST + beside).max(text));

        picture.paragraph(&self.title, HEADING);
        picture.paragraph(&self.subtitle, QUIET);
        picture.y += 6.0;
        picture.paragraph(&self.y.title, PLAIN);
        picture.y += 6.0;
        let frame = Frame {
            left,
            top: picture.y,
            width: picture.width - left - beside,
            height,
        };
        let x = Ruler::new(
            &self.x,
            points().map(|point| point.0),
            End::AtHighestValue,
            |ruler| plot::fits_below(ruler, frame.width, beside.min(left) - 4.0),
        )?;
        let plot = Plot {
            frame,
            x: &x,
            y: &y,
        };
        picture.add(plot.ground());
        if let Some(area) = &self.area {
            picture.add(plot.area(area));
        }
        for (index, line) in self.lines.iter().enumerate() {
            picture.add(plot.line(line, Style(index)));
        }
        for level in &self.levels {
            picture.add(plot.level(level.value));
        }
        for (index, line) in self.lines.iter().enumerate() {
            picture.add(plot.marks(line, Style(index), self.lines.len()));
        }
        picture.add(plot.labels_beside());
        picture.add(plot.labels_below());
        self.label_levels(&mut picture, &plot, &labels);

        picture.y = frame.bottom() + plot::below() + 8.0;
        let middle = left + frame.width / 2.0;
        picture.add(PLAIN.text(
            &self.x.title,
            (middle, picture.y + PLAIN.size * ASCENT),
            Anchor::Middle,
        ));
        picture.y += PLAIN.line() + 8.0;
        picture.legend(&keys);
        for note in &self.notes {
            picture.paragraph(note, QUIET);
        }
        Ok(picture.finish(&self.title))
    }

    fn label(&self, level: &Level) -> String {
        format!("{} {}", level.name, measured(self.y.unit, level.value))
    }

    /// Beside the ends of their lines, moved apart where these are close to each other.
    fn label_levels(&self, picture: &mut Picture, plot: &Plot<'_>, labels: &[String]) {
        let Frame { top, height, .. } = plot.frame;
        let lines: Vec<f64> = self
            .levels
            .iter()
            .map(|level| plot.y_of(level.value))
            .collect();
        let places = spread(
            &lines,
            KEY.line(),
            (top + KEY.line() / 2.0, top + height - KEY.line() / 2.0),
        );
        let right = plot.frame.right();
        for ((label, line), place) in labels.iter().zip(lines).zip(places) {
            let leader = Data::new()
                .move_to((right, line))
                .line_to((right + LEADER, place));
            picture.add(
                Path::new()
                    .set("d", leader)
                    .set("fill", "none")
                    .set("stroke", LEVEL),
            );
            let y = place + KEY.size * (ASCENT - DESCENT) / 2.0;
            picture.add(KEY.text(label, (right + LEADER + 4.0, y), Anchor::Start));
        }
    }
}

/// Places near `wanted` that are `apart` from each other and between the ends, which have room for all.
fn spread(wanted: &[f64], apart: f64, (low, high): (f64, f64)) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|a, b| wanted[*a].total_cmp(&wanted[*b]));
    let mut places = wanted.to_vec();
    let mut free = low;
    for index in &order {
        places[*index] = places[*index].max(free);
        free = places[*index] + apart;
    }
    let mut free = high;
    for index in order.iter().rev() {
        places[*index] = places[*index].min(free);
        free = places[*index] - apart;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_moved_apart_and_stay_inside() {
        assert_eq!(spread(&[50.0, 10.0], 10.0, (0.0, 100.0)), [50.0, 10.0]);
        assert_eq!(
            spread(&[50.0, 49.0, 51.0], 10.0, (0.0, 100.0)),
            [59.0, 49.0, 69.0]
        );
        assert_eq!(spread(&[99.0, 98.0], 10.0, (0.0, 100.0)), [100.0, 90.0]);
        assert_eq!(
            spread(&[1.0, 2.0, 3.0], 10.0, (5.0, 25.0)),
            [5.0, 15.0, 25.0]
        );
    }
}
