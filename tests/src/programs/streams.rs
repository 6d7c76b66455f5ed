//! Streams that come and go, are held, and wait for each other.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cuda_mem::Stream;

use super::step::{NewStream, Step};
use super::world::{World, pick};
use crate::hold::hold_for;

/// So many there are at most.
const STREAMS: usize = 6;

/// A stream is held no longer than this.
const PATIENCE: Duration = Duration::from_millis(2);
/// Where other threads may wait for it, and nobody knows that they do.
const LITTLE_PATIENCE: Duration = Duration::from_micros(200);

#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) name: usize,
    pub(super) stream: Stream,
    /// The thread whose own stream it is.
    pub(super) owner: Option<usize>,
    is_legacy: bool,
}

impl Slot {
    pub(super) fn can_be_captured(&self) -> bool {
        !self.is_legacy && self.owner.is_none()
    }
}

impl World<'_> {
    /// A stream that this thread may use.
    pub(super) fn slot(&self, wanted: u8) -> Result<&Slot> {
        let usable: Vec<&Slot> = self
            .slots
            .iter()
            .filter(|slot| !self.is_elsewhere(slot.owner))
            .collect();
        let place = pick(wanted, usable.len()).context("no stream is left")?;
        Ok(usable[place])
    }

    pub(super) fn perform_on_streams(&mut self, step: &Step) -> Result<()> {
        match *step {
            Step::NewStream(kind) => self.new_stream(kind),
            Step::DropStream(slot) => {
                if self.slots.len() > 2
                    && let Some(place) = pick(slot, self.slots.len() - 2)
                {
                    let slot = self.slots.remove(place + 2);
                    self.say(format!("drop stream {}", slot.name));
                }
                Ok(())
            }
            Step::Hold(slot) => {
                let patience = if self.alone {
                    PATIENCE
                } else {
                    LITTLE_PATIENCE
                };
                let (name, stream) = self.named(slot)?;
                self.say(format!("hold stream {name}"));
                self.held.push(hold_for(&stream, patience)?);
                Ok(())
            }
            Step::LetGo => {
                if !self.held.is_empty() {
                    self.say("let held streams go");
                    self.let_go();
                }
                Ok(())
            }
            Step::Wait(later, earlier) => {
                let (later, earlier) = (self.named(later)?, self.named(earlier)?);
                self.say(format!("stream {} waits for {}", later.0, earlier.0));
                Ok(later.1.wait_for(&earlier.1)?)
            }
            Step::RecordEvent(event, slot) => {
                let (name, stream) = self.named(slot)?;
                let event = usize::from(event % 2);
                self.say(format!("record event {event} in stream {name}"));
                Ok(self.events[event].record(&stream)?)
            }
            Step::WaitEvent(slot, event) => {
                let (name, stream) = self.named(slot)?;
                let event = usize::from(event % 2);
                self.say(format!("stream {name} waits for event {event}"));
                Ok(stream.wait_event(&self.events[event])?)
            }
            Step::Query(slot) => {
                let (name, stream) = self.named(slot)?;
                let is_done = stream.is_done()?;
                self.say(format!("stream {name} is done: {is_done}"));
                self.events[0].is_done()?;
                Ok(())
            }
            Step::Synchronise(slot) => {
                self.let_go();
                let (name, stream) = self.named(slot)?;
                self.say(format!("synchronise stream {name}"));
                Ok(stream.synchronize()?)
            }
            Step::SynchroniseAll => {
                self.let_go();
                self.say("synchronise the context");
                Ok(self.ground.context.synchronize()?)
            }
            _ => bail!("{step:?} is none about streams"),
        }
    }

    /// Streams that other threads may use too.
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
        let context = &self.ground.context;
        let (stream, owner, word) = match kind {
            NewStream::Own => (context.stream()?, None, "new"),
            NewStream::Legacy => (context.legacy_stream(), None, "the legacy one"),
            NewStream::PerThread => {
                let own = context.per_thread_stream();
                self.had_own_streams = true;
                (own, Some(self.me), "the thread's own")
            }
        };
        let name = self.name();
        self.say(format!("stream {name}: {word}"));
        self.slots.push(Slot {
            name,
            stream,
            owner,
            is_legacy: matches!(kind, NewStream::Legacy),
        });
        Ok(())
    }
}
