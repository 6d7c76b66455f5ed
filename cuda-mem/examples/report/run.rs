//! One log in the form of the page.

use cuda_mem_console::count;
use cuda_mem_trace::{Action, Events, Peak, Timeline};
use serde::Serialize;
use serde_json::json;

use crate::columns::{Column, Columns};
use crate::layout::{Extent, Layout};

/// What the page knows about one log. Lists are columns.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) name: String,
    pub(crate) events: usize,
    /// Nanoseconds from the first event to the last.
    pub(crate) duration: u64,
    pub(crate) timeline: Timeline,
    threads: Vec<String>,
    streams: Vec<String>,
    origins: Vec<String>,
    extents: Vec<Extent>,
    columns: Table,
}

#[derive(Debug, Serialize)]
struct Table {
    /// For each event, the place of its action in [`Action::ALL`].
    actions: Column,
    times: Column,
    /// Of allocations, in their order. Lifetimes are numbers of events, 0 if there is no end.
    block_place: Column,
    block_bytes: Column,
    block_stream: Column,
    block_thread: Column,
    block_origin: Column,
    block_allocated: Column,
    block_until_requested: Column,
    block_until_freed: Column,
    mapping_place: Column,
    mapping_bytes: Column,
    mapping_mapped: Column,
    mapping_until_unmapped: Column,
    space_event: Column,
    space_bytes: Column,
    space_largest: Column,
    failure_event: Column,
    failure_bytes: Column,
    failure_stream: Column,
    failure_origin: Column,
    calls_event: Column,
    calls_count: Column,
    held_event: Column,
    held_bytes: Column,
}

impl Run {
    pub(crate) fn new(name: &str, log: Events, columns: &mut Columns) -> Result<Self, String> {
        let timeline = Timeline::new(&log)?;
        let layout = Layout::new(&timeline);
        let columns = Table::new(&log, &timeline, &layout, columns);
        Ok(Self {
            name: name.to_owned(),
            events: log.events.len(),
            duration: log.events.last().map_or(0, |event| event.time),
            timeline,
            threads: log.threads,
            streams: log.streams,
            origins: log.origins,
            extents: layout.extents,
            columns,
        })
    }

    /// Why the numbers may be wrong.
    pub(crate) fn problems(&self) -> Vec<String> {
        let timeline = &self.timeline;
        let problem = |number: usize, one: &str, many: &str, then: &str| {
            let what = if number == 1 { one } else { many };
            (number > 0).then(|| format!("{} {what}: {then}", count(number as u64)))
        };
        let lost = usize::try_from(timeline.lost_events).unwrap_or(usize::MAX);
        [
            problem(
                lost,
                "event was dropped while the log was written",
                "events were dropped while the log was written",
                "bytes and blocks may be wrong from there on",
            ),
            problem(
                timeline.unknown_frees,
                "free is of memory that the log did not allocate",
                "frees are of memory that the log did not allocate",
                "not counted; the log may have begun after the program",
            ),
            problem(
                timeline.missing_frees,
                "block ended without a free in the log",
                "blocks ended without a free in the log",
                "others were allocated at their addresses, or frees were completed that were not requested",
            ),
            problem(
                timeline.unknown_maps,
                "map or unmap does not fit what was mapped",
                "maps and unmaps do not fit what was mapped",
                "reserved bytes may be wrong",
            ),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        let timeline = &self.timeline;
        let peak = |peak: Peak| json!({ "bytes": peak.bytes, "event": peak.event });
        json!({
            "name": self.name,
            "events": self.events,
            "duration": self.duration,
            "problems": self.problems(),
            "asked": peak(timeline.asked),
            "used": peak(timeline.used),
            "reserved": timeline.reserved.map(peak),
            "asked_at_end": timeline.asked_at_end,
            "alive_at_end": timeline.alive_at_end,
            "failures": timeline.failures,
            "driver_calls": timeline.driver_calls,
            "threads": self.threads,
            "streams": self.streams,
            "origins": self.origins,
            "extents": self.extents,
            "columns": self.columns,
        })
    }
}

impl Table {
    fn new(log: &Events, timeline: &Timeline, layout: &Layout, to: &mut Columns) -> Self {
        let events = || log.events.iter();
        let of = |action| {
            let numbered = log.events.iter().enumerate();
            numbered.filter(move |(_, event)| event.action == action)
        };
        let (failures, calls) = (|| of(Action::AllocateFailure), || of(Action::DriverCalls));
        let (blocks, mappings) = (|| timeline.blocks.iter(), || timeline.mappings.iter());
        let space = || timeline.free_space.iter();
        Self {
            actions: to.small(events().map(|event| number_of(event.action))),
            times: to.steps(events().map(|event| event.time)),
            block_place: to.steps(blocks().map(|block| layout.place(block.pointer))),
            block_bytes: to.numbers(blocks().map(|block| block.bytes)),
            block_stream: to.numbers(blocks().map(|block| block.stream as u64)),
            block_thread: to.numbers(blocks().map(|block| block.thread as u64)),
            block_origin: to.numbers(blocks().map(|block| block.origin as u64)),
            block_allocated: to.steps(blocks().map(|block| block.allocated as u64)),
            block_until_requested: to
                .numbers(blocks().map(|block| until(block.allocated, block.requested))),
            block_until_freed: to
                .numbers(blocks().map(|block| until(block.allocated, block.freed))),
            mapping_place: to.steps(mappings().map(|mapping| layout.place(mapping.pointer))),
            mapping_bytes: to.numbers(mappings().map(|mapping| mapping.bytes)),
            mapping_mapped: to.steps(mappings().map(|mapping| mapping.mapped as u64)),
            mapping_until_unmapped: to
                .numbers(mappings().map(|mapping| until(mapping.mapped, mapping.unmapped))),
            space_event: to.steps(space().map(|space| space.event as u64)),
            space_bytes: to.numbers(space().map(|space| space.bytes)),
            space_largest: to.numbers(space().map(|space| space.largest)),
            failure_event: to.steps(failures().map(|(index, _)| index as u64)),
            failure_bytes: to.numbers(failures().map(|(_, event)| event.size)),
            failure_stream: to.numbers(failures().map(|(_, event)| event.stream as u64)),
            failure_origin: to.numbers(failures().map(|(_, event)| event.origin as u64)),
            calls_event: to.steps(calls().map(|(index, _)| index as u64)),
            calls_count: to.steps(calls().map(|(_, event)| event.size)),
            held_event: to.steps(timeline.held.iter().map(|held| held.event as u64)),
            held_bytes: to.steps(timeline.held.iter().map(|held| held.bytes)),
        }
    }
}

/// Events between two; 0 if the second one does not come.
fn until(from: usize, to: Option<usize>) -> u64 {
    to.map_or(0, |to| (to - from) as u64)
}

fn number_of(action: Action) -> u8 {
    let mut all = Action::ALL.iter();
    let place = all.position(|(other, _)| *other == action);
    place
        .and_then(|place| u8::try_from(place).ok())
        .unwrap_or_default()
}
