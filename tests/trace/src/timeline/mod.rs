//! The memory that the events of a log tell of: blocks, mappings, peaks and free space.

mod space;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use crate::{Action, Event, Events};
use space::Mapped;
pub use space::{FreeSpace, Mapping};

/// One allocation. Events are counted from 0; what is still so at the end has `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its address.
    pub pointer: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// The number of the stream in [`Events::streams`].
    pub stream: usize,
    /// The number of the thread in [`Events::threads`].
    pub thread: usize,
    /// The number of the origin in [`Events::origins`].
    pub origin: usize,
    /// The event of the allocation.
    pub allocated: usize,
    /// The event that requested the free. From there to `freed` the block is pending.
    pub requested: Option<usize>,
    /// The event after which the memory may be used again. A plain free is both events.
    pub freed: Option<usize>,
}

/// The most bytes at one moment, and the first event after which there were so many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// The bytes.
    pub bytes: u64,
    /// The event.
    pub event: usize,
}

/// What a log tells, in the form of lifetimes.
///
/// A log that lost events does not fit together. What can be made of it is here, and the counts say what
/// was amiss: [`lost_events`](Self::lost_events), [`unknown_frees`](Self::unknown_frees),
/// [`missing_frees`](Self::missing_frees), [`unknown_maps`](Self::unknown_maps).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Timeline {
    /// All allocations, in order.
    pub blocks: Vec<Block>,
    /// Physical memory, in the order of its mapping. An unmap of a part of a mapping ends it, and what is
    /// left goes on as others.
    pub mappings: Vec<Mapping>,
    /// The most bytes of live allocations.
    pub asked: Peak,
    /// The most bytes of live allocations and pending frees.
    pub used: Peak,
    /// The most bytes that were mapped or held by pools; `None` if the log has neither [`Action::Map`] nor
    /// [`Action::Reserved`].
    pub reserved: Option<Peak>,
    /// Bytes of live allocations at the end.
    pub asked_at_end: u64,
    /// How many allocations are alive at the end.
    pub alive_at_end: usize,
    /// What all pools hold together, after each [`Action::Reserved`].
    pub held: Vec<Held>,
    /// Free space at moments that are spread evenly over the events, if the log has mappings.
    pub free_space: Vec<FreeSpace>,
    /// Requests that failed.
    pub failures: usize,
    /// The last count of driver calls; `None` if the log has none.
    pub driver_calls: Option<u64>,
    /// Events that the log says were dropped.
    pub lost_events: u64,
    /// Frees of memory that is not allocated according to the log.
    pub unknown_frees: usize,
    /// Allocations that ended without a free in the log: others began at their addresses, or a free was
    /// completed that was not requested.
    pub missing_frees: usize,
    /// Mappings over mapped memory, and unmaps of memory that was not mapped as a whole.
    pub unknown_maps: usize,
}

/// Bytes that pools hold after an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The event.
    pub event: usize,
    /// The bytes.
    pub bytes: u64,
}

/// At most so many moments have their free space computed.
const MOMENTS: usize = 512;

impl Timeline {
    /// Follows the events of a log.
    ///
    /// # Errors
    ///
    /// If sizes add up to more than fits 64 bits, says which event does it, counted from 0.
    pub fn new(log: &Events) -> Result<Self, String> {
        let mut state = State::default();
        let has_maps = log.events.iter().any(|event| event.action == Action::Map);
        let step = log.events.len().div_ceil(MOMENTS).max(1);
        for (index, event) in log.events.iter().enumerate() {
            state
                .event(index, event, log.events.get(index + 1))
                .ok_or_else(|| {
                    format!("event {index}: the sizes add up to more than fits 64 bits")
                })?;
            if has_maps && (index % step == step - 1 || index + 1 == log.events.len()) {
                let blocks = state
                    .at_address
                    .values()
                    .map(|block| state.out.blocks[*block]);
                let space = state.mapped.free_space(index, blocks);
                state.out.free_space.push(space);
            }
        }
        Ok(state.finish(has_maps))
    }
}

#[derive(Default)]
struct State {
    out: Timeline,
    /// Address → number of the block there, alive or pending, but for empty ones.
    at_address: BTreeMap<u64, usize>,
    /// Empty blocks take no space, so that several may have the same address.
    empty: HashMap<u64, Vec<usize>>,
    mapped: Mapped,
    /// Bytes by pool, and their sum.
    pools: HashMap<u64, u64>,
    held: u64,
    asked: u64,
    used: u64,
    reserved_peak: Peak,
}

