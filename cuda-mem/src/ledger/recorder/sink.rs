//! Where events go once a thread has collected some.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::Arc;

use super::{CHUNK, Event, TraceEntry};
use crate::ledger::csv::{self, Fraction, Line};
use crate::ledger::log_writer::LogWriter;

pub(super) enum Sink {
    Ring(Ring),
    Writer(Writer),
}

/// The newest chunks.
pub(super) struct Ring {
    /// Shared with recordings that are being made.
    chunks: VecDeque<Arc<Vec<Event>>>,
    capacity: usize,
    spare: Option<Vec<Event>>,
    /// No event from then on was dropped, in ticks.
    complete_from: u64,
}

impl Ring {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            chunks: VecDeque::new(),
            capacity,
            spare: None,
            complete_from: 0,
        }
    }

    /// An empty chunk.
    pub(super) fn spare(&mut self) -> Vec<Event> {
        let spare = self.spare.take();
        spare.unwrap_or_else(|| Vec::with_capacity(CHUNK))
    }

    /// Adds a chunk. Returns how many events were dropped for it.
    pub(super) fn push(&mut self, chunk: Vec<Event>) -> u64 {
        if chunk.is_empty() {
            return 0;
        }
        self.chunks.push_back(Arc::new(chunk));
        if self.chunks.len() <= self.capacity {
            return 0;
        }
        let Some(oldest) = self.chunks.pop_front() else {
            return 0;
        };
        if let Some(last) = oldest.last() {
            self.complete_from = self.complete_from.max(last.ticks + 1);
        }
        let dropped = oldest.len() as u64;
        if let Ok(mut events) = Arc::try_unwrap(oldest) {
            events.clear();
            self.spare = Some(events);
        }
        dropped
    }

    pub(super) fn chunks(&self) -> Vec<Arc<Vec<Event>>> {
        self.chunks.iter().cloned().collect()
    }

    pub(super) fn complete_from(&self) -> u64 {
        self.complete_from
    }
}

/// Writes lines.
pub(super) struct Writer {
    /// What was taken from shards and not written yet.
    pub(super) collected: Vec<Event>,
    pub(super) log: LogWriter,
}

impl Writer {
    pub(super) fn new(out: Box<dyn Write + Send>) -> Self {
        Self {
            collected: Vec::new(),
            log: LogWriter::new(out, csv::HEADER),
        }
    }

    /// Writes lines. Returns whether they are written.
    pub(super) fn write(
        &mut self,
        entries: impl ExactSizeIterator<Item = TraceEntry>,
        began: u64,
    ) -> bool {
        self.log.write(96 * entries.len(), |lines| {
            for entry in entries {
                line_of(&entry, began, lines);
            }
        })
    }
}

/// Appends an entry as a line with all columns.
pub(super) fn line_of(entry: &TraceEntry, began: u64, lines: &mut Vec<u8>) {
    fields(entry, entry.action.name(), began).write(lines, Fraction::Nanos);
    lines.push(b',');
    if let Some(origin) = &entry.origin {
        csv::text(lines, &origin.to_string());
    }
    lines.push(b'\n');
}

/// The columns that RMM's logs have too.
pub(super) fn fields(entry: &TraceEntry, action: &'static str, began: u64) -> Line {
    Line {
        thread: entry.thread,
        time: began + entry.time,
        action,
        address: entry.address,
        bytes: entry.bytes,
        stream: entry.stream,
    }
}
