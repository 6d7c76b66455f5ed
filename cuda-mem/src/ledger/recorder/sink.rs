//! Where events go once a thread has collected some.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;

use super::{CHUNK, Event, TraceEntry};
use crate::base::error::{Error, Result};
use crate::ledger::csv::{self, Fraction, Line};

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
    out: Box<dyn Write + Send>,
    state: State,
}

enum State {
    /// Nothing has been written, not even the header.
    New,
    Begun,
    /// A write failed, and the error has not been returned yet.
    Failed(io::Error),
    Over,
}

impl Writer {
    pub(super) fn new(out: Box<dyn Write + Send>) -> Self {
        Self {
            collected: Vec::new(),
            out,
            state: State::New,
        }
    }

    /// Writes lines. Returns false if they are lost.
    pub(super) fn write(
        &mut self,
        entries: impl ExactSizeIterator<Item = TraceEntry>,
        began: u64,
    ) -> bool {
        let mut lines = Vec::with_capacity(96 * (entries.len() + 1));
        match self.state {
            State::New => lines.extend_from_slice(csv::HEADER),
            State::Begun => {}
            State::Failed(_) | State::Over => return entries.len() == 0,
        }
        self.state = State::Begun;
        for entry in entries {
            line_of(&entry, began, &mut lines);
        }
        let written = self.out.write_all(&lines).and_then(|()| self.out.flush());
        match written {
            Ok(()) => true,
            Err(error) => {
                self.state = State::Failed(error);
                false
            }
        }
    }

    /// The writer has panicked, unless it has failed already.
    pub(super) fn stop(&mut self) {
        if let State::New | State::Begun = self.state {
            self.state = State::Failed(io::Error::other("the writer panicked"));
        }
    }

    /// Nothing more is written.
    pub(super) fn close(&mut self) {
        self.state = State::Over;
    }

    /// Leaves the writer as it is, without running its destructor.
    pub(super) fn forget(&mut self) {
        let out = std::mem::replace(&mut self.out, Box::new(io::sink()));
        std::mem::forget(out);
        self.collected.clear();
    }

    /// Returns a failure once.
    pub(super) fn finish(&mut self) -> Result<()> {
        if !matches!(self.state, State::Failed(_)) {
            return Ok(());
        }
        match std::mem::replace(&mut self.state, State::Over) {
            State::Failed(error) => Err(Error::system("writing the log of a recorder", error)),
            _ => Ok(()),
        }
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
