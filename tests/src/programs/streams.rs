//! Operations on streams and events.

use std::time::Duration;

use anyhow::{Result, bail};

use super::state::{State, pick};
use super::step::Step;
use crate::hold::hold_for;

/// How long a stream is held at most.
const PATIENCE: Duration = Duration::from_millis(2);
/// The same if other threads may wait for the stream.
const LITTLE_PATIENCE: Duration = Duration::from_micros(200);

impl State<'_> {
    pub(super) fn perform_on_streams(&mut self, step: &Step) -> Result<()> {
        match *step {
            Step::NewStream(kind) => self.new_stream(kind),
            Step::DropStream(slot) => {
                if self.slots.len() > 2
                    && let Some(place) = pick(slot, self.slots.len() - 2)
                {
                    let slot = self.slots.remove(place + 2);
                    self.log(format!("drop stream {}", slot.name));
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
                self.log(format!("hold stream {name}"));
                self.held.push(hold_for(&stream, patience)?);
                Ok(())
            }
            Step::ReleaseHeld => {
                if !self.held.is_empty() {
                    self.log("release held streams");
                    self.release_held();
                }
                Ok(())
            }
            Step::Wait(later, earlier) => {
                let (later, earlier) = (self.named(later)?, self.named(earlier)?);
                self.log(format!("stream {} waits for {}", later.0, earlier.0));
                Ok(later.1.wait_for(&earlier.1)?)
            }
            Step::RecordEvent(event, slot) => {
                let (name, stream) = self.named(slot)?;
                let event = usize::from(event % 2);
                self.log(format!("record event {event} in stream {name}"));
                Ok(self.events[event].record(&stream)?)
            }
            Step::WaitEvent(slot, event) => {
                let (name, stream) = self.named(slot)?;
                let event = usize::from(event % 2);
                self.log(format!("stream {name} waits for event {event}"));
                Ok(stream.wait_event(&self.events[event])?)
            }
            Step::Query(slot) => {
                let (name, stream) = self.named(slot)?;
                let is_done = stream.is_done()?;
                self.log(format!("stream {name} is done: {is_done}"));
                self.events[0].is_done()?;
                Ok(())
            }
            Step::Synchronise(slot) => {
                self.release_held();
                let (name, stream) = self.named(slot)?;
                self.log(format!("synchronise stream {name}"));
                Ok(stream.synchronize()?)
            }
            Step::SynchroniseAll => {
                self.release_held();
                self.log("synchronise the context");
                Ok(self.fixture.context.synchronize()?)
            }
            _ => bail!("{step:?} is not an operation on streams"),
        }
    }
}
