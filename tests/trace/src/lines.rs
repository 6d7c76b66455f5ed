//! The lines of a log and their fields, with bounds on the memory that they take.

use std::io::{self, BufRead, BufReader, Read};

/// The most bytes of a line. Rows have some sixty; a file without line breaks would otherwise be read
/// into memory as a whole, and may be a packed one of any size.
pub(crate) const LONGEST: usize = 64 << 10;

/// What is wrong, and in which line.
type Problem = (Option<u64>, String);

/// Reads one line after the other. Blank ones are passed over, and counted.
pub(crate) struct Lines<R> {
    source: BufReader<R>,
    line: Vec<u8>,
    /// The number of the line that was read last, counted from 1.
    pub(crate) number: u64,
}

impl<R: Read> Lines<R> {
    pub(crate) fn new(source: R) -> Self {
        Self {
            source: BufReader::with_capacity(LONGEST, source),
            line: Vec::new(),
            number: 0,
        }
    }

    /// The next line that is not blank, without blanks around it; `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<&str>, Problem> {
        loop {
            self.line.clear();
            let mut part = self.source.by_ref().take(LONGEST as u64 + 1);
            // Which line cannot be read is of no use to those who look for the reason.
            let read = part.read_until(b'\n', &mut self.line);
            let read = read.map_err(|error| (None, unreadable(&error)))?;
            if read == 0 {
                return Ok(None);
            }
            self.number += 1;
            if read > LONGEST {
                let problem = format!("has more than {LONGEST} bytes");
                return Err((Some(self.number), problem));
            }
            // Some programs write it at the beginning of a text.
            if self.number == 1 && self.line.starts_with(b"\xef\xbb\xbf") {
                self.line.drain(..3);
            }
            if !self.line.trim_ascii().is_empty() {
                break;
            }
        }
        std::str::from_utf8(&self.line)
            .map(|line| Some(line.trim()))
            .map_err(|_| (Some(self.number), "is no text in UTF-8".to_owned()))
    }
}

fn unreadable(error: &io::Error) -> String {
    format!("cannot be read: {error}")
}

/// The fields of one line.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    text: String,
    /// Where each field is in `text`.
    places: Vec<(usize, usize)>,
}

impl Fields {
    /// Takes a line apart, in the place of the one before.
    pub(crate) fn split(&mut self, line: &str) {
        self.text.clear();
        self.places.clear();
        if line.contains('"') {
            self.split_quoted(line);
            return;
        }
        for field in line.split(',') {
            self.push(field);
        }
    }

    /// Nothing in RMM's logs needs quotes, but other programs put them around texts.
    fn split_quoted(&mut self, line: &str) {
        let mut reader = csv::ReaderBuilder::new()
            .has_headers(false)
            .from_reader(line.as_bytes());
        let mut record = csv::StringRecord::new();
        // Neither reading memory nor text that is one can fail. A quote that is left open ends with the line.
        if let Ok(true) = reader.read_record(&mut record) {
            for field in &record {
                self.push(field);
            }
        }
    }

    fn push(&mut self, field: &str) {
        let start = self.text.len();
        self.text.push_str(field.trim());
        self.places.push((start, self.text.len()));
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// A field by its number; nothing if there are fewer.
    pub(crate) fn get(&self, index: usize) -> &str {
        let (start, end) = self.places.get(index).copied().unwrap_or_default();
        &self.text[start..end]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).map(|index| self.get(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8]) -> Result<Vec<(u64, String)>, Problem> {
        let mut lines = Lines::new(text);
        let mut all = Vec::new();
        while let Some(line) = lines.next()? {
            let line = line.to_owned();
            all.push((lines.number, line));
        }
        Ok(all)
    }

    #[test]
    fn blank_lines_are_passed_over_and_counted() {
        let read = all(b"\xef\xbb\xbfone\r\n\n \t\n two \nthree").expect("lines");
        let read: Vec<(u64, &str)> = read.iter().map(|(at, line)| (*at, &**line)).collect();
        assert_eq!(read, [(1, "one"), (4, "two"), (5, "three")]);
        let (line, problem) = all(b"one\n\xff").expect_err("no text");
        assert!(line == Some(2) && problem.contains("UTF-8"), "{problem}");
    }

    #[test]
    fn fields_may_be_quoted() {
        let mut fields = Fields::default();
        for (line, expected) in [
            ("0, 0.1 ,free", &["0", "0.1", "free"][..]),
            (
                "\"a,\"\"b\"\"\",\"free \", 0x10",
                &["a,\"b\"", "free", "0x10"],
            ),
            ("0,,", &["0", "", ""]),
        ] {
            fields.split(line);
            assert_eq!(fields.iter().collect::<Vec<_>>(), expected, "{line}");
        }
        assert_eq!(fields.get(3), "");
    }
}
