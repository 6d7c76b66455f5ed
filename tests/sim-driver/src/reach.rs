//! What a kernel may access whose accesses are known only when it runs.
//!
//! That is the memory that was there when the kernel was submitted, in its device's reach. It is copied then: when the
//! kernel runs, blocks may have been freed in stream order, and others may have their places. Until the kernel is done,
//! the addresses stay readable, whatever was freed: see `State::bury`. On coherent machines it is also the memory of the
//! program.

use std::sync::Arc;

use crate::alloc::Kind;
use crate::clock::{Clocks, Point, StreamId};
use crate::export::Answer;
use crate::pool::Block;
use crate::sanitizer::{self, Access, UnorderedFrees};
use crate::state::State;

/// The memory that a kernel may access.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reach {
    /// By address.
    extents: Vec<Extent>,
    /// The annotated blocks in mapped memory, by address.
    annotated: Vec<Extent>,
    /// Start, end and last free of what is free between them, by address.
    freed: Vec<(u64, u64, Point)>,
}

/// A range of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) start: u64,
    pub(crate) size: u64,
    pub(crate) is_writable: bool,
    pub(crate) kind: ExtentKind,
}

/// What is known of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExtentKind {
    /// A block with a place in stream order, and whether the kernel comes after its allocation.
    Block { allocated: Point, is_ordered: bool },
    /// A mapping. An access may continue in the next one.
    View,
    /// Memory without an order but for its free, if it was freed in a stream.
    Plain { freed: Option<Point> },
}

/// The blocks that a kernel's reports were about already, by start. A model may access memory in many pieces.
#[derive(Debug, Default)]
pub(crate) struct Reported(Vec<u64>);

impl Reported {
    fn is_new(&mut self, start: u64) -> bool {
        let is_new = !self.0.contains(&start);
        if is_new {
            self.0.push(start);
        }
        is_new
    }
}

impl Extent {
    /// A live block, as work that is next on `stream` finds it.
    fn block((start, block): (u64, &Block), clocks: &Clocks, stream: StreamId) -> Self {
        Self {
            start,
            size: block.size,
            is_writable: true,
            kind: ExtentKind::Block {
                allocated: block.allocated,
                is_ordered: clocks.is_after(stream, block.allocated),
            },
        }
    }

    fn end(&self) -> u64 {
        self.start + self.size
    }
}

/// The extent that contains an address.
fn find(extents: &[Extent], address: u64) -> Option<&Extent> {
    let behind = extents.partition_point(|extent| extent.start <= address);
    let found = extents.get(behind.checked_sub(1)?)?;
    (address < found.end()).then_some(found)
}

