//! Blocks and counters over time.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::io;

use super::event::{ChromeEvent, PROCESS, Phase};
use crate::ledger::ranges::Ranges;
use crate::ledger::{Origin, TraceAction, TraceEntry};

/// What an arena rounds up to.
const UNIT: u64 = 256;

/// The name of a block whose free is pending, within the block.
const PENDING: &str = "pending free";

/// Writes an event.
type Write<'a> = dyn FnMut(&ChromeEvent<'_>) -> io::Result<()> + 'a;

/// A block that has begun and not ended.
#[derive(Debug)]
struct OpenBlock {
    number: u64,
    /// Its stream's group.
    group: u64,
    name: String,
    asked: u64,
    used: u64,
    is_pending: bool,
}

#[derive(Debug)]
pub(super) struct Blocks {
    /// By stream.
    groups: BTreeMap<u64, u64>,
    open: HashMap<u64, OpenBlock>,
    /// How many have begun.
    count: u64,
    /// What arenas hold, and what a pool holds.
    mapped: Ranges,
    of_pool: u64,
    asked: u64,
    used: u64,
    of_arenas: u64,
}

/// The innermost frame of an origin.
fn name_of(origin: Option<&Origin>) -> String {
    match origin {
        Some(Origin::Frames(frames)) => frames.split(';').next().unwrap_or_default().to_owned(),
        Some(line) => line.to_string(),
        None => "block".to_owned(),
    }
}

impl Blocks {
    pub(super) fn new(groups: BTreeMap<u64, u64>) -> Self {
        Self {
            groups,
            open: HashMap::new(),
            count: 0,
            mapped: Ranges::default(),
            of_pool: 0,
            asked: 0,
            used: 0,
            of_arenas: 0,
        }
    }

    pub(super) fn add(&mut self, entry: &TraceEntry, write: &mut Write<'_>) -> io::Result<()> {
        let range = entry.address..entry.address.saturating_add(entry.bytes);
        let sum = |parts: Vec<std::ops::Range<u64>>| -> u64 {
            parts.iter().map(|part| part.end - part.start).sum()
        };
        match entry.action {
            TraceAction::Allocate => return self.allocate(entry, entry.time, write),
            TraceAction::FreeRequested => return self.request_free(entry, write),
            TraceAction::Free | TraceAction::FreeCompleted => return self.free(entry, write),
            TraceAction::Map => self.of_arenas += sum(self.mapped.add(range)),
            TraceAction::Unmap => self.of_arenas -= sum(self.mapped.remove(range)),
            TraceAction::Reserved => self.of_pool = entry.bytes,
            _ => return Ok(()),
        }
        let reserved = self.of_arenas.saturating_add(self.of_pool);
        write(&ChromeEvent::counter("reserved", entry.time, reserved))
    }

    /// Begins a block at this time. One that has begun already was recorded twice.
    pub(super) fn allocate(
        &mut self,
        entry: &TraceEntry,
        time: u64,
        write: &mut Write<'_>,
    ) -> io::Result<()> {
        if self.open.contains_key(&entry.address) {
            return Ok(());
        }
        let is_of_arena = self
            .mapped
            .contain(&(entry.address..entry.address.saturating_add(1)));
        let used = if is_of_arena {
            entry.bytes.next_multiple_of(UNIT)
        } else {
            entry.bytes
        };
        self.count += 1;
        let block = OpenBlock {
            number: self.count,
            group: self.groups.get(&entry.stream).copied().unwrap_or(PROCESS),
            name: name_of(entry.origin.as_ref()),
            asked: entry.bytes,
            used,
            is_pending: false,
        };
        let mut begin = block.event(Phase::Begin, &block.name, time);
        begin
            .args
            .insert("address", format!("{:#x}", entry.address).into());
        begin.args.insert("bytes", entry.bytes.into());
        begin.args.insert("thread", entry.thread.into());
        if let Some(Origin::Frames(frames)) = &entry.origin {
            begin.args.insert("origin", frames.as_ref().into());
        }
        write(&begin)?;
        self.open.insert(entry.address, block);
        self.asked = self.asked.saturating_add(entry.bytes);
        self.used = self.used.saturating_add(used);
        self.write_asked(time, write)?;
        self.write_used(time, write)
    }

    fn request_free(&mut self, entry: &TraceEntry, write: &mut Write<'_>) -> io::Result<()> {
        let Some(block) = self.open.get_mut(&entry.address) else {
            return Ok(());
        };
        if std::mem::replace(&mut block.is_pending, true) {
            return Ok(());
        }
        write(&block.event(Phase::Begin, PENDING, entry.time))?;
        self.asked = self.asked.saturating_sub(block.asked);
        self.write_asked(entry.time, write)
    }

    fn free(&mut self, entry: &TraceEntry, write: &mut Write<'_>) -> io::Result<()> {
        let Some(block) = self.open.remove(&entry.address) else {
            return Ok(());
        };
        if block.is_pending {
            write(&block.event(Phase::End, PENDING, entry.time))?;
        } else {
            self.asked = self.asked.saturating_sub(block.asked);
            self.write_asked(entry.time, write)?;
        }
        write(&block.event(Phase::End, &block.name, entry.time))?;
        self.used = self.used.saturating_sub(block.used);
        self.write_used(entry.time, write)
    }

    fn write_asked(&self, time: u64, write: &mut Write<'_>) -> io::Result<()> {
        write(&ChromeEvent::counter("asked", time, self.asked))
    }

    fn write_used(&self, time: u64, write: &mut Write<'_>) -> io::Result<()> {
        write(&ChromeEvent::counter("used", time, self.used))
    }
}

impl OpenBlock {
    fn event<'a>(&self, ph: Phase, name: &'a str, time: u64) -> ChromeEvent<'a> {
        ChromeEvent::of_block(ph, self.group, self.number, name, time)
    }
}
