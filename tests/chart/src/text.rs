//! Texts: estimated widths, wrapping, and boxes.

use svg::node::element::Text;

/// Units of the picture per em.
pub(crate) const SMALL: f64 = 11.0;
pub(crate) const NORMAL: f64 = 12.0;
pub(crate) const TITLE: f64 = 15.0;

/// How far letters reach above and below their base line, in em.
pub(crate) const ASCENT: f64 = 0.78;
pub(crate) const DESCENT: f64 = 0.24;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// What a text looks like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Font {
    pub(crate) size: f64,
    pub(crate) bold: bool,
    pub(crate) colour: &'static str,
}

const fn font(size: f64, bold: bool, colour: &'static str) -> Font {
    Font { size, bold, colour }
}

pub(crate) const HEADING: Font = font(TITLE, true, "#1f2328");
pub(crate) const SUBHEADING: Font = font(NORMAL, true, "#1f2328");
pub(crate) const PLAIN: Font = font(NORMAL, false, "#1f2328");
pub(crate) const QUIET: Font = font(NORMAL, false, "#59636e");
pub(crate) const TICK: Font = font(SMALL, false, "#59636e");
pub(crate) const KEY: Font = font(SMALL, false, "#1f2328");

impl Font {
    /// At most so wide. The viewer's font is unknown; DejaVu Sans is the widest of the common ones.
    pub(crate) fn width(self, text: &str) -> f64 {
        let em: f64 = text.chars().map(em).sum();
        em * self.size * if self.bold { 1.12 } else { 1.0 }
    }

    pub(crate) fn line(self) -> f64 {
        self.size * 1.4
    }

    pub(crate) fn text(self, text: &str, (x, y): (f64, f64), anchor: Anchor) -> Text {
        let element = Text::new(text)
            .set("x", tenths(x))
            .set("y", tenths(y))
            .set("font-size", self.size)
            .set("fill", self.colour);
        let element = match anchor {
            Anchor::Start => element,
            Anchor::Middle => element.set("text-anchor", "middle"),
            Anchor::End => element.set("text-anchor", "end"),
        };
        match self.bold {
            true => element.set("font-weight", "bold"),
            false => element,
        }
    }

    /// Lines of at most `width`, unless a single word is wider.
    pub(crate) fn wrap(self, text: &str, width: f64) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for word in text.split_whitespace() {
            match lines.last_mut() {
                Some(line) if self.width(&format!("{line} {word}")) <= width => {
                    line.push(' ');
                    line.push_str(word);
                }
                _ => lines.push(word.to_owned()),
            }
        }
        lines
    }
}

fn em(letter: char) -> f64 {
    match letter {
        '\'' | 'i' | 'j' | 'l' | 'I' | 'J' => 0.30,
        ' ' | '.' | ',' | ':' | ';' | '/' | '\\' | '|' => 0.34,
        '!' | '-' | '(' | ')' | '[' | ']' | 'f' | 't' | 'r' => 0.42,
        's' | 'z' | 'c' | '*' | '_' | '"' | '?' => 0.56,
        'm' | 'M' | 'W' | '%' | '@' => 1.0,
        'w' | 'D' | 'G' | 'H' | 'N' | 'O' | 'Q' | 'U' | '#' | '+' | '<' | '=' | '>' | '^' | '~'
        | '&' => 0.84,
        'A'..='Z' => 0.70,
        'µ' | '\u{20}'..='\u{7e}' => 0.64,
        _ => 1.0,
    }
}

/// A picture needs no finer coordinates.
pub(crate) fn tenths(number: f64) -> f64 {
    // Adding zero makes a negative zero positive.
    (number * 10.0).round() / 10.0 + 0.0
}
