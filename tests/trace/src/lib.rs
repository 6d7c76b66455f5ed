//! Allocation logs in RMM's CSV format (`Thread,Time,Action,Pointer,Size,Stream`), plain or packed with
//! gzip or zstd.
//!
//! A log is read and checked as a whole before anything is replayed. Pointers become slot numbers,
//! because a log uses an address again after its free.
//!
//! [`Trace`] is what a replay needs. [`Events`] are all rows, of the extended format too, and [`Timeline`] is
//! the memory that they tell of: who had what from when to when.
//!
//! [`random`] makes the operations of a benchmark instead of reading them.

mod events;
mod lines;
pub mod random;
mod recorded;
mod rows;
mod time;
mod timeline;
mod unpack;
mod write;

pub use events::{Event, Events};
pub use recorded::recorded;
pub use rows::Action;
pub use timeline::{Block, FreeSpace, Mapping, Peak, Timeline};

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use rows::{Problem, Row, address, size, stream};

/// One operation of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Allocate `bytes` on `stream` and keep them under `slot`, which is empty.
    Allocate {
        /// Where to keep the allocation; counted from 0.
        slot: usize,
        /// Bytes asked for.
        bytes: usize,
        /// The stream's number in [`Trace::streams`].
        stream: usize,
    },
    /// Free what is kept under `slot`.
    Free {
        /// As at the allocation.
        slot: usize,
        /// The stream's number in [`Trace::streams`].
        stream: usize,
    },
}

/// A log that was read and makes sense.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The operations, in order.
    pub ops: Vec<Op>,
    /// For each operation the number of the thread that made it, counted from 0 in the order of their
    /// first operations.
    pub op_threads: Vec<usize>,
    /// How many slots the operations use.
    pub slots: usize,
    /// How many streams the operations use.
    pub streams: usize,
    /// How many threads made the operations.
    pub threads: usize,
    /// The most bytes alive at one moment.
    pub peak_bytes: u64,
    /// Bytes alive at the end.
    pub left_bytes: u64,
    /// Requests that failed when the log was recorded. They are no operations.
    pub failures: usize,
}

/// A log that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{path}{}: {problem}", line.map(|line| format!(", line {line}")).unwrap_or_default(), path = path.display())]
pub struct TraceError {
    path: PathBuf,
    /// Counted from 1; the first line is the header.
    pub line: Option<u64>,
    problem: String,
}

impl TraceError {
    fn new(path: &Path, (line, problem): Problem) -> Self {
        Self {
            path: path.to_path_buf(),
            line,
            problem,
        }
    }
}

/// Opens a file for a parser, and names it in its errors.
fn read<T>(
    path: &Path,
    parse: impl FnOnce(BufReader<File>) -> Result<T, Problem>,
) -> Result<T, TraceError> {
    let opened = File::open(path).map_err(|error| (None, error.to_string()));
    let parsed = opened.and_then(|file| parse(BufReader::new(file)));
    parsed.map_err(|problem| TraceError::new(path, problem))
}

impl Trace {
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

    fn parse(packed: impl BufRead) -> Result<Self, Problem> {
        let mut builder = Builder::default();
        rows::for_each(packed, |row| builder.row(row))?;
        if builder.trace.ops.is_empty() {
            return Err((None, "the log has no operations".to_owned()));
        }
        Ok(builder.finish())
    }
}

#[derive(Default)]
struct Builder {
    trace: Trace,
    /// Address → slot and bytes of what is alive.
    live: HashMap<u64, (usize, u64)>,
    /// What the log calls a stream → its number.
    streams: HashMap<u128, usize>,
    /// What the log calls a thread → its number.
    threads: HashMap<String, usize>,
    free_slots: Vec<usize>,
}

impl Builder {
    fn row(&mut self, row: &Row<'_>) -> Result<(), String> {
        match row.action {
            Action::Allocate => {
                let bytes = usize::try_from(size(row.size)?)
                    .map_err(|_| format!("the size is {}, more than fits here", row.size))?;
                self.allocate(address(row.pointer)?, bytes, stream(row.stream)?)?;
            }
            // A replay frees at the request, as the program did.
            Action::Free | Action::FreeRequested => {
                self.free(address(row.pointer)?, stream(row.stream)?)?;
            }
            // Nothing to replay, and so no use of the stream or the thread either.
            Action::AllocateFailure => {
                address(row.pointer)?;
                size(row.size)?;
                stream(row.stream)?;
                self.trace.failures += 1;
                return Ok(());
            }
            // What the resource did of itself, and its counts.
            Action::FreeCompleted
            | Action::Map
            | Action::Unmap
            | Action::Trim
            | Action::DriverCalls
            | Action::Dropped
            | Action::Reserved => return Ok(()),
        }
        let thread = self.thread(row.thread);
        self.trace.op_threads.push(thread);
        Ok(())
    }

