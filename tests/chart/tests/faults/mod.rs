//! Reads a picture back and looks for faults.

use roxmltree::{Document, Node};
use svg::node::element::path::{Command, Data, Position};

/// In em; the crate has widths of its own.
const LETTER: f64 = 0.63;
const THIN: f64 = 0.36;
const THIN_LETTERS: &str = "fijlrtI .,:;-/()'";
const BOLD: f64 = 1.08;
const ASCENT: f64 = 0.75;
const DESCENT: f64 = 0.2;

/// A rectangle; vertical coordinates grow downwards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rect {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) right: f64,
    pub(crate) bottom: f64,
}

impl Rect {
    fn overlaps(&self, other: &Self) -> bool {
        self.left < other.right
            && other.left < self.right
            && self.top < other.bottom
            && other.top < self.bottom
    }

    fn holds(&self, (x, y): (f64, f64)) -> bool {
        const ROUNDING: f64 = 0.2;
        (self.left - ROUNDING..=self.right + ROUNDING).contains(&x)
            && (self.top - ROUNDING..=self.bottom + ROUNDING).contains(&y)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Text {
    pub(crate) content: String,
    pub(crate) left: f64,
    pub(crate) bottom: f64,
    space: Rect,
}

/// What a picture shows.
#[derive(Debug)]
pub(crate) struct Drawing {
    pub(crate) width: f64,
    height: f64,
    font: String,
    white: bool,
    pub(crate) texts: Vec<Text>,
    pub(crate) plots: Vec<Rect>,
    /// The corners of lines and areas, without those of the legend.
    pub(crate) lines: Vec<Vec<(f64, f64)>>,
    pub(crate) legend: Vec<String>,
    pub(crate) levels: usize,
    pub(crate) x_ticks: Vec<String>,
    pub(crate) y_ticks: Vec<String>,
}

/// All of it is empty for a picture that can be read.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Faults {
    pub(crate) outside: Vec<String>,
    pub(crate) overlapping: Vec<[String; 2]>,
    pub(crate) on_data: Vec<String>,
    /// Lines that leave their plot.
    pub(crate) outside_of_plots: usize,
    pub(crate) other: Vec<&'static str>,
}

fn number(node: Node<'_, '_>, name: &str) -> f64 {
    let value = node.attribute(name).and_then(|value| value.parse().ok());
    value.unwrap_or_else(|| panic!("{node:?} has no number {name}"))
}

fn has_class(node: Node<'_, '_>, class: &str) -> bool {
    let classes = node.attribute("class").unwrap_or_default();
    classes.split(' ').any(|one| one == class)
}

fn is_in(node: Node<'_, '_>, class: &str) -> bool {
    node.ancestors().any(|node| has_class(node, class))
}

fn content(node: Node<'_, '_>) -> String {
    node.text().unwrap_or_default().trim().to_owned()
}

fn text(node: Node<'_, '_>) -> Text {
    let content = content(node);
    let size = number(node, "font-size");
    let letters = content
        .chars()
        .map(|letter| match THIN_LETTERS.contains(letter) {
            true => THIN,
            false => LETTER,
        });
    let weight = node.attribute("font-weight").map_or(1.0, |_| BOLD);
    let width = letters.sum::<f64>() * weight * size;
    let (x, bottom) = (number(node, "x"), number(node, "y"));
    let left = match node.attribute("text-anchor") {
        None => x,
        Some("middle") => x - width / 2.0,
        Some("end") => x - width,
        Some(other) => panic!("{other}"),
    };
    Text {
        content,
        left,
        bottom,
        space: Rect {
            left,
            top: bottom - size * ASCENT,
            right: left + width,
            bottom: bottom + size * DESCENT,
        },
    }
}

fn corners(node: Node<'_, '_>) -> Vec<(f64, f64)> {
    let data = Data::parse(node.attribute("d").unwrap_or_default()).expect("a path");
    let mut corners: Vec<(f64, f64)> = Vec::new();
    for command in data.iter() {
        let last = corners.last().copied().unwrap_or_default();
        corners.push(match command {
            Command::Move(Position::Absolute, to) | Command::Line(Position::Absolute, to) => {
                (f64::from(to[0]), f64::from(to[1]))
            }
            Command::HorizontalLine(Position::Absolute, to) => (f64::from(to[0]), last.1),
            Command::VerticalLine(Position::Absolute, to) => (last.0, f64::from(to[0])),
            Command::Close => last,
            other => panic!("{other:?}"),
        });
    }
    corners
}

impl Drawing {
    pub(crate) fn read(svg: &str) -> Self {
        let document = Document::parse(svg).expect("well-formed");
        let root = document.root_element();
        let view: Vec<f64> = root
            .attribute("viewBox")
            .expect("a view box")
            .split(' ')
            .map(|number| number.parse().expect("a number"))
            .collect();
        let all = || root.descendants().filter(Node::is_element);
        let named = |name: &'static str| all().filter(move |node| node.has_tag_name(name));
        let texts_in = |class: &'static str| {
            named("text")
                .filter(move |node| is_in(*node, class))
                .map(content)
        };
        let plot = |node: Node<'_, '_>| Rect {
            left: number(node, "x"),
            top: number(node, "y"),
            right: number(node, "x") + number(node, "width"),
            bottom: number(node, "y") + number(node, "height"),
        };
        let lines =
            named("path").filter(|node| has_class(*node, "line") || has_class(*node, "area"));
        Self {
            width: view[2],
            height: view[3],
            font: root.attribute("font-family").unwrap_or_default().to_owned(),
            white: named("rect").next().is_some_and(|node| {
                node.attribute("fill") == Some("#fff") && node.attribute("width") == Some("100%")
            }),
            texts: named("text").map(text).collect(),
            plots: named("rect")
                .filter(|node| has_class(*node, "plot"))
                .map(plot)
                .collect(),
            lines: lines
                .filter(|node| !is_in(*node, "legend"))
                .map(corners)
                .collect(),
            legend: texts_in("legend").collect(),
            levels: all().filter(|node| has_class(*node, "level")).count(),
            x_ticks: texts_in("x-ticks").collect(),
            y_ticks: texts_in("y-ticks").collect(),
        }
    }

    pub(crate) fn faults(&self) -> Faults {
        let mut faults = Faults::default();
        for (index, text) in self.texts.iter().enumerate() {
            let name = || text.content.clone();
            let space = text.space;
            if space.left < 0.0
                || space.top < 0.0
                || space.right > self.width
                || space.bottom > self.height
            {
                faults.outside.push(name());
            }
            if self.plots.iter().any(|plot| plot.overlaps(&space)) {
                faults.on_data.push(name());
            }
            let others = self.texts[index + 1..].iter();
            let overlapping = others.filter(|other| other.space.overlaps(&space));
            faults
                .overlapping
                .extend(overlapping.map(|other| [name(), other.content.clone()]));
        }
        let stays = |line: &&Vec<(f64, f64)>| {
            self.plots
                .iter()
                .any(|plot| line.iter().all(|corner| plot.holds(*corner)))
        };
        faults.outside_of_plots = self.lines.iter().filter(|line| !stays(line)).count();
        if self.font != "sans-serif" {
            faults.other.push("a font that not everybody has");
        }
        if !self.white {
            faults.other.push("no white background");
        }
        if self.lines.is_empty() || self.plots.is_empty() {
            faults.other.push("no data");
        }
        faults
    }
}
