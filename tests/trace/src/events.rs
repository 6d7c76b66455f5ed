//! All rows of a log, of RMM's format or the extended one.

use std::collections::HashMap;
use std::io::BufRead;
use std::path::Path;

use crate::rows::{self, Action, Problem, Row, address, size, stream};
use crate::time::Clock;
use crate::{TraceError, read};

/// One row of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Nanoseconds since the first event; never less than that of the event before.
    pub time: u64,
    /// What happened.
    pub action: Action,
    /// The address, 0 if the action has none.
    pub pointer: u64,
    /// The column Size: bytes, or the count of [`Action::DriverCalls`] and [`Action::Dropped`].
    pub size: u64,
    /// The number of the thread in [`Events::threads`].
    pub thread: usize,
    /// The number of the stream in [`Events::streams`].
    pub stream: usize,
    /// The number of the origin in [`Events::origins`]; 0 is an unknown one.
    pub origin: usize,
}

/// All rows of a log, in order.
///
/// Their fields are checked, but not whether they fit together: a log that lost events has frees of unknown
/// memory. [`Timeline`](crate::Timeline) counts those.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// The rows.
    pub events: Vec<Event>,
    /// What the log calls its threads.
    pub threads: Vec<String>,
    /// What the log calls its streams.
    pub streams: Vec<String>,
    /// The frames of each origin, innermost first, separated by `;`. The first one is empty.
    pub origins: Vec<String>,
}

impl Events {
    /// Reads the log at `path`, and unpacks it if its first bytes are those of gzip or zstd.
    ///
    /// # Errors
    ///
    /// Says the file, the line and what is wrong with it.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        read(path, Self::parse)
    }

    /// Reads a log that is no file, and unpacks it likewise. `name` is what errors call it.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_from(name: &Path, packed: impl BufRead) -> Result<Self, TraceError> {
        Self::parse(packed).map_err(|problem| TraceError::new(name, problem))
    }

    pub(crate) fn parse(packed: impl BufRead) -> Result<Self, Problem> {
        let mut builder = Builder::default();
        builder.origins.number("");
        rows::for_each(packed, |row| builder.row(row))?;
        if builder.events.is_empty() {
            return Err((None, "the log has no events".to_owned()));
        }
        Ok(Self {
            events: builder.events,
            threads: builder.threads.names,
            streams: builder.streams,
            origins: builder.origins.names,
        })
    }
}

#[derive(Default)]
struct Builder {
    events: Vec<Event>,
    clock: Clock,
    threads: Names,
    origins: Names,
    /// One stream has several names: its key → its number.
    stream_numbers: HashMap<u128, usize>,
    streams: Vec<String>,
}

impl Builder {
    fn row(&mut self, row: &Row<'_>) -> Result<(), String> {
        let event = Event {
            time: row.time.map_or(Ok(0), |time| self.clock.next(time))?,
            action: row.action,
            pointer: address(row.pointer)?,
            size: size(row.size)?,
            thread: self.threads.number(row.thread),
            stream: self.stream(row.stream)?,
            origin: self.origins.number(row.origin),
        };
        self.events.push(event);
        Ok(())
    }

    fn stream(&mut self, name: &str) -> Result<usize, String> {
        // Rows that are of no stream may leave it out.
        let key = if name.is_empty() { 0 } else { stream(name)? };
        let next = self.streams.len();
        let number = *self.stream_numbers.entry(key).or_insert(next);
        if number == next {
            let text = if key == 0 { "0x0" } else { name };
            self.streams.push(text.to_owned());
        }
        Ok(number)
    }
}

/// Texts, numbered in the order of their first appearance.
#[derive(Default)]
struct Names {
    names: Vec<String>,
    numbers: HashMap<String, usize>,
}

impl Names {
    fn number(&mut self, name: &str) -> usize {
        // Looked up first: nearly all are known and then need no copy.
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.names.len();
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream,Origin\n";

    fn parse(rows: &str) -> Result<Events, Problem> {
        Events::parse(format!("{HEADER}{rows}").as_bytes())
    }

    #[test]
    fn every_action_and_column_is_read() {
        let rows: String = Action::ALL
            .iter()
            .map(|(_, name)| format!("7,04:12:33.5,{name},0x10,4096,(nil),\"a.rs:1;b,c.rs:2 f\"\n"))
            .collect();
        let read = parse(&rows).expect("a good log");
        for (event, (action, _)) in read.events.iter().zip(Action::ALL) {
            let expected = Event {
                time: 0,
                action,
                pointer: 0x10,
                size: 4096,
                thread: 0,
                stream: 0,
                origin: 1,
            };
            assert_eq!(*event, expected);
        }
        assert_eq!(read.events.len(), Action::ALL.len());
        assert_eq!(
            (read.threads, read.streams),
            (vec!["7".to_owned()], vec!["0x0".to_owned()])
        );
        assert_eq!(read.origins, ["", "a.rs:1;b,c.rs:2 f"]);
    }

    #[test]
    fn plain_logs_have_no_origins_and_may_have_no_times() {
        let plain = "Thread,Time,Action,Pointer,Size,Stream\n1,0.5,allocate,0x10,1,3\n2,1.5,free,0x10,1,3\n";
        let read = Events::parse(plain.as_bytes()).expect("a good log");
        assert_eq!(read.origins, [""]);
        assert_eq!(read.events[1].time, 1_000_000_000);
        assert_eq!(read.threads.len(), 2);
        let timeless = "Action,Pointer,Size,Stream\nallocate,0x10,1,0\n";
        let read = Events::parse(timeless.as_bytes()).expect("a good log");
        assert_eq!(read.events[0].time, 0);
    }

    #[test]
    fn a_bad_line_is_named() {
        let good = "0,0.1,allocate,0x10,100,0,\n";
        for (bad, word) in [
            ("0,0.2,resize,0x20,100,0,\n", "action"),
            ("0,0.2,map,0x20,-4,0,\n", "size"),
            ("0,0.2,unmap,xyz,4,0,\n", "pointer"),
            ("0,0.2,allocate,0x20,4,first,\n", "stream"),
            ("0,noon,allocate,0x20,4,0,\n", "time"),
            ("0,0.2,allocate,0x20,4,0\n", "fields"),
        ] {
            let (line, problem) = parse(&format!("{good}{bad}")).expect_err(bad);
            assert_eq!(line, Some(3), "{bad}");
            assert!(problem.contains(word), "{problem}");
        }
        let (line, problem) = parse("").expect_err("no rows");
        assert!(line.is_none() && problem.contains("no events"), "{problem}");
    }
}