    fn thread(&mut self, name: &str) -> usize {
        // Looked up first: nearly all rows are of a known thread and then need no copy of its name.
        if let Some(number) = self.threads.get(name) {
            return *number;
        }
        let number = self.threads.len();
        self.threads.insert(name.to_owned(), number);
        number
    }

    fn stream(&mut self, stream: u128) -> usize {
        let next = self.streams.len();
        *self.streams.entry(stream).or_insert(next)
    }

    fn allocate(&mut self, pointer: u64, bytes: usize, stream: u128) -> Result<(), String> {
        let stream = self.stream(stream);
        let slot = self.free_slots.pop().unwrap_or(self.trace.slots);
        if self.live.insert(pointer, (slot, bytes as u64)).is_some() {
            return Err(format!(
                "{pointer:#x} is allocated a second time before its free"
            ));
        }
        self.trace.slots = self.trace.slots.max(slot + 1);
        self.trace.left_bytes = self
            .trace
            .left_bytes
            .checked_add(bytes as u64)
            .ok_or("the sizes add up to more than fits 64 bits")?;
        self.trace.peak_bytes = self.trace.peak_bytes.max(self.trace.left_bytes);
        self.trace.ops.push(Op::Allocate {
            slot,
            bytes,
            stream,
        });
        Ok(())
    }

    fn free(&mut self, pointer: u64, stream: u128) -> Result<(), String> {
        let stream = self.stream(stream);
        let (slot, bytes) = self
            .live
            .remove(&pointer)
            .ok_or_else(|| format!("{pointer:#x} is freed but was not allocated"))?;
        self.trace.left_bytes -= bytes;
        self.free_slots.push(slot);
        self.trace.ops.push(Op::Free { slot, stream });
        Ok(())
    }

