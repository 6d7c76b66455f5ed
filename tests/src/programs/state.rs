//! The state of a running program: its streams, resources, values and graphs.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use cuda_mem::memory::ScopedResource;
use cuda_mem::{Event, Stream};

use super::fixture::Fixture;
use super::freed::FreedContents;
use super::graph_value::GraphValue;
use super::resource::ModelResource;
use super::step::NewStream;
use super::tally::Tally;
use super::value::{InFlightValue, Kind, Value};
use crate::hold::Held;

/// Maximum numbers.
pub(super) const VALUES: usize = 14;
const STREAMS: usize = 6;

/// A stream of a program.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) name: usize,
    pub(super) stream: Stream,
    /// The thread, if it is a per-thread stream.
    pub(super) owner: Option<usize>,
    is_legacy: bool,
}

impl Slot {
    pub(super) fn can_be_captured(&self) -> bool {
        !self.is_legacy && self.owner.is_none()
    }
}

/// What cannot leave its thread.
#[derive(Default)]
pub(super) struct Local {
    pub(super) scopes: Vec<(ScopedResource, Arc<ModelResource>)>,
}

/// Everything that a program owns, or one of its threads if they run freely.
#[derive(Debug)]
pub(super) struct State<'a> {
    pub(super) fixture: &'a Fixture,
    /// The thread that runs it.
    pub(super) thread: usize,
    /// Nothing is shared with another thread.
    pub(super) alone: bool,
    pub(super) slots: Vec<Slot>,
    pub(super) events: [Event; 2],
    pub(super) resources: Vec<Arc<ModelResource>>,
    pub(super) values: Vec<Value>,
    pub(super) graphs: Vec<GraphValue>,
    pub(super) lent: Vec<InFlightValue>,
    pub(super) held: Vec<Held>,
    pub(super) freed: FreedContents,
    /// A thread used its per-thread stream.
    pub(super) had_own_streams: bool,
    names: usize,
    pub(super) tally: Tally,
    pub(super) trace: Vec<String>,
}

/// The index that `wanted` means among `count` things, counted from the last one.
pub(super) fn pick(wanted: u8, count: usize) -> Option<usize> {
    let last = count.checked_sub(1)?;
    Some(last - usize::from(wanted) % count)
}

impl<'a> State<'a> {
    /// The state of thread `number`, or of all threads.
    pub(super) fn new(fixture: &'a Fixture, number: usize, alone: bool) -> Result<Self> {
        let mut state = Self {
            fixture,
            thread: number,
            alone,
            slots: Vec::new(),
            events: [fixture.context.event()?, fixture.context.event()?],
            resources: Vec::new(),
            values: Vec::new(),
            graphs: Vec::new(),
            lent: Vec::new(),
            held: Vec::new(),
            freed: FreedContents::new(number),
            had_own_streams: false,
            names: number * 1000,
            tally: Tally::default(),
            trace: Vec::new(),
        };
        state.new_stream(NewStream::Own)?;
        state.new_stream(NewStream::Own)?;
        Ok(state)
    }

    /// Adds a line to the trace.
    pub(super) fn log(&mut self, line: impl Into<String>) {
        let line = format!("thread {}: {}", self.thread, line.into());
        if crate::settings::is_loud() {
            eprintln!("    {line}");
        }
        self.trace.push(line);
    }

    /// A name for something new.
    pub(super) fn name(&mut self) -> usize {
        self.names += 1;
        self.names
    }

    /// A pattern that no other memory holds.
    pub(super) fn word(&self) -> u32 {
        self.fixture.next_word()
    }

    /// Releases the held streams, before something waits for them.
    pub(super) fn release_held(&mut self) {
        self.held.clear();
    }

    /// Whether it belongs to the per-thread stream of another thread.
    pub(super) fn is_foreign(&self, owner: Option<usize>) -> bool {
        owner.is_some_and(|owner| owner != self.thread)
    }

    pub(super) fn resource(&self, wanted: u8) -> Option<Arc<ModelResource>> {
        pick(wanted, self.resources.len()).map(|place| self.resources[place].clone())
    }

    /// A stream that this thread may use.
    pub(super) fn slot(&self, wanted: u8) -> Result<&Slot> {
        let usable: Vec<&Slot> = self
            .slots
            .iter()
            .filter(|slot| !self.is_foreign(slot.owner))
            .collect();
        let place = pick(wanted, usable.len()).context("no stream is left")?;
        Ok(usable[place])
    }

    /// The streams that other threads may use too.
    pub(super) fn shared_slots(&self) -> Vec<Slot> {
        let all = self.slots.iter().filter(|slot| slot.owner.is_none());
        all.cloned().collect()
    }

    /// A stream that this thread may use, and its name.
    pub(super) fn named(&self, slot: u8) -> Result<(usize, Stream)> {
        let slot = self.slot(slot)?;
        Ok((slot.name, slot.stream.clone()))
    }

    pub(super) fn new_stream(&mut self, kind: NewStream) -> Result<()> {
        if self.slots.len() >= STREAMS {
            return Ok(());
        }
        let context = &self.fixture.context;
        let (stream, owner, word) = match kind {
            NewStream::Own => (context.stream()?, None, "new"),
            NewStream::Legacy => (context.legacy_stream(), None, "the legacy one"),
            NewStream::PerThread => {
                let own = context.per_thread_stream();
                self.had_own_streams = true;
                (own, Some(self.thread), "the per-thread one")
            }
        };
        let name = self.name();
        self.log(format!("stream {name}: {word}"));
        self.slots.push(Slot {
            name,
            stream,
            owner,
            is_legacy: matches!(kind, NewStream::Legacy),
        });
        Ok(())
    }
}

/// Also runs after a failure.
impl Drop for State<'_> {
    fn drop(&mut self) {
        self.held.clear();
        for value in self.values.drain(..) {
            if let Kind::Raw(raw) = value.kind {
                // A failure cannot be reported.
                let _ = raw.free();
            }
        }
        self.graphs.clear();
        self.lent.clear();
        let _ = self.fixture.context.synchronize();
    }
}