impl State {
    /// `None` if a sum overflows.
    fn event(&mut self, index: usize, event: &Event, next: Option<&Event>) -> Option<()> {
        match event.action {
            Action::Allocate => self.allocate(index, event)?,
            Action::Free | Action::FreeRequested | Action::FreeCompleted => self.free(index, event),
            Action::AllocateFailure => self.out.failures += 1,
            Action::Map => {
                let end = event.pointer.checked_add(event.size)?;
                let fits = self.mapped.map(event.pointer..end, index);
                self.out.unknown_maps += usize::from(!fits);
            }
            Action::Unmap => {
                let end = event.pointer.checked_add(event.size)?;
                // Memory that moves is never gone, so it ends where it arrives.
                let moves = next.is_some_and(|next| {
                    next.action == Action::Map
                        && (next.time, next.thread) == (event.time, event.thread)
                });
                let fits = self
                    .mapped
                    .unmap(event.pointer..end, index + usize::from(moves));
                self.out.unknown_maps += usize::from(!fits);
            }
            Action::Trim => {}
            Action::DriverCalls => self.out.driver_calls = Some(event.size),
            Action::Reserved => {
                let before = self.pools.insert(event.pointer, event.size).unwrap_or(0);
                self.held = (self.held - before).checked_add(event.size)?;
                let bytes = self.held;
                self.out.held.push(Held {
                    event: index,
                    bytes,
                });
            }
            Action::Dropped => {
                self.out.lost_events = self.out.lost_events.checked_add(event.size)?
            }
        }
        raise(&mut self.out.asked, self.asked, index);
        raise(&mut self.out.used, self.used, index);
        let reserved = self.mapped.bytes().checked_add(self.held)?;
        raise(&mut self.reserved_peak, reserved, index);
        Some(())
    }

    fn allocate(&mut self, index: usize, event: &Event) -> Option<()> {
        let end = event.pointer.checked_add(event.size)?;
        let number = self.out.blocks.len();
        if event.size == 0 {
            self.empty.entry(event.pointer).or_default().push(number);
        } else {
            while let Some(block) = self.overlapping(event.pointer, end) {
                self.end(block, index);
                self.out.missing_frees += 1;
            }
            self.at_address.insert(event.pointer, number);
        }
        self.asked = self.asked.checked_add(event.size)?;
        self.used = self.used.checked_add(event.size)?;
        self.out.blocks.push(Block {
            pointer: event.pointer,
            bytes: event.size,
            stream: event.stream,
            thread: event.thread,
            origin: event.origin,
            allocated: index,
            requested: None,
            freed: None,
        });
        Some(())
    }

    /// A block that has a part of this range.
    fn overlapping(&self, start: u64, end: u64) -> Option<usize> {
        let (_, number) = self.at_address.range(..end).next_back()?;
        let block = &self.out.blocks[*number];
        (block.pointer + block.bytes > start).then_some(*number)
    }

    fn free(&mut self, index: usize, event: &Event) {
        let block = self.at_address.get(&event.pointer);
        let empty = self.empty.get(&event.pointer).and_then(|all| all.last());
        let found = if event.size == 0 {
            empty.or(block)
        } else {
            block.or(empty)
        };
        let Some(number) = found.copied() else {
            self.out.unknown_frees += 1;
            return;
        };
        if event.action == Action::FreeRequested {
            self.request(number, index);
            return;
        }
        let is_requested = self.out.blocks[number].requested.is_some();
        if event.action == Action::FreeCompleted && !is_requested {
            self.out.missing_frees += 1;
        }
        self.end(number, index);
    }

    /// The free of a block is requested, if it was not before.
    fn request(&mut self, number: usize, index: usize) {
        let block = &mut self.out.blocks[number];
        if block.requested.is_none() {
            block.requested = Some(index);
            self.asked -= block.bytes;
        }
    }

    /// The memory of a block is free.
    fn end(&mut self, number: usize, index: usize) {
        self.request(number, index);
        let block = &mut self.out.blocks[number];
        block.freed = Some(index);
        self.used -= block.bytes;
        if block.bytes > 0 {
            self.at_address.remove(&block.pointer);
        } else if let Some(numbers) = self.empty.get_mut(&block.pointer) {
            numbers.retain(|other| *other != number);
        }
    }

    fn finish(mut self, has_maps: bool) -> Timeline {
        let is_known = has_maps || !self.out.held.is_empty();
        self.out.reserved = is_known.then_some(self.reserved_peak);
        self.out.asked_at_end = self.asked;
        let alive = self.out.blocks.iter();
        self.out.alive_at_end = alive.filter(|block| block.requested.is_none()).count();
        self.out.mappings = self.mapped.finish();
        self.out
    }
}

fn raise(peak: &mut Peak, bytes: u64, event: usize) {
    if bytes > peak.bytes {
        *peak = Peak { bytes, event };
    }
}