    fn finish(mut self) -> Trace {
        self.trace.streams = self.streams.len();
        self.trace.threads = self.threads.len();
        self.trace
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

    fn parse(rows: &str) -> Result<Trace, (Option<u64>, String)> {
        Trace::parse(format!("{HEADER}{rows}").as_bytes())
    }

    #[test]
    fn slots_are_used_again_and_the_peak_is_the_most_alive() {
        let trace = parse(
            "0,0.1,allocate,0x10,100,0\n0,0.2,allocate,0x20,50,7\n0,0.3,free,0x10,100,0\n\
             0,0.4,allocate,0x10,60,0\n",
        )
        .expect("a good log");
        assert_eq!((trace.slots, trace.streams), (2, 2));
        assert_eq!((trace.peak_bytes, trace.left_bytes), (150, 110));
        assert_eq!(trace.ops[2], Op::Free { slot: 0, stream: 0 });
        assert_eq!(
            trace.ops[3],
            Op::Allocate {
                slot: 0,
                bytes: 60,
                stream: 0
            }
        );
    }

    #[test]
    fn a_bad_line_is_named() {
        let good = "0,0.1,allocate,0x10,100,0\n";
        for (bad, word) in [
            ("0,0.2,free,0x99,100,0\n", "not allocated"),
            ("0,0.2,allocate,0x10,100,0\n", "second time"),
            ("0,0.2,resize,0x20,100,0\n", "action"),
            ("0,0.2,allocate,0x20,-4,0\n", "size"),
            ("0,0.2,allocate,xyz,4,0\n", "pointer"),
            ("0,0.2,allocate,0x20,4,first\n", "stream"),
            ("0,0.2,allocate failure,0x0,many,0\n", "size"),
            ("0,0.2,allocate\n", "fields"),
        ] {
            let (line, problem) = parse(&format!("{good}{bad}")).expect_err(bad);
            assert_eq!(line, Some(3), "{bad}");
            assert!(problem.contains(word), "{problem}");
        }
    }

    #[test]
    fn blank_lines_count_as_lines() {
        let (line, problem) = parse("0,0.1,allocate,0x10,100,0\n\n\r\n0,0.2,free,0x99,100,0\n")
            .expect_err("not allocated");
        assert_eq!(line, Some(5), "{problem}");
    }

    #[test]
    fn a_line_without_an_end_is_not_read_to_its_end() {
        let endless = std::io::repeat(b'0');
        let (line, problem) =
            Trace::parse(BufReader::new(HEADER.as_bytes().chain(endless))).expect_err("no row");
        assert_eq!(line, Some(2));
        assert!(problem.contains("more than 65536 bytes"), "{problem}");
        let endless = std::io::repeat(b',');
        let (line, problem) = Trace::parse(BufReader::new(endless)).expect_err("no header");
        assert_eq!(line, None);
        assert!(problem.contains("allocation log"), "{problem}");
    }

    #[test]
    fn failed_requests_are_counted_and_not_replayed() {
        let trace = parse(
            "0,0.1,allocate failure,0x0,1125899906842624,0x7f00\n0,0.2,allocate,0x10,100,0\n\
             0,0.3,allocate failure,(nil),70,0\n",
        )
        .expect("a good log");
        assert_eq!((trace.ops.len(), trace.failures), (1, 2));
        assert_eq!((trace.slots, trace.streams, trace.peak_bytes), (1, 1, 100));
        assert!(parse("0,0.1,allocate failure,0x0,70,0\n").is_err());
    }

    #[test]
    fn extended_logs_are_replayed_as_plain_ones() {
        let extended = "Thread,Time,Action,Pointer,Size,Stream,Origin\n\
            1,04:12:33.1,map,0x0,2097152,0x0,\n1,04:12:33.2,allocate,0x10,100,0,\"a.rs:1 f;b.rs:2\"\n\
            1,04:12:33.3,free requested,0x10,100,0,\n1,04:12:33.4,free completed,0x10,100,0,\n\
            1,04:12:33.4,driver calls,0x0,5,,\n1,04:12:33.4,trim,0x0,0,,\n1,04:12:33.5,dropped,0x0,2,,\n\
            1,04:12:33.6,unmap,0x0,2097152,,\n";
        let plain = parse("1,0.1,allocate,0x10,100,0\n1,0.2,free,0x10,100,0\n");
        let extended = Trace::parse(extended.as_bytes());
        assert_eq!(extended.expect("a good log"), plain.expect("a good log"));
    }

    #[test]
    fn times_are_seconds_or_clocks() {
        for time in ["0.036482", "10:58:16:345678", "10:58:16.345678"] {
            let trace = parse(&format!("140,{time},allocate,0x10,100,0\n"));
            assert_eq!(trace.expect(time).peak_bytes, 100);
        }
    }

    #[test]
    fn streams_are_hexadecimal_or_decimal() {
        let all = [
            &["0x7f3a5c0012a0", "0x7F3a5c0012b0", "0x0", "0"][..],
            &["7f3a5c0012a0", "7f3a5c0012b0", "(nil)", "0"],
            &["139888000012345", "18446744073709551615", "0", "0x0"],
        ];
        for names in all {
            let rows: String = (1..)
                .zip(names)
                .map(|(index, name)| format!("0,0.1,allocate,0x{index}0,1,{name}\n"))
                .collect();
            let trace = parse(&rows).expect("a good log");
            let streams: Vec<usize> = trace.ops.iter().map(used_stream).collect();
            // The last two are the null stream.
            assert_eq!((streams, trace.streams), (vec![0, 1, 2, 2], 3), "{names:?}");
        }
    }

    fn used_stream(op: &Op) -> usize {
        match *op {
            Op::Allocate { stream, .. } | Op::Free { stream, .. } => stream,
        }
    }

    #[test]
    fn threads_are_numbered_in_the_order_of_their_first_operation() {
        let trace = parse(
            "main,0.1,allocate,0x10,1,0\n7f00,0.2,allocate,0x20,1,0\n9,0.3,allocate failure,0x0,1,0\n\
             main,0.4,free,0x20,1,0\n",
        )
        .expect("a good log");
        assert_eq!((trace.op_threads, trace.threads), (vec![0, 1, 0], 2));
        let without = "Action,Pointer,Size,Stream\nallocate,0x10,1,0\n";
        let trace = Trace::parse(without.as_bytes()).expect("a good log");
        assert_eq!((trace.op_threads, trace.threads), (vec![0], 1));
    }

    #[test]
    fn an_empty_or_foreign_file_is_refused() {
        assert!(parse("").is_err());
        let absent = |text: &[u8]| Trace::parse(text).expect_err("no log").1;
        let problem = absent(b"a,b\n1,2\n");
        assert!(
            problem.contains("lacks the columns Action, Pointer, Size, Stream"),
            "{problem}"
        );
        let problem = absent(b"Thread,Time,Action,Pointer,Size\n0,0.1,free,0x10,1\n");
        assert!(problem.contains("lacks the column Stream"), "{problem}");
        assert!(absent(b"\x7fELF\xff\x00").contains("allocation log"));
        assert!(absent(b"").contains("allocation log"));
    }

    #[test]
    fn the_recorded_training_run_is_what_its_readme_says() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../data/gpt2-train-varlen.csv.gz");
        let trace = Trace::read(&path).expect("the committed trace");
        assert_eq!(trace.ops.len(), 71_623);
        assert_eq!(trace.peak_bytes, 13_594_206_920);
        assert_eq!((trace.streams, trace.threads), (1, 1));
    }

    #[test]
    fn a_missing_file_and_a_broken_archive_are_named() {
        let missing = Trace::read(Path::new("/nowhere.csv")).expect_err("missing");
        assert!(missing.to_string().contains("/nowhere.csv"));
        let dir = tempfile::tempdir().expect("a scratch folder");
        let path = dir.path().join("broken.csv.gz");
        for broken in [&b"not gzip"[..], b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd\x04"] {
            std::fs::write(&path, broken).expect("written");
            let error = Trace::read(&path).expect_err("broken").to_string();
            assert!(error.contains("broken.csv.gz"), "{error}");
        }
    }
}

#[cfg(test)]
cuda_mem_watchdog::watch_program!();
