//! Blocks and counters over time.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;

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
    /// Whether it was allocated while its memory was no arena's, so that it may become an arena's memory.
    may_become_chunk: bool,
}

#[derive(Debug)]
pub(super) struct Blocks {
    /// By stream.
    groups: BTreeMap<u64, u64>,
    open: BTreeMap<u64, OpenBlock>,
    /// How many have begun.
    count: u64,
    /// What arenas hold, and what a pool holds.
    mapped: Ranges,
    of_pool: u64,
    /// What arenas hold that was a block of their upstream: a pool that records counts it, too.
    from_blocks: Ranges,
    of_upstreams: u64,
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

fn sum(parts: &[Range<u64>]) -> u64 {
    parts.iter().map(|part| part.end - part.start).sum()
}

impl Blocks {
    pub(super) fn new(groups: BTreeMap<u64, u64>) -> Self {
        Self {
            groups,
            open: BTreeMap::new(),
            count: 0,
            mapped: Ranges::default(),
            of_pool: 0,
            from_blocks: Ranges::default(),
            of_upstreams: 0,
            asked: 0,
            used: 0,
            of_arenas: 0,
        }
    }

    pub(super) fn add(&mut self, entry: &TraceEntry, write: &mut Write<'_>) -> io::Result<()> {
        let range = entry.address..entry.address.saturating_add(entry.bytes);
        match entry.action {
            TraceAction::Allocate => return self.allocate(entry, entry.time, write),
            TraceAction::FreeRequested => return self.request_free(entry, write),
            TraceAction::Free | TraceAction::FreeCompleted => {
                return self.end(entry.address, entry.time, write);
            }
            TraceAction::Map => {
                let is_from_block = self.hand_over(&range, entry.time, write)?;
                self.map(range, is_from_block);
            }
            TraceAction::Unmap => self.unmap(range),
            TraceAction::Reserved => self.of_pool = entry.bytes,
            _ => return Ok(()),
        }
        let of_pool = self.of_pool.max(self.of_upstreams);
        let reserved = self.of_arenas.saturating_add(of_pool);
        write(&ChromeEvent::counter("reserved", entry.time, reserved))
    }

    fn map(&mut self, range: Range<u64>, is_from_block: bool) {
        for part in self.mapped.add(range) {
            if is_from_block {
                self.of_upstreams += sum(&self.from_blocks.add(part));
            } else {
                self.of_arenas += part.end - part.start;
            }
        }
    }

    fn unmap(&mut self, range: Range<u64>) {
        for part in self.mapped.remove(range) {
            let all = part.end - part.start;
            let from_blocks = sum(&self.from_blocks.remove(part));
            self.of_upstreams -= from_blocks;
            self.of_arenas -= all - from_blocks;
        }
    }

    /// Memory of a block becomes an arena's: the block of an upstream that records too. Returns whether there was one.
    fn hand_over(
        &mut self,
        range: &Range<u64>,
        time: u64,
        write: &mut Write<'_>,
    ) -> io::Result<bool> {
        let before = self.open.range(..=range.start).next_back();
        let around = before.filter(|(address, block)| {
            block.may_become_chunk && address.saturating_add(block.asked) >= range.end
        });
        let Some((&address, _)) = around else {
            return Ok(false);
        };
        self.end(address, time, write)?;
        Ok(true)
    }

    /// Begins a block at this time. One that has begun already was recorded twice. An entry that completes a free stands
    /// for a block whose free is pending.
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
            is_pending: entry.action == TraceAction::FreeCompleted,
            may_become_chunk: !is_of_arena && entry.action == TraceAction::Allocate,
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
        if block.is_pending {
            write(&block.event(Phase::Begin, PENDING, time))?;
        } else {
            self.asked = self.asked.saturating_add(entry.bytes);
            self.write_asked(time, write)?;
        }
        self.open.insert(entry.address, block);
        self.used = self.used.saturating_add(used);
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

    fn end(&mut self, address: u64, time: u64, write: &mut Write<'_>) -> io::Result<()> {
        let Some(block) = self.open.remove(&address) else {
            return Ok(());
        };
        if block.is_pending {
            write(&block.event(Phase::End, PENDING, time))?;
        } else {
            self.asked = self.asked.saturating_sub(block.asked);
            self.write_asked(time, write)?;
        }
        write(&block.event(Phase::End, &block.name, time))?;
        self.used = self.used.saturating_sub(block.used);
        self.write_used(time, write)
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