impl State {
    /// What a kernel may access that is submitted to the stream now. Kernels that wait in the stream share it while
    /// nothing changes.
    pub(crate) fn reach(&mut self, id: StreamId) -> Answer<Arc<Reach>> {
        let now = self.reach_now(id)?;
        let last = self.stream(id)?.reach.upgrade();
        if let Some(last) = last.filter(|last| **last == now) {
            return Ok(last);
        }
        let now = Arc::new(now);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.reach = Arc::downgrade(&now);
        }
        Ok(now)
    }

    fn reach_now(&mut self, id: StreamId) -> Answer<Reach> {
        let stream = self.stream(id)?;
        let (device, context) = (stream.device, stream.context);
        let block = |of| Extent::block(of, &self.clocks, id);
        let mut extents: Vec<Extent> = self.live_graph_memory().map(block).collect();
        for pool in self.pools.values().filter(|it| it.is_open_to(device)) {
            let base = pool.base();
            let live = pool.space.live();
            extents.extend(live.map(|(start, it)| block((base + start, it))));
        }
        let imported = self.sharing.imported.values();
        for pool in imported.filter(|it| it.is_open_to(device)) {
            let base = pool.mapping.base();
            let live = pool.pointers.iter();
            extents.extend(live.map(|(start, it)| block((base + start, it))));
        }
        let plain = self.allocations.iter().filter(|(_, it)| {
            it.kind != Kind::Device || it.device == device || self.has_opened(context, it.context)
        });
        extents.extend(plain.map(|(&start, it)| Extent {
            start,
            size: it.size,
            is_writable: true,
            kind: ExtentKind::Plain { freed: it.freed },
        }));
        extents.extend(self.registrations.iter().map(|(&start, it)| Extent {
            start,
            size: it.size,
            is_writable: !it.is_read_only(),
            kind: ExtentKind::Plain { freed: None },
        }));
        extents.extend(self.views_of(device));
        extents.sort_unstable_by_key(|extent| extent.start);
        Ok(Reach {
            extents,
            annotated: self.vmm.annotations.blocks().map(block).collect(),
            freed: self.vmm.annotations.freed().collect(),
        })
    }

    /// Checks an access of a running kernel, and records it. `Err` says why there is no such memory.
    pub(crate) fn access_within(
        &mut self,
        reach: &Reach,
        frees: &UnorderedFrees,
        reported: &mut Reported,
        access: Access,
    ) -> Result<(), &'static str> {
        const NOT_THERE: &str = "touches memory that is not there";
        let address = access.address;
        let end = address.checked_add(access.len).ok_or(NOT_THERE)?;
        let mut at = address;
        let mut is_mapped = false;
        while at < end {
            let Some(extent) = find(&reach.extents, at) else {
                if at == address {
                    // Translated when it is accessed, unlike memory of the driver.
                    if self.is_system_allocated(address, access.len, access.writes()) {
                        return Ok(());
                    }
                    self.report_if_freed(access);
                }
                return Err(NOT_THERE);
            };
            if access.writes() && !extent.is_writable {
                return Err("writes memory that it may only read");
            }
            match extent.kind {
                ExtentKind::View => {
                    is_mapped = true;
                    self.note_access(extent.start, access.at);
                }
                // What lies behind a block is none of its.
                _ if at > address => return Err(NOT_THERE),
                _ => self.access_extent(extent, frees, reported, access),
            }
            if end > extent.end() && extent.kind != ExtentKind::View {
                return Err(NOT_THERE);
            }
            at = extent.end();
        }
        if is_mapped {
            self.access_annotated(reach, frees, reported, access);
        }
        Ok(())
    }

    /// The sanitizer's checks of an access that begins in this memory.
    fn access_extent(
        &mut self,
        extent: &Extent,
        frees: &UnorderedFrees,
        reported: &mut Reported,
        access: Access,
    ) {
        let (start, size) = (extent.start, extent.size);
        let reports = &mut self.reports;
        if access.address + access.len > extent.end() {
            sanitizer::out_of_bounds(reports, access, start, size);
        }
        match extent.kind {
            ExtentKind::Block {
                allocated,
                is_ordered,
            } => {
                if let Some(by) = frees.take(start, allocated) {
                    sanitizer::free_before_access(reports, start, size, by, access.at);
                }
                if !is_ordered && reported.is_new(start) {
                    sanitizer::before_allocation(reports, access, start, size, allocated);
                }
                // The block may be gone, and another one there.
                let block = self.live_block(start);
                if let Some(block) = block.filter(|block| block.allocated == allocated) {
                    sanitizer::remember(&mut block.accesses, access.at);
                }
            }
            ExtentKind::Plain { freed: Some(freed) } if reported.is_new(start) => {
                sanitizer::access_after_free(reports, access, Some(freed));
            }
            ExtentKind::Plain { .. } | ExtentKind::View => {}
        }
    }

    /// The same for the annotated blocks of mapped memory. An access that touches neither a block nor a former one is
    /// ignored.
    fn access_annotated(
        &mut self,
        reach: &Reach,
        frees: &UnorderedFrees,
        reported: &mut Reported,
        access: Access,
    ) {
        let (start, end) = (access.address, access.address + access.len);
        if let Some(extent) = find(&reach.annotated, start) {
            return self.access_extent(extent, frees, reported, access);
        }
        let mut freed = reach.freed.iter();
        let freed = freed.find(|(from, to, _)| *from < end && start < *to);
        if let Some((from, _, freed)) = freed
            && reported.is_new(*from)
        {
            sanitizer::access_after_free(&mut self.reports, access, Some(*freed));
        }
        let inside = |extent: &&Extent| (start..end).contains(&extent.start);
        for extent in reach.annotated.iter().filter(inside) {
            sanitizer::runs_into(&mut self.reports, access, extent.start, extent.size);
        }
    }

    /// The live block that starts there.
    fn live_block(&mut self, start: u64) -> Option<&mut Block> {
        if self.graph_block(start).is_some() {
            return self.graph_block(start)?.1;
        }
        if self.vmm.annotations.block_mut(start).is_some() {
            return self.vmm.annotations.block_mut(start);
        }
        if let Some((id, _)) = self.imported_at(start) {
            let pool = self.sharing.imported.get_mut(&id)?;
            return pool.pointers.get_mut(&(start - pool.mapping.base()));
        }
        let (id, _) = self.pool_at(start)?;
        let pool = self.pools.get_mut(&id)?;
        let base = pool.base();
        let (_, block) = pool.space.block(start - base)?;
        Some(block)
    }

    /// Reports an access to memory of a pool that was freed.
    fn report_if_freed(&mut self, access: Access) {
        let address = access.address;
        if let Some((_, pool)) = self.pool_at(address)
            && let Some(freed) = pool.space.freed(address - pool.base())
        {
            sanitizer::access_after_free(&mut self.reports, access, freed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::configuration::Configuration;
    use crate::device;
    use crate::state::{HandleKind, initialise, state};
    use crate::stream;

    #[test]
    fn launches_share_what_they_reach_until_it_changes() {
        let configuration = Configuration::get();
        initialise(configuration, device::visible(configuration, None));
        let mut state = state().expect("initialised");
        let context = state.new_handle(HandleKind::Context);
        state.add_context(context, 0, false, 0);
        let id = state.add_stream(context, stream::Kind::Explicit, 0, 0);
        let id = id.expect("a context");
        let first = state.reach(id).expect("a stream");
        state.clocks.tick(id);
        let second = state.reach(id).expect("a stream");
        assert!(Arc::ptr_eq(&first, &second));
        let start = 1 << 40;
        state.add_variable(start, 64, Some(context), 0);
        let third = state.reach(id).expect("a stream");
        assert!(find(&third.extents, start).is_some() && find(&first.extents, start).is_none());
        state.end_context(context);
    }
}
