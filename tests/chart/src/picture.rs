//! What is common to all pictures: paper, markers, legends.

use svg::node::element::path::Data;
use svg::node::element::{Definitions, Group, Rectangle, Title};
use svg::{Document, Node};

use crate::style::{AREA, Style};
use crate::text::{ASCENT, Anchor, Font, KEY, tenths};

/// Units of a picture are pixels where it is shown in its own size. A page of GitHub is about so wide.
pub(crate) const WIDTH: f64 = 880.0;
/// Around everything.
pub(crate) const MARGIN: f64 = 14.0;
/// The line and the marker beside a name in the legend.
const SAMPLE: f64 = 26.0;
/// From a name in the legend to the next sample.
const BETWEEN: f64 = 20.0;

/// A picture that is drawn from the top to the bottom.
#[derive(Debug)]
pub(crate) struct Picture {
    group: Group,
    pub(crate) width: f64,
    /// Above it everything is taken.
    pub(crate) y: f64,
    styles: usize,
}

/// A sample and a name of a legend.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Key<'a> {
    Area(&'a str),
    Line(&'a str, Style),
}

impl Key<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Area(name) | Self::Line(name, _) => name,
        }
    }

    pub(crate) fn width(&self) -> f64 {
        SAMPLE + 6.0 + KEY.width(self.name())
    }
}

impl Picture {
    pub(crate) fn new(width: f64) -> Self {
        Self {
            group: Group::new(),
            width,
            y: MARGIN,
            styles: 0,
        }
    }

    /// The width for text.
    pub(crate) fn inside(&self) -> f64 {
        self.width - 2.0 * MARGIN
    }

    pub(crate) fn add(&mut self, node: impl Node) {
        self.group.append(Box::new(node) as Box<dyn Node>);
    }

    /// A paragraph over the whole width.
    pub(crate) fn paragraph(&mut self, text: &str, font: Font) {
        for line in font.wrap(text, self.inside()) {
            self.add(font.text(&line, (MARGIN, self.y + font.size * ASCENT), Anchor::Start));
            self.y += font.line();
        }
    }

    /// Keys beside each other, as many as there is room for in a line.
    pub(crate) fn legend(&mut self, keys: &[Key<'_>]) {
        let mut legend = Group::new().set("class", "legend");
        let mut x = MARGIN;
        for key in keys {
            if x > MARGIN && x + key.width() > self.width - MARGIN {
                x = MARGIN;
                self.y += KEY.line() + 3.0;
            }
            legend = self.key(legend, key, (x, self.y));
            x += key.width() + BETWEEN;
        }
        self.y += KEY.line() + 3.0;
        self.add(legend);
    }

    /// Keys below each other, from `place` on.
    pub(crate) fn column_of_keys(&mut self, keys: &[Key<'_>], (x, y): (f64, f64)) {
        let legend = Group::new().set("class", "legend");
        let lines = keys.iter().enumerate();
        let legend = lines.fold(legend, |legend, (index, key)| {
            self.key(legend, key, (x, y + index as f64 * KEY.line()))
        });
        self.add(legend);
    }

    fn key(&mut self, legend: Group, key: &Key<'_>, (x, y): (f64, f64)) -> Group {
        let middle = y + KEY.size * 0.5;
        let legend = match key {
            Key::Area(_) => {
                let rectangle = Rectangle::new()
                    .set("x", tenths(x))
                    .set("y", tenths(middle - 5.0))
                    .set("width", SAMPLE)
                    .set("height", 10)
                    .set("fill", AREA);
                legend.add(rectangle)
            }
            Key::Line(_, style) => {
                self.styles = self.styles.max(style.0 + 1);
                let start = Data::new().move_to((tenths(x), tenths(middle)));
                let half = tenths(x + SAMPLE / 2.0);
                let mark = Data::new().move_to((half, tenths(middle)));
                let line = style.line(start.horizontal_line_by(SAMPLE));
                legend.add(line).add(style.marks(mark))
            }
        };
        let at = (x + SAMPLE + 6.0, y + KEY.size * ASCENT);
        legend.add(KEY.text(key.name(), at, Anchor::Start))
    }

    /// The file.
    pub(crate) fn finish(self, title: &str) -> String {
        let (width, height) = (self.width.ceil(), (self.y + MARGIN).ceil());
        let css: String = (0..self.styles).map(|index| Style(index).css()).collect();
        let markers = (0..self.styles).fold(Definitions::new(), |all, index| {
            all.add(Style(index).marker())
        });
        let paper = Rectangle::new()
            .set("width", "100%")
            .set("height", "100%")
            .set("fill", "#fff");
        let document = Document::new()
            .set("viewBox", (0, 0, width, height))
            .set("width", width)
            .set("height", height)
            .set("role", "img")
            // Browsers and GitHub have no other font for certain.
            .set("font-family", "sans-serif")
            .add(Title::new(title))
            .add(svg::node::element::Style::new(css))
            .add(markers)
            .add(paper)
            .add(self.group);
        document.to_string() + "\n"
    }
}
