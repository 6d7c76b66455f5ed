//! An origin as PyTorch's frames.

#![forbid(unsafe_code)]

use serde::Serialize;

use crate::ledger::Origin;

/// A line of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Frame<'a> {
    filename: &'a str,
    line: i64,
    name: &'a str,
}

/// Innermost first. Of a Rust program there is one, without a name.
pub(super) fn frames(origin: Option<&Origin>) -> Vec<Frame<'_>> {
    match origin {
        Some(Origin::Line(line)) => vec![Frame {
            filename: line.file(),
            line: line.line().into(),
            name: "",
        }],
        Some(Origin::Frames(frames)) => frames.split(';').map(frame).collect(),
        None => Vec::new(),
    }
}

/// Of `FILE:LINE` or `FILE:LINE NAME`. Files and names may have colons and spaces too.
fn frame(text: &str) -> Frame<'_> {
    for (at, _) in text.match_indices(':') {
        let rest = &text[at + 1..];
        let (number, name) = rest.split_once(' ').unwrap_or((rest, ""));
        if let Ok(line) = number.parse::<u32>() {
            let filename = &text[..at];
            let line = line.into();
            return Frame {
                filename,
                line,
                name,
            };
        }
    }
    Frame {
        filename: text,
        line: 0,
        name: "",
    }
}

#[cfg(test)]
mod tests {
    use std::panic::Location;
    use std::sync::Arc;

    use super::*;

    /// File, line and name of each frame.
    fn parts(text: &str) -> Vec<(String, i64, String)> {
        let origin = Origin::Frames(Arc::from(text));
        let frames = frames(Some(&origin)).into_iter();
        frames
            .map(|frame| (frame.filename.to_owned(), frame.line, frame.name.to_owned()))
            .collect()
    }

    #[test]
    fn frames_have_file_line_and_name() {
        let part = |file: &str, line, name: &str| (file.to_owned(), line, name.to_owned());
        let expected = [part("model.py", 3, "forward"), part("train.py", 10, "")];
        assert_eq!(parts("model.py:3 forward;train.py:10"), expected);
        let windows = [part("C:\\a b\\c.cpp", 7, "ns::call (int) const")];
        assert_eq!(parts("C:\\a b\\c.cpp:7 ns::call (int) const"), windows);
        assert_eq!(parts("no line"), [part("no line", 0, "")]);
    }

    #[test]
    fn a_line_of_a_rust_program_is_one_frame() {
        let here = Location::caller();
        let origin = Origin::Line(here);
        let frames = frames(Some(&origin));
        assert_eq!(frames.len(), 1);
        assert_eq!(
            (frames[0].filename, frames[0].line),
            (file!(), here.line().into())
        );
        assert_eq!(super::frames(None), []);
    }
}
