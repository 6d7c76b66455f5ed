//! How series are told apart: by colour, by dashes, and by the shape of their markers.

use svg::node::element::path::Data;
use svg::node::element::{Marker, Path};

use crate::text::tenths;

/// The colours of Okabe and Ito that stand out on white; people with colour blindness can tell them apart.
const COLOURS: [&str; 7] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000",
];

/// Four of them, so that a colour that comes again has other dashes.
const DASHES: [Option<&str>; 4] = [None, Some("8 3"), Some("3 3"), Some("9 3 2 3")];

pub(crate) const AREA: &str = "#d0d7de";
pub(crate) const GRID: &str = "#e4e8ec";
pub(crate) const FRAME: &str = "#8c959f";
pub(crate) const LEVEL: &str = "#424a53";

/// The look of a series by its number in the legend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Style(pub(crate) usize);

impl Style {
    fn colour(self) -> &'static str {
        COLOURS[self.0 % COLOURS.len()]
    }

    /// Later series lie on earlier ones and are narrower, so that equal series all show.
    fn width(self) -> f64 {
        tenths((2.8 - 0.3 * self.0 as f64).max(1.2))
    }

    fn radius(self) -> f64 {
        (5.2 - 0.5 * self.0 as f64).max(2.6)
    }

    pub(crate) fn line(self, data: Data) -> Path {
        let class = format!("line s{}", self.0);
        Path::new().set("class", class).set("d", data)
    }

    /// Markers at all corners of a path, which itself is not drawn.
    pub(crate) fn marks(self, data: Data) -> Path {
        let class = format!("m{}", self.0);
        Path::new().set("class", class).set("d", data)
    }

    /// The rules for the classes of [`Style::line`] and [`Style::marks`].
    pub(crate) fn css(self) -> String {
        let (number, colour, width) = (self.0, self.colour(), self.width());
        let dashes = DASHES[number % DASHES.len()];
        let dashes = dashes
            .map(|dashes| format!(";stroke-dasharray:{dashes}"))
            .unwrap_or_default();
        format!(
            ".s{number}{{fill:none;stroke:{colour};stroke-width:{width};stroke-linejoin:round{dashes}}}\n\
             .m{number}{{fill:none;marker:url(#m{number})}}\n"
        )
    }

    /// What [`Style::marks`] refers to.
    pub(crate) fn marker(self) -> Marker {
        let shape = Path::new()
            .set("d", outline(self.0, self.radius()))
            .set("fill", "#fff")
            .set("stroke", self.colour())
            .set("stroke-width", 1.5);
        Marker::new()
            .set("id", format!("m{}", self.0))
            .set("markerUnits", "userSpaceOnUse")
            .set("overflow", "visible")
            .add(shape)
    }
}

/// A shape around the origin.
fn outline(number: usize, radius: f64) -> Data {
    let polygon = |corners: &[(f64, f64)]| {
        let corners = corners
            .iter()
            .map(|(x, y)| (tenths(x * radius), tenths(y * radius)));
        let mut corners = corners.enumerate();
        let all = corners
            .by_ref()
            .fold(Data::new(), |data, (index, at)| match index {
                0 => data.move_to(at),
                _ => data.line_to(at),
            });
        all.close()
    };
    let r = tenths(radius);
    match number % 6 {
        0 => Data::new()
            .move_to((-r, 0))
            .elliptical_arc_by((r, r, 0, 1, 0, 2.0 * r, 0))
            .elliptical_arc_by((r, r, 0, 1, 0, -2.0 * r, 0))
            .close(),
        1 => polygon(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]),
        2 => polygon(&[(0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)]),
        3 => polygon(&[(0.0, -1.3), (1.3, 0.0), (0.0, 1.3), (-1.3, 0.0)]),
        4 => polygon(&[(0.0, 1.2), (1.1, -0.8), (-1.1, -0.8)]),
        _ => polygon(&[
            (-0.4, -1.2),
            (0.4, -1.2),
            (0.4, -0.4),
            (1.2, -0.4),
            (1.2, 0.4),
            (0.4, 0.4),
            (0.4, 1.2),
            (-0.4, 1.2),
            (-0.4, 0.4),
            (-1.2, 0.4),
            (-1.2, -0.4),
            (-0.4, -0.4),
        ]),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn series_differ_in_more_than_colour() {
        let without_colour = |style: Style| {
            (
                style.0 % DASHES.len(),
                outline(style.0, 4.0).len().to_string() + &format!("{:?}", outline(style.0, 4.0)),
            )
        };
        let looks: BTreeSet<_> = (0..12).map(|index| without_colour(Style(index))).collect();
        assert_eq!(looks.len(), 12);
        let with_colour = |style: Style| (style.colour(), without_colour(style));
        let looks: BTreeSet<_> = (0..28).map(|index| with_colour(Style(index))).collect();
        assert_eq!(looks.len(), 28);
    }
}
